"""FedPNS: probabilistic node selection (paper, Sec. V-C, baseline 5).

Wu, Wang: "Node selection toward faster convergence for federated learning on non-IID data", IEEE TNSE 9(5), 2022,
and the authors' code (HongdaWu1226/FedPNS). Where our paper leaves things out, we follow their code:

- A set S of updates is as good as Σ_{i∈S} ⟨g_i, ḡ_S⟩. While leaving one client out makes what is left better, the
  client whose absence helps most is flagged and left out; at most a fifth of a round is flagged (theirs: 2 of 10).
- A flagged client loses the part min((x + β)^α, 1) of its probability, x being the share of its rounds in which it was
  flagged; what is lost goes in equal parts to all others, asked this round or not.

Left out, because our paper uses FedPNS as a way to select and our server has no data of its own to try models on:
flagged updates stay in the average, and no loss on a server's data set can stop the flagging early.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from feddiverse.messages import Ask, Plain, Reply, Vector
from feddiverse.selection.base import Selector
from feddiverse.selection.draws import by_weight, sorted_ids

Floats = NDArray[np.float64]

MAX_FLAGGED = 0.2
BLOCK = 1 << 16


def gram(updates: Sequence[Vector], theta: Vector, scales: Sequence[float]) -> Floats:
    """⟨g_i, g_j⟩ [n, n] of g_i = (θ_i − θ)·scale_i: one pass over θ, not one for every pair and set."""
    products = np.zeros((len(updates), len(updates)))
    for start in range(0, len(theta), BLOCK):
        block = np.stack([update[start : start + BLOCK] for update in updates]).astype(np.float64)
        block -= theta[start : start + BLOCK]
        products += block @ block.T
    return products * np.outer(scales, scales)


def flag(products: Floats, max_flagged: int) -> list[int]:
    """Positions flagged, in that order. The Gram matrix is all that is needed: with s its sum over a set of n clients,
    Σ ⟨g_i, ḡ⟩ = s / n; without client i it is (s − 2 r_i + G_ii) / (n − 1), r_i being the sum of row i."""
    left = np.arange(len(products))
    flagged: list[int] = []
    while len(flagged) < max_flagged and len(left) > 1:
        inside = products[np.ix_(left, left)]
        without = (inside.sum() - 2 * inside.sum(axis=1) + inside.diagonal()) / (len(left) - 1)
        worst = int(without.argmax())
        if without[worst] <= inside.sum() / len(left):
            break
        flagged.append(int(left[worst]))
        left = np.delete(left, worst)
    return flagged


class FedPNS(Selector):
    """Clients whose updates held the others back become less likely, all others more likely."""

    wants_updates = True

    def __init__(self, fedpns_alpha: float = 2.0, fedpns_beta: float = 0.7) -> None:
        self.alpha = fedpns_alpha
        self.beta = fedpns_beta
        self._chances: dict[int, float] = {}  # a client's probability, times the number of clients: all start at 1
        self._times_seen: Counter[int] = Counter()
        self._times_flagged: Counter[int] = Counter()

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        ids = sorted_ids(clients)
        for i in ids.tolist():
            self._chances.setdefault(i, 1.0)
        return by_weight(ids, np.array([self._chances[i] for i in ids.tolist()], np.float64), k, rng)

    def observe(self, round: int, theta: Vector, replies: Sequence[Reply]) -> None:
        answered = sorted((reply for reply in replies if reply.vector is not None), key=lambda reply: reply.client)
        vectors = [reply.vector for reply in answered if reply.vector is not None]
        if len(vectors) < 2:
            return
        self._times_seen.update(reply.client for reply in answered)
        per_step = [1 / max(1.0, reply.metrics.get("steps", 1.0)) for reply in answered]
        positions = flag(gram(vectors, theta, per_step), round_up(MAX_FLAGGED * len(answered)))
        self._shift([answered[position].client for position in positions])

    def _shift(self, flagged: Sequence[int]) -> None:
        """Move probability from the flagged to the rest."""
        self._times_flagged.update(flagged)
        lost = 0.0
        for i in flagged:
            base = self._times_flagged[i] / self._times_seen[i] + self.beta
            loss = self._chances.setdefault(i, 1.0) * (1.0 if base >= 1 else base**self.alpha)
            self._chances[i] -= loss
            lost += loss
        rest = self._chances.keys() - set(flagged)
        for i in rest:
            self._chances[i] += lost / len(rest)

    def findings(self) -> Plain:
        return {"times_flagged": {str(i): times for i, times in sorted(self._times_flagged.items())}}

    def state(self) -> Plain:
        return {
            "clients": [
                [i, chance, self._times_seen[i], self._times_flagged[i]] for i, chance in sorted(self._chances.items())
            ]
        }

    def restore(self, state: Plain) -> None:
        rows = state["clients"]
        self._chances = {int(row[0]): float(row[1]) for row in rows}
        self._times_seen = Counter({int(row[0]): int(row[2]) for row in rows})
        self._times_flagged = Counter({int(row[0]): int(row[3]) for row in rows if row[3]})


def round_up(number: float) -> int:
    """The next whole number, forgiving what rounding adds to products such as 0.2 · 15."""
    return int(np.ceil(number - 1e-9))
