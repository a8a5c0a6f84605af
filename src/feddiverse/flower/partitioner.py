"""Our splits for any Hugging Face dataset, through Flower Datasets; and the metrics of any partitioner there is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr_datasets.partitioner import Partitioner
from numpy.typing import ArrayLike, NDArray

from feddiverse import splits
from feddiverse.data.federation import Ids, deal
from feddiverse.errors import UserError
from feddiverse.heterogeneity import Counts, Heterogeneity, measure


class CountsPartitioner(Partitioner):  # type: ignore[misc]  # flwr-datasets has no types
    """Deals a dataset to clients so that client k gets `counts[k, y, a]` samples of label y and attribute a.

    `counts`: the matrices [K, Y, A], or the text of a split (`gsc`, `dirichlet(alpha=0.3,clients=20)`, …). Labels and
    attributes are columns of the dataset; their values are numbered in sorted order, or as `labels` and `attributes`
    list them. Samples are dealt without replacement, by seed.

    With a dataset of the hub: `FederatedDataset(dataset="…", partitioners={"train": CountsPartitioner("gsc", …)})`.

    >>> from datasets import Dataset
    >>> partitioner = CountsPartitioner([[[1, 0], [0, 1]], [[0, 1], [1, 0]]], "dog", "place")
    >>> partitioner.dataset = Dataset.from_dict({"dog": ["corgi", "corgi", "pug", "pug"], "place": ["sea", "wood"] * 2})
    >>> partitioner.load_partition(0)["place"][:]
    ['sea', 'wood']
    """

    def __init__(
        self,
        counts: str | ArrayLike,
        label_by: str = "label",
        attribute_by: str = "attribute",
        *,
        labels: Sequence[Any] | None = None,
        attributes: Sequence[Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.counts = _counts(counts, seed)
        self._columns = (label_by, attribute_by)
        self._values = (labels, attributes)
        self._seed = seed
        self._client_ids: Sequence[Ids] | None = None

    def load_partition(self, partition_id: int) -> Any:
        """The samples of one client, a `datasets.Dataset`."""
        if not 0 <= partition_id < self.num_partitions:
            raise UserError(f"There is no partition {partition_id}: the split has {self.num_partitions}.")
        if self._client_ids is None:
            columns = (_numbered(self.dataset, *pair) for pair in zip(self._columns, self._values, strict=True))
            (y, class_names), (a, attribute_names) = columns
            source: Any = _Columns(y, a, class_names, attribute_names)
            self._client_ids = deal("", source, self.counts, 0, self._seed).client_ids
        return self.dataset.select(self._client_ids[partition_id].tolist())

    @property
    def num_partitions(self) -> int:
        return len(self.counts)


@dataclass(frozen=True)
class _Columns:
    """What `deal` must know of a source."""

    train_y: Ids
    train_a: Ids
    class_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    name: str = "the dataset"
    test_y: Ids = field(default_factory=lambda: np.empty(0, np.int64))


def measure_partitioner(
    partitioner: Partitioner, label_by: str = "label", attribute_by: str = "attribute"
) -> Heterogeneity:
    """The six metrics of what a partitioner deals out, whatever its rule; its dataset must be assigned.

    >>> from datasets import Dataset
    >>> from flwr_datasets.partitioner import IidPartitioner
    >>> partitioner = IidPartitioner(num_partitions=2)
    >>> partitioner.dataset = Dataset.from_dict({"label": [0, 0, 1, 1], "place": ["sea", "wood"] * 2})
    >>> measure_partitioner(partitioner, "label", "place").sizes.tolist()
    [2.0, 2.0]
    """
    values = [sorted(partitioner.dataset.unique(column)) for column in (label_by, attribute_by)]
    tables = np.zeros((partitioner.num_partitions, *map(len, values)), np.int64)
    for k in range(partitioner.num_partitions):
        part = partitioner.load_partition(k)
        where = [
            _numbered(part, column, known)[0] for column, known in zip((label_by, attribute_by), values, strict=True)
        ]
        np.add.at(tables[k], tuple(where), 1)
    return measure(tables)


def _counts(counts: str | ArrayLike, seed: int) -> Counts:
    if isinstance(counts, str):
        return splits.make(counts, seed).counts
    tables = np.asarray(counts)
    if tables.ndim != 3 or not np.issubdtype(tables.dtype, np.integer) or (tables < 0).any():
        raise UserError(f"Counts must be whole numbers [client, label, attribute], not {tables.dtype} {tables.shape}.")
    return tables.astype(np.int64)


def _numbered(dataset: Any, column: str, values: Sequence[Any] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """A column as numbers from 0, −1 where its value is none of `values`, and what the numbers stand for."""
    if column not in dataset.column_names:
        raise UserError(f"The dataset has no column '{column}': it has {', '.join(dataset.column_names)}.")
    known = list(values) if values is not None else sorted(dataset.unique(column))
    number = {value: i for i, value in enumerate(known)}
    return np.array([number.get(value, -1) for value in dataset[column]], np.int64), tuple(map(str, known))
