"""How skewed a federation is: six numbers in [0, 1], pure functions of count tables (paper, Sec. III-C).

A table `[class, attribute]` counts the samples of each group. Every function works on the last two axes, so one
call measures one client, all clients of a federation, or a million of them. For example:

>>> skewed = measure([[[90, 10], [10, 90]], [[90, 90], [10, 10]]])
>>> round(skewed.gsc, 3), round(skewed.csc, 3)
(0.156, 0.266)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feddiverse.errors import UserError

Array = NDArray[np.float64]
Counts = NDArray[np.int64]  # [client, class, attribute]

METRICS = ("gci", "gai", "gsc", "cci", "cai", "csc")
BLOCK = 2**15  # clients measured at once: their temporary arrays stay in the processor's cache


@dataclass(frozen=True)
class Heterogeneity:
    """The six federated metrics, and what they are made of: each client's triplet `[ci, ai, sc]` and size."""

    gci: float
    gai: float
    gsc: float
    cci: float
    cai: float
    csc: float
    clients: Array  # [K, 3]
    sizes: Array  # [K]

    @property
    def six(self) -> Array:
        """The metrics as one vector, in the order of `METRICS`."""
        return np.array([getattr(self, name) for name in METRICS])


def measure(counts: ArrayLike, names: Sequence[Any] | None = None) -> Heterogeneity:
    """The six metrics of `counts [client, class, attribute]`: of the pooled table, and means over clients.

    `names` are what clients are called in messages (else their positions).

    >>> round(measure([[[90, 10], [10, 90]], [[50, 50], [50, 50]]]).csc, 3)
    0.266
    """
    shape = np.shape(counts)
    if len(shape) != 3 or 0 in shape:
        raise UserError(f"A federation's counts must have the shape [client, class, attribute], not {shape}.")
    tables = _checked(counts, names)
    clients = np.concatenate([_triplet(tables[..., i : i + BLOCK]) for i in range(0, shape[0], BLOCK)])
    six = [*_triplet(tables.sum(axis=-1)).tolist(), *clients.mean(axis=0).tolist()]
    return Heterogeneity(**dict(zip(METRICS, six, strict=True)), clients=clients, sizes=tables.sum(axis=(0, 1)))


def class_imbalance(table: ArrayLike) -> Array:
    """CI, Eq. 2: one minus the entropy of the classes over its maximum; 0 for a single class.

    >>> round(float(class_imbalance([[90, 90], [10, 10]])), 3)
    0.531
    """
    return _imbalance(_checked(table).sum(axis=1))


def attribute_imbalance(table: ArrayLike) -> Array:
    """AI, Eq. 3: one minus the entropy of the attribute over its maximum; 0 for a single attribute value.

    >>> round(float(attribute_imbalance([[90, 10], [90, 10]])), 3)
    0.531
    """
    return _imbalance(_checked(table).sum(axis=0))


def spurious_correlation(table: ArrayLike) -> Array:
    """SC, Eq. 4: normalised mutual information of class and attribute; 0 when neither varies.

    >>> round(float(spurious_correlation([[90, 10], [10, 90]])), 3)
    0.531
    """
    return _correlation(_checked(table))


def triplet(table: ArrayLike) -> Array:
    """The data heterogeneity triplet `[ci, ai, sc]` of each table, on a new last axis.

    >>> triplet([[90, 10], [10, 90]]).round(3).tolist()
    [0.0, 0.0, 0.531]
    """
    return _triplet(_checked(table))


# From here on tables are `[class, attribute, ...]`: sums over the two short axes are quick when these come first.


def _triplet(tables: Array) -> Array:
    ci, ai = _imbalance(tables.sum(axis=1)), _imbalance(tables.sum(axis=0))
    return np.stack([ci, ai, _correlation(tables)], axis=-1)


def _imbalance(marginal: Array) -> Array:
    if len(marginal) == 1:
        return np.zeros(marginal.shape[1:])
    return _unit(1 - _entropy(marginal) / np.log(len(marginal)))


def _correlation(tables: Array) -> Array:
    rows, columns = tables.sum(axis=1), tables.sum(axis=0)
    total = rows.sum(axis=0)
    present = tables > 0
    # n·N[y,a] / (N[y]·N[a]) is exactly 1 where class and attribute are independent: SC is then exactly 0.
    lift = np.where(present, tables * total, 1) / np.where(present, rows[:, None] * columns, 1)
    information = (tables * np.log(lift)).sum(axis=(0, 1)) / total
    entropies = _entropy(rows) + _entropy(columns)
    return _unit(2 * information / np.where(entropies > 0, entropies, 1))


def _entropy(counts: Array) -> Array:
    """H in nats over the first axis, with 0·log 0 = 0."""
    total = counts.sum(axis=0)
    inverse = np.where(counts > 0, total, 1) / np.where(counts > 0, counts, 1)
    return np.asarray((counts * np.log(inverse)).sum(axis=0) / total)


def _unit(scores: Array) -> Array:
    """Scores without the rounding error that can carry them just out of [0, 1]."""
    return np.asarray(np.clip(scores, 0, 1))


def _checked(table: ArrayLike, names: Sequence[Any] | None = None) -> Array:
    """`[..., class, attribute]` as floats `[class, attribute, ...]`; what is no table of counts is refused by name."""
    given = np.asarray(table)
    if given.ndim < 2 or 0 in given.shape[-2:]:
        raise UserError(f"A table of counts must have the axes [class, attribute], not the shape {given.shape}.")
    tables = np.ascontiguousarray(np.moveaxis(given, (-2, -1), (0, 1)), dtype=np.float64)
    total = tables.sum(axis=(0, 1))
    for wrong, what in (
        (~np.isfinite(total), "a count that is not a finite number"),
        (tables.min(axis=(0, 1)) < 0, "a negative count"),
        (total == 0, "no samples at all"),
    ):
        if wrong.any():
            position = int(wrong.argmax())
            who = f"Client {position if names is None else names[position]}" if given.ndim > 2 else "The table"
            raise UserError(f"{who} has {what}.")
    return tables
