"""Vectors of all clients at once, without holding them in memory: they lie in a temporary file."""

import tempfile
from collections.abc import Iterator
from typing import Self

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import RunError
from feddiverse.messages import Vector

CELLS = 1 << 24
"""Numbers in memory at once: 64 MiB as they come, twice that in float64."""


class Spool:
    """float32 vectors of one length, written one after the other and read back singly or by blocks of coordinates.

    Memory: one vector, or `CELLS` numbers. Disk: 4 bytes a number. The file has no name: it goes with the process.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.count = 0
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed by __exit__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def append(self, vector: Vector) -> None:
        """Keep one more vector."""
        data = np.ascontiguousarray(vector, np.float32).data.cast("B")
        try:
            self._file.seek(4 * self.length * self.count)
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise RunError(
                f"The updates of a round do not fit into {tempfile.gettempdir()}: {error.strerror}; make room or name"
                " another folder by TMPDIR."
            ) from error
        self.count += 1

    def row(self, position: int) -> Vector:
        """The vector that came as number `position`."""
        return self._read(position, slice(0, self.length))

    def blocks(self) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Coordinates `slice` of all vectors [count, width], from the first coordinate to the last."""
        width = max(1, CELLS // max(1, self.count))
        for start in range(0, self.length, width):
            place = slice(start, min(start + width, self.length))
            yield place, np.stack([self._read(i, place) for i in range(self.count)]).astype(np.float64)

    def _read(self, position: int, place: slice) -> Vector:
        part = np.empty(place.stop - place.start, np.float32)
        data = part.data.cast("B")
        self._file.seek(4 * (self.length * position + place.start))
        while data:
            data = data[self._file.readinto(data) :]
        return part
