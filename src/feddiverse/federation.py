"""A federation: pictures of one source, split over clients by one table of counts (paper, Sec. V-A).

A *split* says how many samples of each (class, attribute) each client gets; a *source* says where pictures come
from. Pictures are read only when a client is asked (`Federation.client`), so clients nobody asks cost nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]  # [client, class, attribute]


@dataclass(frozen=True)
class Samples:
    """Pictures with their class and attribute. `a` serves evaluation and the oracle; training never reads it."""

    images: NDArray[np.uint8]  # [n, 3, height, width]
    y: NDArray[np.int64]
    a: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)


class Source(Protocol):
    """Where pictures come from. Ids number the samples of the train pool and of the test pool, each from 0."""

    name: str
    class_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, float, float]  # of pixel values in [0, 1], per channel
    std: tuple[float, float, float]
    train_y: NDArray[np.int64]
    train_a: NDArray[np.int64] | None  # None: the attribute is ours to give (the colour of a digit)
    test_y: NDArray[np.int64]
    test_a: NDArray[np.int64]
    fingerprint: str  # SHA-256 that changes when the pictures or labels do

    def train_images(self, ids: NDArray[np.int64], a: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Pictures of the train pool, showing attribute `a` where the source can choose it."""

    def test_images(self, ids: NDArray[np.int64], a: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Pictures of the test pool."""


@dataclass(frozen=True)
class Federation:
    """Data split over clients `0 … K−1`, and the server's balanced test set."""

    name: str
    source: Source
    counts: Counts
    num_selected: int
    client_ids: Sequence[NDArray[np.int64]]  # sample ids in the source's train pool
    client_a: Sequence[NDArray[np.int64]]  # the attribute each of them shows
    test_ids: NDArray[np.int64]

    @property
    def num_clients(self) -> int:
        return len(self.counts)

    @property
    def num_classes(self) -> int:
        return self.counts.shape[1]

    @property
    def num_attributes(self) -> int:
        return self.counts.shape[2]

    @property
    def sizes(self) -> dict[int, int]:
        """Client id → number of training samples."""
        return dict(enumerate(self.counts.sum(axis=(1, 2)).tolist()))

    def client(self, k: int) -> Samples:
        """The data of client `k`, read now."""
        ids, a = self.client_ids[k], self.client_a[k]
        return Samples(self.source.train_images(ids, a), self.source.train_y[ids], a)

    def test(self, start: int = 0, stop: int | None = None) -> Samples:
        """The test set, or a slice of it."""
        ids = self.test_ids[start:stop]
        a = self.source.test_a[ids]
        return Samples(self.source.test_images(ids, a), self.source.test_y[ids], a)
