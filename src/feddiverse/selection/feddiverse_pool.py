"""FedDiverse's rule for very many clients: the choices of `choose_as_written`, bit for bit, without a scan of all.

Normalised triplets lie on a triangle in the plane, and a linear function is largest at their rim: `Extremes` finds the
points there. `WeightedDraws` draws without replacement by weight in √K steps.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from feddiverse.selection.draws import Floats
from feddiverse.selection.feddiverse_rule import LEADING, TIE, along, normalise, tickets, vanishes

POINTS_PER_CELL = 1024


def arrange(triplets: Floats, smoothing: float = 0.0) -> NDArray[np.intp]:
    """An order in which clients with the same normalised triplet stand together."""
    return np.lexsort(normalise(triplets, smoothing).T)


class Pool:
    """Arranged clients, laid out once for many rounds; a pick then takes about √K steps.

    Clients with the same normalised triplet are one point of `Extremes`, however many they are; which of them it is
    to be is the draw's business.
    """

    def __init__(self, triplets: Floats, smoothing: float = 0.0) -> None:
        normalised = normalise(triplets, smoothing)
        self._starts = np.flatnonzero(np.r_[True, (normalised[1:] != normalised[:-1]).any(axis=1)])
        self._points = normalised[self._starts]
        self._left_at = np.diff(self._starts, append=len(triplets))  # clients left at each point
        self._extremes = Extremes(self._points)
        self._leading = [WeightedDraws(tickets(triplets[:, i])) for i in LEADING]
        self._equal = WeightedDraws(np.ones(len(triplets), np.int64))

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
        for draws in (self._equal, *self._leading):
            draws.put_back()
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
        for draws in (self._equal, *self._leading):
            draws.remove(position)
        return point


class Extremes:
    """`farthest` for many directions and removals. `points` [n, 3] must lie in the unit cube.

    The triangle is cut into cells, each with the box around its points; a box's best corner bounds what is inside, and
    only the few cells whose bound reaches the best value found are opened. Removing points can only make a bound less
    sharp, never wrong.
    """

    def __init__(self, points: Floats) -> None:
        per_side = max(1, int(np.sqrt(len(points) / POINTS_PER_CELL)))
        places = np.minimum((points[:, :2] * per_side).astype(np.int64), per_side - 1)
        cells = places[:, 0] * per_side + places[:, 1]
        self._order = np.argsort(cells, kind="stable")  # ascending positions within a cell
        self._points = np.asfortranarray(points[self._order])
        self._starts = np.flatnonzero(np.diff(cells[self._order], prepend=-1))
        self._stops = np.append(self._starts[1:], len(points))
        self._low = np.minimum.reduceat(self._points, self._starts)
        self._high = np.maximum.reduceat(self._points, self._starts)
        self._place_of = np.empty_like(self._order)
        self._place_of[self._order] = np.arange(len(points))
        self._left = np.ones(len(points), bool)
        self._removed: list[int] = []

    def farthest(self, direction: Floats) -> NDArray[np.intp]:
        """Positions of all points left at which ⟨point, direction⟩ is largest, ascending; one must be left."""
        bounds = along(np.where(direction > 0, self._high, self._low), direction)
        best, opened = -np.inf, []
        while bounds[cell := int(bounds.argmax())] >= best - TIE and bounds[cell] > -np.inf:
            inside = slice(self._starts[cell], self._stops[cell])
            values = np.where(self._left[inside], along(self._points[inside], direction), -np.inf)
            best = max(best, float(values.max()))
            opened.append((inside.start, values))
            bounds[cell] = -np.inf
        places = [start + np.flatnonzero(values >= best - TIE) for start, values in opened]
        return np.sort(self._order[np.concatenate(places)])

    def remove(self, position: int) -> None:
        """Leave a point out from now on."""
        place = int(self._place_of[position])
        self._left[place] = False
        self._removed.append(place)

    def put_back(self) -> None:
        """All that was removed is in again."""
        self._left[self._removed] = True
        self._removed.clear()


class WeightedDraws:
    """`draw` with the sums of blocks of √K kept, so that a draw looks at blocks first and then into one of them."""

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._width = max(1, int(np.sqrt(len(counts))))
        padded = np.zeros(-(-len(counts) // self._width) * self._width, np.int64)
        padded[: len(counts)] = counts
        self._blocks = padded.reshape(-1, self._width)
        self._sums = self._blocks.sum(axis=1)
        self._removed: dict[int, int] = {}
        self.total = int(self._sums.sum())

    def draw(self, rng: np.random.Generator) -> int:
        """The position of the winning ticket among those left; `total` must be positive."""
        return self.holder(int(rng.integers(self.total)))

    def holder(self, ticket: int) -> int:
        """The position that holds a ticket, tickets being numbered from 0 in the order of positions."""
        ends = np.cumsum(self._sums)
        block = int(np.searchsorted(ends, ticket, side="right"))
        ticket -= int(ends[block] - self._sums[block])
        return block * self._width + int(np.searchsorted(np.cumsum(self._blocks[block]), ticket, side="right"))

    def before(self, position: int) -> int:
        """How many tickets are held by those before a position."""
        block, place = divmod(position, self._width)
        return int(self._sums[:block].sum() + self._blocks[block, :place].sum())

    def remove(self, position: int) -> None:
        """Take a position's tickets out."""
        block, place = divmod(position, self._width)
        self._removed[position] = int(self._blocks[block, place])
        self._put(position, 0)

    def put_back(self) -> None:
        """All that was removed is in again."""
        for position, count in self._removed.items():
            self._put(position, count)
        self._removed.clear()

    def _put(self, position: int, count: int) -> None:
        block, place = divmod(position, self._width)
        change = count - int(self._blocks[block, place])
        self._blocks[block, place] = count
        self._sums[block] += change
        self.total += change
