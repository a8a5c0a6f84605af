"""A federation: pictures of one source, split over clients by one table of counts (paper, Sec. V-A).

A *split* says how many samples of each (class, attribute) each client gets; a *source* says where pictures come
from. Pictures are read only when a client is asked (`Federation.client`), so clients nobody asks cost nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, overload

import numpy as np
from numpy.typing import NDArray

from feddiverse import seeding
from feddiverse.errors import UserError
from feddiverse.heterogeneity import Counts

Ids = NDArray[np.int64]


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
        return int(self.counts.shape[1])

    @property
    def num_attributes(self) -> int:
        return int(self.counts.shape[2])

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


def deal(name: str, source: Source, counts: Counts, num_selected: int, seed: int) -> Federation:
    """Deal the source's train pool to clients as `counts` asks: without replacement, by seed, no sample twice."""
    hands = _Hands(source, counts, seed)
    return Federation(name, source, counts, num_selected, hands, _Attributes(counts), np.arange(len(source.test_y)))


class _PerClient(Sequence[Ids]):
    """One array per client, made when it is asked for: 24,000 clients cost no more than their counts."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, k: int) -> Ids: ...
    @overload
    def __getitem__(self, k: slice) -> list[Ids]: ...
    def __getitem__(self, k: int | slice) -> Ids | list[Ids]:
        return self.of(range(len(self))[k]) if isinstance(k, int) else [self.of(j) for j in range(len(self))[k]]

    def of(self, k: int) -> Ids:
        raise NotImplementedError


class _Attributes(_PerClient):
    """The attribute of each of a client's samples, which are ordered by class, then attribute."""

    def of(self, k: int) -> Ids:
        classes, attributes = self.counts.shape[1:]
        return np.repeat(np.tile(np.arange(attributes), classes), self.counts[k].ravel())


class _Hands(_PerClient):
    """The sample ids of each client, cut from one shuffled deck per group.

    A deck holds the samples of one (class, attribute); where the attribute is ours to give, one class is one deck,
    cut first by attribute. Each client's part of a deck begins where the part of the client before it ends.
    """

    def __init__(self, source: Source, counts: Counts, seed: int) -> None:
        super().__init__(counts)
        num_classes, num_attributes = counts.shape[1:]
        pooled = counts.sum(axis=0)
        self.starts = np.cumsum(counts, axis=0) - counts
        self.decks: list[list[Ids]] = []  # [class][attribute]
        for y in range(num_classes):
            of_class = source.train_y == y
            if source.train_a is None:
                shuffled = _shuffle(np.flatnonzero(of_class), seed, y, 0)
                _require(source, y, None, len(shuffled), int(pooled[y].sum()))
                self.decks.append(np.split(shuffled, np.cumsum(pooled[y])[:-1]))
            else:
                groups = [np.flatnonzero(of_class & (source.train_a == a)) for a in range(num_attributes)]
                for a, group in enumerate(groups):
                    _require(source, y, a, len(group), int(pooled[y, a]))
                self.decks.append([_shuffle(group, seed, y, a) for a, group in enumerate(groups)])

    def of(self, k: int) -> Ids:
        classes, attributes = self.counts.shape[1:]
        first, last = self.starts[k], self.starts[k] + self.counts[k]
        parts = [self.decks[y][a][first[y, a] : last[y, a]] for y in range(classes) for a in range(attributes)]
        return np.concatenate(parts)


def _shuffle(ids: Ids, seed: int, y: int, a: int) -> Ids:
    return seeding.rng(seed, "deal", round=y, client=a).permutation(ids)


def _require(source: Source, y: int, a: int | None, available: int, asked: int) -> None:
    if asked > available:
        attribute = "" if a is None else f", attribute '{_name(source.attribute_names, a)}'"
        raise UserError(
            f"Source {source.name} has {available} samples of class '{_name(source.class_names, y)}'{attribute}, "
            f"but the split asks for {asked}: choose a smaller split or another source."
        )


def _name(names: tuple[str, ...], index: int) -> str:
    return names[index] if index < len(names) else str(index)
