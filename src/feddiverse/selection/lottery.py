"""Draws without replacement by weight that cost √K instead of K, and give the very client a full scan would give."""

import numpy as np
from numpy.typing import NDArray

TICKETS = 2**32  # of a weight of one; sums of a billion clients still fit 64 bits


def tickets(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Weights in [0, 1] as whole numbers of tickets: whole numbers add up to the same sum in any order."""
    counts: NDArray[np.int64] = np.rint(weights * TICKETS).astype(np.int64)
    return counts


def draw(counts: NDArray[np.int64], rng: np.random.Generator) -> int:
    """The position that holds the winning ticket; some count must be positive."""
    ends = np.cumsum(counts)
    return int(np.searchsorted(ends, rng.integers(ends[-1]), side="right"))


class Lottery:
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
        """Take a position's tickets out, until `put_back`."""
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
