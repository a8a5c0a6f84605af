"""Round-robin selection (paper, Sec. V-C, baseline 2)."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from feddiverse.messages import Ask, Plain
from feddiverse.selection.base import Selector
from feddiverse.selection.draws import lowest, sorted_ids


class RoundRobin(Selector):
    """Nobody again while another available client has been chosen less often: the k smallest R_k, ties at random."""

    def __init__(self) -> None:
        self._times_chosen: Counter[int] = Counter()  # the paper's R_k

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        ids = sorted_ids(clients)
        times = np.fromiter((self._times_chosen[i] for i in ids.tolist()), np.float64, len(ids))
        chosen = lowest(ids, times, k, rng)
        self._times_chosen.update(chosen)
        return chosen

    def state(self) -> Plain:
        return {"times_chosen": [list(pair) for pair in self._times_chosen.items()]}

    def restore(self, state: Plain) -> None:
        self._times_chosen = Counter(dict(state["times_chosen"]))
