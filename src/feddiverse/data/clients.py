"""A federation of clients that each bring arrays, or a dataset, of their own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse.data.arrays import as_array, as_samples, from_arrays, stack
from feddiverse.data.federation import Federation
from feddiverse.errors import UserError

Columns = list[NDArray[Any]]  # x, y and, where it is known, the attribute


def from_clients(
    clients: Mapping[Any, Any] | Sequence[Any],
    test: Any,
    name: str,
    num_selected: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> Federation:
    """`Federation.from_clients`, which says what each argument is."""
    if not isinstance(clients, Mapping | Sequence):
        raise UserError(f"clients must be {{name: (x, y)}} or a list of such, not {type(clients).__name__}.")
    given = clients if isinstance(clients, Mapping) else dict(enumerate(clients))
    every = {str(client): _columns(part, f"client '{client}'") for client, part in given.items()}
    parts = {client: part for client, part in every.items() if len(part[0])}
    if not parts:
        raise UserError("No client has any sample.")
    _check_alike(parts)
    x, y, *attribute = (np.concatenate(column) for column in zip(*parts.values(), strict=True))
    owner = np.repeat(list(parts), [len(part[0]) for part in parts.values()])
    held = None if test is None else _columns(test, "the test set")
    return from_arrays(x, y, owner, attribute[0] if attribute else None, held, name, num_selected, mean, std)


def _columns(part: Any, whose: str) -> Columns:
    """Of a tuple `(x, y)` or `(x, y, attribute)`, or of a dataset that gives such a tuple for each sample."""
    given = isinstance(part, tuple)
    columns = [as_array(column, f"An array of {whose}") for column in part] if given else _read(part, whose)
    if len(columns) not in (2, 3) or any(column.ndim == 0 for column in columns):
        raise UserError(f"The samples of {whose} must be (x, y) or (x, y, attribute), arrays with a row a sample.")
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise UserError(f"The arrays of {whose} must have a row a sample, but have {lengths} rows.")
    return [as_samples(columns[0], f"x of {whose}"), *columns[1:]] if lengths[0] else columns


def _read(dataset: Any, whose: str) -> Columns:
    """All samples of a dataset such as PyTorch's, column by column."""
    if isinstance(dataset, Mapping) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise UserError(
            f"The samples of {whose} must be (x, y) or a dataset with a length, not {type(dataset).__name__}."
        )
    samples = [dataset[i] for i in range(len(dataset))]
    if any(not isinstance(sample, tuple | list) for sample in samples) or len({len(s) for s in samples}) > 1:
        raise UserError(
            f"The dataset of {whose} must give (x, y), or (x, y, attribute), for each sample; arrays are given as a"
            " tuple."
        )
    return [stack(values, whose) for values in zip(*samples, strict=True)] or [np.empty(0), np.empty(0)]


def _check_alike(parts: Mapping[str, Columns]) -> None:
    """Samples of one shape and kind, with attributes at all clients or at none."""
    kinds = {
        client: f"{x.dtype} of shape {x.shape[1:]}, {'with' if attribute else 'without'} an attribute"
        for client, (x, _, *attribute) in parts.items()
    }
    first = next(iter(kinds))
    for client, kind in kinds.items():
        if kind != kinds[first]:
            raise UserError(
                f"Clients' samples must be alike: those of '{first}' are {kinds[first]}, those of '{client}' {kind}."
            )
