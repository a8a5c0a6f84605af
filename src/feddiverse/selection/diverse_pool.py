"""FedDiverse's rule for very many clients: the choices of `choose_as_written`, bit for bit, without a scan of all."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from feddiverse.selection.diverse_rule import LEADING, normalise, vanishes
from feddiverse.selection.extremes import Extremes, Floats
from feddiverse.selection.lottery import Lottery, tickets


def arrange(triplets: Floats) -> NDArray[np.intp]:
    """An order in which clients with the same normalised triplet stand together."""
    return np.lexsort(normalise(triplets).T)


class Pool:
    """Arranged clients, laid out once for many rounds; a pick then takes about √K steps.

    Clients with the same normalised triplet are one point of `Extremes`, however many they are; which of them it is
    to be is the lottery's business.
    """

    def __init__(self, triplets: Floats) -> None:
        normalised = normalise(triplets)
        self._starts = np.flatnonzero(np.r_[True, (normalised[1:] != normalised[:-1]).any(axis=1)])
        self._points = normalised[self._starts]
        self._left_at = np.diff(self._starts, append=len(triplets))  # clients left at each point
        self._extremes = Extremes(self._points)
        self._leading = [Lottery(tickets(triplets[:, i])) for i in LEADING]
        self._equal = Lottery(np.ones(len(triplets), np.int64))

    def choose(self, k: int, rng: np.random.Generator, without: Iterable[int] = ()) -> list[int]:
        """What `choose_as_written` would choose among all positions but those in `without`."""
        removed = [self._remove(position) for position in without]
        chosen: list[int] = []
        points: list[int] = []
        for pick in range(min(k, self._equal.total)):
            group, step = divmod(pick, 3)
            if step == 0:
                leading = self._leading[group % 3]
                candidate = (leading if leading.total else self._equal).draw(rng)
            elif step == 1:
                candidate = self._one_along(-self._points[points[-1]], rng)
            else:
                candidate = self._one_along(np.cross(self._points[points[-2]], self._points[points[-1]]), rng)
            chosen.append(candidate)
            points.append(self._remove(candidate))
        np.add.at(self._left_at, removed + points, 1)
        self._extremes.put_back()
        for lottery in (self._equal, *self._leading):
            lottery.put_back()
        return chosen

    def _one_along(self, direction: Floats, rng: np.random.Generator) -> int:
        """One of the clients left that lie farthest in `direction`, each as likely as the other."""
        if vanishes(direction):
            return self._equal.draw(rng)
        tied = self._extremes.farthest(direction)
        ends = np.cumsum(self._left_at[tied])
        winner = int(rng.integers(ends[-1]))
        place = int(np.searchsorted(ends, winner, side="right"))
        rank_there = winner - int(ends[place] - self._left_at[tied[place]])
        return self._equal.holder(self._equal.before(int(self._starts[tied[place]])) + rank_there)

    def _remove(self, position: int) -> int:
        """Take a client out for this round; returns the point it lies at."""
        point = int(np.searchsorted(self._starts, position, side="right")) - 1
        self._left_at[point] -= 1
        if not self._left_at[point]:
            self._extremes.remove(point)
        for lottery in (self._equal, *self._leading):
            lottery.remove(position)
        return point
