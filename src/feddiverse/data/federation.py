"""A federation: samples of one source, split over clients by one table of counts (paper, Sec. V-A).

A *split* says how many samples of each (class, attribute) each client gets; a *source* says where samples come
from. They are read only when a client is asked (`Federation.client`), so clients nobody asks cost nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feddiverse import seeding
from feddiverse.errors import UserError
from feddiverse.heterogeneity import Counts

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """What a model sees, with its class and, where it is known, its attribute.

    `x` is uint8 for pictures [n, channels, height, width], or float of any shape [n, …]. `a` serves evaluation and the
    oracle; training never reads it. `memory` is what the client itself keeps between questions, such as the
    attributes it read; it never leaves the client. `held_out` are samples that the client never trains on.
    `secret_noise`: noise for privacy comes from this machine's own randomness, as a deployment needs it, and texts of
    errors stay here; else it comes from the run's seed, which the server knows, for experiments.

    >>> len(Samples(np.zeros((2, 5), np.float32), y=np.array([0, 1]), a=None))
    2
    """

    x: NDArray[Any]
    y: Ids
    a: Ids | None
    memory: dict[str, NDArray[Any]] = field(default_factory=dict, compare=False, repr=False)
    held_out: "Samples | None" = field(default=None, compare=False, repr=False)
    secret_noise: bool = False

    def __len__(self) -> int:
        return len(self.y)


class Source(Protocol):
    """Where samples come from. Ids number the samples of the train pool and of the test pool, each from 0."""

    name: str
    class_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    shape: tuple[int, ...]  # of one sample
    mean: tuple[float, ...] | None  # of pixel values in [0, 1], per channel; None: floats, taken as they are
    std: tuple[float, ...] | None
    train_y: Ids
    train_a: Ids | None  # None: the attribute is ours to give (the colour of a digit)
    test_y: Ids
    test_a: Ids
    fingerprint: str  # SHA-256 that changes when the samples or labels do

    def train_x(self, ids: Ids, a: Ids) -> NDArray[Any]:
        """Samples of the train pool, showing attribute `a` where the source can choose it."""

    def test_x(self, ids: Ids, a: Ids) -> NDArray[Any]:
        """Samples of the test pool."""


@dataclass(frozen=True)
class Federation:
    """Data split over clients `0 … K−1`, and the server's test set (balanced over groups, in the paper's).

    Made by `fd.federation(name)`, `Federation.from_clients(…)` or `Federation.from_arrays(…)`.

    >>> import feddiverse as fd
    >>> fed = fd.federation("digits-gsc", seed=0)
    >>> fed.num_clients, fed.num_classes, fed.client(3).x.shape
    (24, 2, (140, 3, 28, 28))

    `attributes_known`: whether the attribute of training samples is known; else `counts` has one column for all.
    `held_out`: what each client never trains on (`with_holdout`): sample ids, and the attribute each of them shows.
    """

    name: str
    source: Source
    counts: Counts
    num_selected: int
    client_ids: Sequence[Ids]  # sample ids in the source's train pool
    client_a: Sequence[Ids]  # the attribute each of them shows
    test_ids: Ids
    client_names: tuple[str, ...] = ()
    attributes_known: bool = True
    held_out: Sequence[tuple[Ids, Ids]] = ()
    opened_with: Mapping[str, Any] = field(default_factory=dict)  # the config keys that `fd.federation` was given

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        client: ArrayLike,
        attribute: ArrayLike | None = None,
        test: Sequence[ArrayLike] | None = None,
        *,
        name: str = "arrays",
        num_selected: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> "Federation":
        """A federation of arrays in memory: sample `i` is `x[i]`, of class `y[i]`, at the client `client[i]`.

        `x` is uint8 pictures ([n, channels, height, width]; channels last, or none for grey, are understood too) or
        floats of any shape that the model takes. Classes, clients and attributes may be numbers or texts. `test` is
        `(x, y)` or `(x, y, attribute)`; without it nothing is evaluated at the server. `mean` and `std` normalise
        pictures, channel by channel, on the scale from 0 to 1 (default: 0.5 and 0.5).

        >>> import numpy as np
        >>> x, y = np.zeros((6, 4), np.float32), [0, 1, 0, 1, 0, 1]
        >>> fed = Federation.from_arrays(x, y, client=["here", "here", "there", "there", "away", "away"], test=(x, y))
        >>> fed.num_clients, fed.client_names, fed.sizes
        (3, ('away', 'here', 'there'), {0: 2, 1: 2, 2: 2})
        """
        from feddiverse.data.arrays import from_arrays

        return from_arrays(x, y, client, attribute, test, name, num_selected, mean, std)

    @classmethod
    def from_clients(
        cls,
        clients: Mapping[Any, Any] | Sequence[Any],
        test: Any = None,
        *,
        name: str = "clients",
        num_selected: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> "Federation":
        """A federation of clients that bring their own: `{name: (x, y)}`, or a list of such, where names are numbers.

        In place of `(x, y)` may stand `(x, y, attribute)`, or a dataset that gives `(x, y)` for each sample, as
        PyTorch's do; so may `test`. Everything else is as in `from_arrays`. Clients without samples are left out.

        >>> import numpy as np
        >>> x = np.zeros((3, 4), np.float32)
        >>> fed = Federation.from_clients({"here": (x, [0, 1, 0]), "there": (x[:2], [1, 1])}, test=(x, [0, 1, 1]))
        >>> fed.client_names, fed.sizes
        (('here', 'there'), {0: 3, 1: 2})
        """
        from feddiverse.data.clients import from_clients

        return from_clients(clients, test, name, num_selected, mean, std)

    @classmethod
    def from_partitioner(
        cls,
        partitioner: Any,
        label: str = "",
        image: str = "",
        attribute: str = "",
        test: Any = None,
        *,
        names: Sequence[str] | None = None,
        name: str = "arrays",
        num_selected: int | None = None,
    ) -> "Federation":
        """The federation that a partitioner of Flower Datasets deals; its dataset must be assigned.

        `label`, `image` and `attribute` are columns (default: the usual names, `img` or `image`, `label`, …; no
        attribute); `test` is a dataset with the same columns, such as `FederatedDataset.load_split("test")`. Clients
        are called as `names` says, as a `NaturalIdPartitioner` knows, or by their number.

        >>> class Halves:
        ...     num_partitions = 2
        ...     def load_partition(self, k):
        ...         return Rows({"x": [[0.0, k], [1.0, k]], "label": [0, 1]})
        >>> class Rows(dict):
        ...     column_names = ("x", "label")
        ...     def __len__(self): return len(self["label"])
        >>> fed = Federation.from_partitioner(Halves())
        >>> fed.num_clients, fed.sizes, fed.client(1).x.tolist()
        (2, {0: 2, 1: 2}, [[0.0, 1.0], [1.0, 1.0]])
        """
        from feddiverse.data.partitioned import from_partitioner

        return from_partitioner(partitioner, label, image, attribute, test, names, name, num_selected)

    def __repr__(self) -> str:
        of_each = f"{self.num_clients} clients, {self.counts.sum():,} samples, {self.num_classes} classes"
        return f"Federation({self.name}: {of_each}, {len(self.test_ids):,} test samples)"

    @property
    def num_clients(self) -> int:
        return len(self.counts)

    @property
    def num_classes(self) -> int:
        return int(self.counts.shape[1])

    @property
    def num_attributes(self) -> int:
        """Attribute values that are known; 1 where none are."""
        return max(len(self.source.attribute_names), int(self.counts.shape[2]))

    @property
    def test_attributes_known(self) -> bool:
        """Whether test samples have attributes, which they may although training samples have none."""
        return bool(self.source.attribute_names)

    @property
    def classes(self) -> tuple[Any, ...]:
        """What a model's answers 0, 1, … stand for: the labels as they were given."""
        classes: tuple[Any, ...] = getattr(self.source, "classes", tuple(range(self.num_classes)))
        return classes

    @property
    def sizes(self) -> dict[int, int]:
        """Client id → number of training samples."""
        return dict(enumerate(self.counts.sum(axis=(1, 2)).tolist()))

    @property
    def names(self) -> tuple[str, ...]:
        """What each client is called: its own name, or its number."""
        return self.client_names or tuple(map(str, range(self.num_clients)))

    def client(self, k: int) -> Samples:
        """The data of client `k`, read now."""
        ids, a = self.client_ids[k], self.client_a[k]
        held_out = None
        if self.held_out:
            held_ids, held_a = self.held_out[k]
            held_out = Samples(self.source.train_x(held_ids, held_a), self.source.train_y[held_ids], None)
        known = a if self.attributes_known else None
        return Samples(self.source.train_x(ids, a), self.source.train_y[ids], known, held_out=held_out)

    def export(self, folder: str | Path, *, seed: int = 0, pictures: bool = False) -> Path:
        """Write who has what as `federation.csv`, which `run` reads back to the same bits (docs/sharing.md).

        `seed`: that of the split, to be written down. `pictures`: whether to copy a photo set's pictures too.
        """
        from feddiverse.data.sharing import export

        return export(self, Path(folder), seed=seed, pictures=pictures)

    def with_holdout(self, share: float, seed: int) -> "Federation":
        """The same with a share of each client's own samples, drawn by seed, held out for evaluation at the client.

        >>> import feddiverse as fd
        >>> fed = fd.federation("digits-gsc").with_holdout(0.2, seed=0)
        >>> len(fed.client(0)), len(fed.client(0).held_out)
        (112, 28)
        """
        from feddiverse.data.holdout import with_holdout

        return with_holdout(self, share, seed)

    def test(self, start: int = 0, stop: int | None = None) -> Samples:
        """The test set, or a slice of it."""
        ids = self.test_ids[start:stop]
        a = self.source.test_a[ids]
        return Samples(self.source.test_x(ids, a), self.source.test_y[ids], a)


