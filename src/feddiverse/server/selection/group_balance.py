"""Balance of groups by known matrices (paper, Sec. V-E, ablation 3): an upper bound that gives privacy away."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import UserError
from feddiverse.messages import Ask, Plain
from feddiverse.server.estimation import Estimator
from feddiverse.server.selection.base import Selector
from feddiverse.server.selection.draws import by_weight, sorted_ids

Floats = NDArray[np.float64]

RIDGE = 1e-9


def balancing_weights(matrices: Floats) -> Floats:
    """ω [K] ≥ 0, Σω = 1, that minimises Var(Σ_k ω_k N^k) over the (class, attribute) groups; `matrices` [K, Y, A].

    With A the matrices as columns, each less its own mean, the variance is ‖Aω‖²/(|Y||A|). Solve by non-negative least
    squares: x ≥ 0 that minimises ‖Ax‖² + (1ᵀx − 1)². Write x = s·ω with Σω = 1 and v = ‖Aω‖²: the value is
    s²v + (s − 1)², for given ω least at s = 1/(1 + v) > 0, where it is v/(1 + v), which grows with v. So the best x has
    the least v, and x/1ᵀx is the ω we want: no solver for quadratic programmes is needed.

    Usually many ω are equally good, and least squares would return one with a handful of clients. A tiny ridge picks
    the most even one, in which equal matrices have equal weights; the proof is the same, v being ‖Aω‖² + ε‖ω‖².
    """
    from scipy.optimize import nnls

    kinds, kind_of, sizes = np.unique(
        matrices.reshape(len(matrices), -1), axis=0, return_inverse=True, return_counts=True
    )
    columns = (kinds - kinds.mean(axis=1, keepdims=True)).T
    columns = columns / max(1e-12, float(np.linalg.norm(columns, axis=0).max()))
    ridge = np.diag(np.sqrt(RIDGE / sizes))  # a kind's weight w shared by its n clients adds n·(w/n)² to ‖ω‖²
    system = np.vstack([columns, ridge, np.ones(len(kinds))])
    x, _ = nnls(system, np.append(np.zeros(len(system) - 1), 1.0))
    weights: Floats = (x / sizes / x.sum())[kind_of.ravel()]
    return weights


class GroupBalance(Selector):
    """Clients drawn without replacement with probabilities ω that would make all groups equally large.

    The matrices are the true ones (estimator `oracle`), or estimated ones whose attribute means the same on every
    client (`consensus`). Where fewer than `k` clients have a positive ω, the rest is drawn uniformly.
    """

    def __init__(self, estimator: Estimator, pretraining_rounds: int = 1) -> None:
        self.estimator = estimator
        self.estimator.wants_matrices = True
        self.pretraining_rounds = pretraining_rounds
        self._triplets: dict[int, list[float]] = {}
        self._weights: tuple[NDArray[np.int64], Floats] | None = None  # of these ids

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        matrices = self._matrices(round, clients, ask)
        ids = sorted_ids(clients)
        known = np.array([i for i in ids.tolist() if i in matrices], np.int64)
        if self._weights is None or not np.array_equal(self._weights[0], known):
            rows = np.array([matrices[i] for i in known.tolist()], np.float64)
            self._weights = known, balancing_weights(rows) if len(rows) else np.zeros(0)
        weights = np.zeros(len(ids))
        weights[np.searchsorted(ids, known)] = self._weights[1]
        return by_weight(ids, weights, k, rng)

    def _matrices(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, Floats]:
        new = {i: size for i, size in clients.items() if i not in self._triplets}
        if new:
            found = self.estimator.estimate(round, new, ask)
            self._triplets |= {i: [float(x) for x in triplet] for i, triplet in found.items()}
            self._weights = None
        if self.estimator.matrices is None:
            raise UserError(
                "Selector 'group_balance' needs matrices whose attribute means the same on every client, which this"
                " estimator does not give; set estimator to 'consensus' or 'oracle'."
            )
        return self.estimator.matrices

    def findings(self) -> Plain:
        weights = {} if self._weights is None else dict(zip(*(part.tolist() for part in self._weights), strict=True))
        return {
            "estimator": type(self.estimator).__name__.lower(),
            "triplets": {str(i): triplet for i, triplet in sorted(self._triplets.items())},
            "weights": {str(i): weight for i, weight in weights.items()},
            "warnings": list(self.estimator.warnings),
        }

    def state(self) -> Plain:
        return {
            "estimator": self.estimator.state(),
            "triplets": [[i, *triplet] for i, triplet in self._triplets.items()],
        }

    def restore(self, state: Plain) -> None:
        self.estimator.restore(state["estimator"])
        self._triplets = {int(i): triplet for i, *triplet in state["triplets"]}
        self._weights = None
