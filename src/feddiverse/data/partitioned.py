"""A federation dealt by a partitioner of Flower Datasets: anything with `num_partitions` and `load_partition(k)`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse.data.arrays import from_arrays, stack
from feddiverse.data.federation import Federation
from feddiverse.errors import UserError

IMAGE_KEYS = ("img", "image", "pixel_values", "x", "inputs", "features")
LABEL_KEYS = ("label", "labels", "y", "target", "targets", "fine_label")
"""What samples and labels are called in Flower Datasets and their like; the first that is there counts."""


def from_partitioner(
    partitioner: Any,
    label: str,
    image: str,
    attribute: str,
    test: Any,
    names: Sequence[str] | None,
    name: str,
    num_selected: int | None,
) -> Federation:
    """`Federation.from_partitioner`, which says what each argument is."""
    parts = [partitioner.load_partition(k) for k in range(partitioner.num_partitions)]
    filled = [k for k, part in enumerate(parts) if len(part)]
    if not filled:
        raise UserError("The partitioner gives no client any sample.")
    known = _names(partitioner, names)
    width = len(str(len(parts) - 1))
    clients = np.repeat([known.get(k, f"{k:0{width}d}") for k in filled], [len(parts[k]) for k in filled])
    columns = parts[filled[0]].column_names
    image, label = _column(columns, image, IMAGE_KEYS, "image"), _column(columns, label, LABEL_KEYS, "label")
    if attribute:
        _column(columns, attribute, (), "attribute")
    classes = _classes(parts[filled[0]], label)
    x = np.concatenate([pictures(parts[k], image) for k in filled])
    y = [classes.get(value, value) for k in filled for value in parts[k][label]]
    a = [value for k in filled for value in parts[k][attribute]] if attribute else None
    held = None
    if test is not None:
        tested = pictures(test, image), [classes.get(value, value) for value in test[label]]
        held = (*tested, list(test[attribute])) if attribute else tested
    return from_arrays(x, y, clients, a, held, name, num_selected, None, None)


def _column(columns: Sequence[str], given: str, usual: Sequence[str], what: str) -> str:
    found = given if given in columns else next((key for key in usual if not given and key in columns), None)
    if found is None:
        listed = ", ".join(f"'{column}'" for column in columns)
        raise UserError(f"The dataset has no column '{given or what}': it has {listed}; name yours with {what}=….")
    return found


def _names(partitioner: Any, names: Sequence[str] | None) -> dict[int, str]:
    """What clients are called: as given, or as a partitioner by natural ids knows."""
    if names is not None:
        if len(names) != partitioner.num_partitions:
            raise UserError(f"There are {partitioner.num_partitions} partitions, but {len(names)} names.")
        return dict(enumerate(map(str, names)))
    natural = getattr(partitioner, "partition_id_to_natural_id", None)
    return {k: str(value) for k, value in natural.items()} if isinstance(natural, Mapping) else {}


def _classes(part: Any, label: str) -> dict[Any, str]:
    """Number → name, where the dataset names its classes."""
    named = getattr(part.features[label], "names", None) if hasattr(part, "features") else None
    return dict(enumerate(named)) if named else {}


def pictures(part: Any, column: str) -> NDArray[Any]:
    """A column as one array: pictures, arrays or lists of numbers, all of one shape."""
    return stack(part[column], f"'{column}'")
