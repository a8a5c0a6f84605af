"""What selectors by labels share: each client's class counts M^k, asked for once."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from feddiverse.messages import Ask, LabelCounts, Plain
from feddiverse.selection.base import Selector
from feddiverse.selection.draws import by_weight, sorted_ids
from feddiverse.server.replies import answers

Floats = NDArray[np.float64]


class LabelSelector(Selector):
    """Asks every client for its class counts when first seen, and chooses among those that told them.

    Subclasses say which of them; who did not answer is chosen, uniformly, only where the others are too few.
    """

    def __init__(self, seed: int, num_classes: int) -> None:
        self.seed = seed
        self.num_classes = num_classes
        self._counts: dict[int, list[float]] = {}

    def question(self, round: int) -> LabelCounts:
        """What clients are asked."""
        return LabelCounts(self.seed, round)

    def pick(self, ids: NDArray[np.int64], counts: Floats, k: int, rng: np.random.Generator) -> list[int]:
        """`k` positions of `counts` [K, classes], k ≤ K."""
        raise NotImplementedError

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        new = {i: size for i, size in clients.items() if i not in self._counts}
        if new:
            for reply in answers(self.question(round), new, ask, length=self.num_classes):
                self._counts[reply.client] = reply.numbers.astype(np.float64).tolist()
        ids = sorted_ids(clients)
        silent = np.array([i not in self._counts for i in ids.tolist()], bool)
        known = ids[~silent]
        chosen: list[int] = []
        if len(known):
            counts = np.array([self._counts[i] for i in known.tolist()], np.float64)
            chosen = known[self.pick(known, counts, min(k, len(known)), rng)].tolist()
        return chosen + by_weight(ids[silent], np.ones(int(silent.sum())), k - len(chosen), rng)

    def state(self) -> Plain:
        return {"counts": [[i, *counts] for i, counts in self._counts.items()]}

    def restore(self, state: Plain) -> None:
        self._counts = {int(i): list(counts) for i, *counts in state["counts"]}
