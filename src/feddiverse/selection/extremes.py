"""The points that lie farthest in a direction, among points that are removed one by one, without looking at all.

Normalised triplets lie on a triangle in the plane, and a linear function is largest at their rim. So the triangle is
cut into cells, each with the box around its points; a box's best corner bounds what is inside, and only the few cells
whose bound reaches the best value found are opened. Removing points can only make a bound less sharp, never wrong.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TIE = 1e-12  # values this close are equal: equal matrices in another order round differently
POINTS_PER_CELL = 1024


def along(points: Floats, direction: Floats) -> Floats:
    """⟨points [n, 3], direction [3]⟩, summed in one order for every row (a BLAS product would not promise that)."""
    values: Floats = points[:, 0] * direction[0] + points[:, 1] * direction[1] + points[:, 2] * direction[2]
    return values


def farthest(points: Floats, direction: Floats, left: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Positions of all points `left` at which ⟨point, direction⟩ is largest, ascending: the plain scan."""
    values = np.where(left, along(points, direction), -np.inf)
    return np.flatnonzero(values >= values.max() - TIE)


class Extremes:
    """`farthest` for many directions and removals. `points` [n, 3] must lie in the unit cube."""

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
