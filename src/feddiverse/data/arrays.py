"""Arrays in memory as a federation: the user's own samples, labels and clients, whatever they are called."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feddiverse.data.federation import Federation, Ids, Source
from feddiverse.errors import UserError, as_text

NUM_SELECTED = 9  # the paper's; fewer where there are fewer clients


@dataclass
class ArraySource:
    """A source whose samples lie in memory."""

    name: str
    classes: tuple[Any, ...]  # as they were given
    class_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    shape: tuple[int, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    x: NDArray[Any]
    train_y: Ids
    train_a: Ids | None
    held_x: NDArray[Any]
    test_y: Ids
    test_a: Ids
    fingerprint: str

    def train_x(self, ids: Ids, a: Ids) -> NDArray[Any]:
        return np.asarray(self.x[ids])

    def test_x(self, ids: Ids, a: Ids) -> NDArray[Any]:
        return np.asarray(self.held_x[ids])


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    client: ArrayLike,
    attribute: ArrayLike | None,
    test: Sequence[ArrayLike] | None,
    name: str,
    num_selected: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> Federation:
    """`Federation.from_arrays`, which says what each argument is."""
    samples = as_samples(x, "x")
    labels, clients = (_column(values, what, len(samples)) for values, what in ((y, "y"), (client, "client")))
    classes, train_y = encode(labels)
    client_names, owner = _named(clients)
    class_names = tuple(map(str, classes))
    held = list(test) if test is not None else [samples[:0], labels[:0]]
    if len(held) not in (2, 3):
        raise UserError(f"test must be (x, y) or (x, y, attribute), not {len(held)} arrays.")
    held_x = as_samples(held[0], "the test set's x")
    if held_x.shape[1:] != samples.shape[1:]:
        raise UserError(f"The test set's samples have the shape {held_x.shape[1:]}, those of x {samples.shape[1:]}.")
    test_y = _among(class_names, _column(held[1], "the test set's y", len(held_x)), "class")
    train_a, test_a, attribute_names = _attributes(attribute, held[2] if len(held) == 3 else None, len(samples), held_x)
    known = attribute is not None
    source = ArraySource(
        name, classes, class_names, attribute_names, samples.shape[1:], *_normalisation(samples, mean, std), samples,
        train_y, train_a if known else None, held_x, test_y, test_a,
        fingerprint(samples, train_y, train_a, held_x, test_y, test_a),
    )  # fmt: skip
    return by_owner(name, source, client_names, owner, num_selected or NUM_SELECTED, known)


def by_owner(
    name: str, source: Source, names: tuple[str, ...], owner: Ids, num_selected: int, attributes_known: bool
) -> Federation:
    """The federation in which sample i of the source's train pool belongs to the client `names[owner[i]]`."""
    y = source.train_y
    a = source.train_a if attributes_known and source.train_a is not None else np.zeros_like(y)
    num_attributes = len(source.attribute_names) if attributes_known else 1
    counts = np.zeros((len(names), len(source.class_names), num_attributes), np.int64)
    np.add.at(counts, (owner, y, a), 1)
    ids = np.split(np.lexsort((a, y, owner)), np.cumsum(counts.sum(axis=(1, 2)))[:-1])
    return Federation(
        name, source, counts, min(num_selected, len(names)), ids, [a[part] for part in ids],
        np.arange(len(source.test_y)), names, attributes_known,
    )  # fmt: skip


def as_array(values: Any, what: str) -> NDArray[Any]:
    """What a user gave as an array: a list, a picture, an array, or a tensor of PyTorch's on whatever device."""
    try:
        if hasattr(values, "detach"):
            tensor = values.detach().cpu()
            # NumPy has no bfloat16
            values = tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{what} cannot be read as an array ({as_text(f'{type(error).__name__}: {error}')}): give one row a sample,"
            " all of one shape."
        ) from error


