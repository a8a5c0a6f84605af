"""Pictures on disk, read where they lie: opened at first use, shared between processes by the operating system."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddiverse.data.federation import Ids


class MappedPixels:
    """A raw uint8 array in a file. It pickles as its path, so handing it to a worker copies no picture."""

    def __init__(self, path: Path, shape: tuple[int, ...], offset: int) -> None:
        self.path, self.shape, self.offset = path, shape, offset
        self._array: NDArray[np.uint8] | None = None

    @classmethod
    def of_npy(cls, path: Path) -> "MappedPixels":
        """The array of an `.npy` file."""
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return cls(path, array.shape, array.offset)

    def __getitem__(self, rows: Ids) -> NDArray[np.uint8]:
        if self._array is None:
            self._array = np.memmap(self.path, np.uint8, "r", self.offset, self.shape)
        return np.asarray(self._array[rows])

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_array": None}
