"""A bound on how often anyone is chosen, whatever they claim: `coverage`, for every selector."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from feddiverse.messages import Ask, Plain, Reply, Vector
from feddiverse.selection.base import Selector
from feddiverse.selection.draws import Floats, Ids, lowest, sorted_ids


def limited(selector: Selector, coverage: float) -> Selector:
    """The selector under the bound; one that knows `coverage` itself keeps it itself. 0: no bound."""
    return selector if not coverage or hasattr(selector, "coverage") else Limited(selector, coverage)


def resting(ids: Ids, times: Floats, k: int, coverage: float) -> Ids:
    """Who has been chosen (`times`) so often that others get a turn: `coverage` times as often as by uniform selection.

    After t choices of k among K clients nobody has been chosen more than ⌈coverage·t·k/K⌉ times.
    """
    uniform_share = (times.sum() + k) / max(1, len(ids))
    found: Ids = ids[times >= math.ceil(coverage * uniform_share)]
    return found


class Limited(Selector):
    """Any selector, to which clients that rest seem to be away: what they claim cannot bring them back before.

    Where fewer than k are left, those of them that were chosen least often come back.
    """

    def __init__(self, selector: Selector, coverage: float) -> None:
        self.selector = selector
        self.coverage = coverage
        self.wants_updates = selector.wants_updates  # type: ignore[misc]
        self._times_chosen: Counter[int] = Counter()

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        ids = sorted_ids(clients)
        times = np.array([self._times_chosen[i] for i in ids.tolist()], np.float64)
        away = resting(ids, times, k, self.coverage)
        missing = max(0, k - (len(ids) - len(away)))
        back = lowest(away, times[np.isin(ids, away)], missing, rng) if missing else []
        there = set(ids.tolist()) - set(away.tolist()) | set(back)
        chosen = self.selector.choose(round, k, {i: clients[i] for i in clients if i in there}, ask, rng)
        self._times_chosen.update(int(i) for i in chosen)
        return chosen

    def observe(self, round: int, theta: Vector, replies: Sequence[Reply]) -> None:
        self.selector.observe(round, theta, replies)

    def warnings(self) -> list[str]:
        return self.selector.warnings()

    def findings(self) -> Plain:
        return self.selector.findings()

    def state(self) -> Plain:
        return {"selector": self.selector.state(), "times_chosen": [list(pair) for pair in self._times_chosen.items()]}

    def restore(self, state: Plain) -> None:
        self.selector.restore(state["selector"])
        self._times_chosen = Counter(dict(state["times_chosen"]))