def as_samples(x: ArrayLike, what: str = "x") -> NDArray[Any]:
    """Samples as a model takes them: uint8 pictures with the channels first, anything else as float32."""
    values = as_array(x, what)
    if values.ndim < 2:
        raise UserError(f"{what} must have the shape [n, …], one row a sample, not {values.shape}.")
    if values.dtype != np.uint8:
        if not np.issubdtype(values.dtype, np.number) or np.issubdtype(values.dtype, np.complexfloating):
            raise UserError(f"{what} must hold numbers, not {values.dtype}.")
        values = values.astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))[0])
            raise UserError(f"{what} has a number that is not finite in row {row}; leave that sample out or mend it.")
        return values
    if values.ndim == 3:
        return values[:, None]
    if values.ndim == 4 and values.shape[1] not in (1, 3) and values.shape[3] in (1, 3):
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    return values


def stack(values: Iterable[Any], whose: str) -> NDArray[Any]:
    """Pictures, tensors or numbers, all of one shape, as one array."""
    arrays = [as_array(value, f"A sample of {whose}") for value in values]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise UserError(
            f"The samples of {whose} have different shapes, such as {shapes[0]} and {shapes[1]}: bring them to one size"
            " first."
        )
    return np.stack(arrays)


def encode(values: NDArray[Any]) -> tuple[tuple[Any, ...], Ids]:
    """The different values in order (texts that are all numbers, by value), and the place of each among them."""
    if values.dtype.kind in "OUS":
        texts = [str(value) for value in values.tolist()]
        numeric = all(text.isdecimal() for text in texts)
        names = sorted(set(texts), key=lambda text: (int(text), text) if numeric else (0, text))
        place = {text: i for i, text in enumerate(names)}
        return tuple(names), np.array([place[text] for text in texts], np.int64)
    distinct, places = np.unique(values, return_inverse=True)
    return tuple(distinct.tolist()), places.astype(np.int64)


def _named(values: NDArray[Any]) -> tuple[tuple[str, ...], Ids]:
    distinct, places = encode(values)
    return tuple(map(str, distinct)), places


def _column(values: ArrayLike, what: str, length: int) -> NDArray[Any]:
    column = as_array(values, what)
    if column.shape != (length,):
        raise UserError(f"{what} must have one value a sample, [{length}], not the shape {column.shape}.")
    return column


def _among(names: tuple[str, ...], values: NDArray[Any], what: str) -> Ids:
    """The place of each value among `names`."""
    place = {name: i for i, name in enumerate(names)}
    texts = [str(value) for value in values.tolist()]
    if unknown := next((text for text in texts if text not in place), None):
        raise UserError(f"The test set has the {what} '{unknown}', which no training sample has.")
    return np.array([place[text] for text in texts], np.int64)


def _attributes(
    train: ArrayLike | None, test: ArrayLike | None, num_train: int, held_x: NDArray[Any]
) -> tuple[Ids, Ids, tuple[str, ...]]:
    """Attributes of training and test samples, and their names. What is not known is 0, and has no name."""
    unknown, no_test = np.zeros(num_train, np.int64), np.zeros(len(held_x), np.int64)
    if train is None and test is None:
        return unknown, no_test, ()
    if train is None:
        assert test is not None
        names, test_a = _named(_column(test, "the test set's attribute", len(held_x)))
        return unknown, test_a, names
    names, train_a = _named(_column(train, "attribute", num_train))
    if test is None:
        if len(held_x) and len(names) > 1:
            raise UserError(
                "The training samples have attributes, the test samples have none: give test=(x, y, attribute), or"
                " leave attribute out."
            )
        return train_a, no_test, names
    return train_a, _among(names, _column(test, "the test set's attribute", len(held_x)), "attribute"), names


def _normalisation(
    x: NDArray[Any], mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    if x.dtype != np.uint8:
        if mean is not None or std is not None:
            raise UserError("mean and std normalise pictures (uint8); floats are taken as they are.")
        return None, None
    channels = x.shape[1]
    given = [(0.5,) * channels if values is None else tuple(map(float, values)) for values in (mean, std)]
    if any(len(values) != channels for values in given) or min(given[1]) <= 0:
        raise UserError(f"mean and std need one number a channel, {channels} each, and std must be positive.")
    return given[0], given[1]


def fingerprint(*arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
