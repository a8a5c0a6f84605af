"""Balance of groups by known matrices (paper, Sec. V-E, ablation 3): an upper bound that gives privacy away."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import UserError
from feddiverse.estimation.base import Estimator
from feddiverse.messages import Ask, Plain
from feddiverse.selection.draws import by_weight, sorted_ids
from feddiverse.selection.estimating import EstimatingSelector

Floats = NDArray[np.float64]

RIDGE = 1e-8  # ε
MAX_STEPS = 200


def balancing_weights(matrices: Floats) -> Floats:
    """ω [K] ≥ 0, Σω = 1, that minimises Var(Σ_k ω_k N^k) over the (class, attribute) groups; `matrices` [K, Y, A].

    With A the matrices as columns, each less its own mean, the variance is ‖Aω‖²/(|Y||A|). Take x ≥ 0 that minimises
    ‖Ax‖² + (1ᵀx − 1)²: write x = s·ω with Σω = 1 and v = ‖Aω‖²; the value s²v + (s − 1)² is for given ω least at
    s = 1/(1 + v) > 0, where it is v/(1 + v), which grows with v. So the best x has the least v, and x/1ᵀx is the ω we
    want: non-negative least squares solve the quadratic programme exactly.

    Usually many ω are equally good, most of them with a handful of clients. A tiny ridge ε‖x‖² picks the most even one,
    in which equal matrices have equal weights; the proof is the same, with v = ‖Aω‖² + ε‖ω‖².
    """
    columns = matrices.reshape(len(matrices), -1).T
    columns = columns - columns.mean(axis=0)
    columns = columns / max(1e-12, float(np.linalg.norm(columns, axis=0).max()))
    x = least_squares(columns)
    weights: Floats = x / x.sum()
    return weights


def least_squares(columns: Floats) -> Floats:
    """x ≥ 0 that minimises ‖Ax‖² + ε‖x‖² + (1ᵀx − 1)², A = `columns` [d, K], in d + 1 unknowns instead of K.

    At the minimum x = max(0, τ − Aᵀu) with u = Ax/ε and τ = (1 − 1ᵀx)/ε, and these z = (u, τ) minimise the convex
    ε/2 ‖z‖² − τ + ½ ‖max(0, Mᵀz)‖², M being −A over a row of ones: Newton's method, with the step halved until the
    value falls, ends after a few steps of O(K d²).
    """
    rows = np.vstack([-columns, np.ones(columns.shape[1])])
    target = np.append(np.zeros(len(columns)), 1.0)

    def value(z: Floats) -> float:
        return float(RIDGE / 2 * z @ z - target @ z + np.square(np.maximum(0.0, z @ rows)).sum() / 2)

    z = target / columns.shape[1]
    for _ in range(MAX_STEPS):
        x = np.maximum(0.0, z @ rows)
        slope = RIDGE * z - target + rows @ x
        active = rows[:, x > 0]
        step = np.linalg.solve(RIDGE * np.eye(len(rows)) + active @ active.T, -slope)
        while value(z + step) >= value(z) and np.abs(step).max() > 1e-15 * np.abs(z).max():
            step /= 2
        if value(z + step) >= value(z):
            break
        z = z + step
    result: Floats = np.maximum(0.0, z @ rows)
    return result


class GroupBalance(EstimatingSelector):
    """Clients drawn without replacement with probabilities ω that would make all groups equally large.

    The matrices are the true ones (estimator `oracle`), or estimated ones whose attribute means the same on every
    client (`consensus`). Where fewer than `k` clients have a positive ω, the rest is drawn uniformly.
    """

    def __init__(self, estimator: Estimator) -> None:
        if not estimator.gives_matrices:
            raise UserError(
                "Selector 'group_balance' needs matrices whose attribute means the same on every client, which this"
                " estimator does not give; set estimator to 'consensus' or 'oracle'."
            )
        super().__init__(estimator)
        self.estimator.wants_matrices = True
        self._weights: tuple[NDArray[np.int64], Floats] | None = None  # of these ids

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        if self._learn(round, clients, ask):
            self._weights = None
        matrices = self.estimator.matrices or {}  # none as long as nobody answered
        ids = sorted_ids(clients)
        known = np.array([i for i in ids.tolist() if i in matrices], np.int64)
        if self._weights is None or not np.array_equal(self._weights[0], known):
            rows = np.array([matrices[i] for i in known.tolist()], np.float64)
            self._weights = known, balancing_weights(rows) if len(rows) else np.zeros(0)
        weights = np.zeros(len(ids))
        weights[np.searchsorted(ids, known)] = self._weights[1]
        return by_weight(ids, weights, k, rng)

    def warnings(self) -> list[str]:
        nobody = [] if self.estimator.matrices else ["No client's matrix is known: clients are drawn uniformly."]
        return [*nobody, *self.estimator.warnings]

    def findings(self) -> Plain:
        weights = {} if self._weights is None else dict(zip(*(part.tolist() for part in self._weights), strict=True))
        return {**super().findings(), "weights": {str(i): weight for i, weight in weights.items()}}

    def restore(self, state: Plain) -> None:
        super().restore(state)
        self._weights = None