def deal(name: str, source: Source, counts: Counts, num_selected: int, seed: int) -> Federation:
    """Deal the source's train pool to clients as `counts` asks: without replacement, by seed, no sample twice."""
    ids = _DealtIds(source, counts, seed)
    return Federation(name, source, counts, num_selected, ids, _DealtAttributes(counts), np.arange(len(source.test_y)))


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


class _DealtAttributes(_PerClient):
    """The attribute of each of a client's samples, which are ordered by class, then attribute."""

    def of(self, k: int) -> Ids:
        classes, attributes = self.counts.shape[1:]
        return np.repeat(np.tile(np.arange(attributes), classes), self.counts[k].ravel())


class _DealtIds(_PerClient):
    """The sample ids of each client, cut from one random permutation per group.

    A permutation holds the samples of one (class, attribute); where the attribute is ours to give, those of one class,
    cut first by attribute. Each client's part of it begins where the part of the client before it ends.
    """

    def __init__(self, source: Source, counts: Counts, seed: int) -> None:
        super().__init__(counts)
        num_classes, num_attributes = counts.shape[1:]
        pooled = counts.sum(axis=0)
        self.starts = np.cumsum(counts, axis=0) - counts
        self.permutations: list[list[Ids]] = []  # [class][attribute]
        for y in range(num_classes):
            of_class = source.train_y == y
            if source.train_a is None:
                permuted = _permute(np.flatnonzero(of_class), seed, y, 0)
                _require(source, y, None, len(permuted), int(pooled[y].sum()))
                self.permutations.append(np.split(permuted, np.cumsum(pooled[y])[:-1]))
            else:
                groups = [np.flatnonzero(of_class & (source.train_a == a)) for a in range(num_attributes)]
                for a, group in enumerate(groups):
                    _require(source, y, a, len(group), int(pooled[y, a]))
                self.permutations.append([_permute(group, seed, y, a) for a, group in enumerate(groups)])

    def of(self, k: int) -> Ids:
        classes, attributes = self.counts.shape[1:]
        first, last = self.starts[k], self.starts[k] + self.counts[k]
        parts = [self.permutations[y][a][first[y, a] : last[y, a]] for y in range(classes) for a in range(attributes)]
        return np.concatenate(parts)


def _permute(ids: Ids, seed: int, y: int, a: int) -> Ids:
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
