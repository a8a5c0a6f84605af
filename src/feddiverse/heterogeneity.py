"""How skewed a federation is: six numbers in [0, 1], pure functions of count tables (paper, Sec. III-C).

A table `[class, attribute]` counts the samples of each group. Every function works on the last two axes, so one
call measures one client, all clients of a federation, or a million of them. For example:

>>> skewed = measure([[[90, 10], [10, 90]], [[90, 90], [10, 10]]])
>>> round(skewed.gsc, 3), round(skewed.csc, 3)
(0.119, 0.266)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feddiverse.errors import UserError

Array = NDArray[np.float64]

METRICS = ("gci", "gai", "gsc", "cci", "cai", "csc")


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

    `names` are what clients are called in complaints (else their positions).
    """
    tables = np.asarray(counts)
    if tables.ndim != 3 or 0 in tables.shape:
        raise UserError(f"A federation's counts must have the shape [client, class, attribute], not {tables.shape}.")
    tables = _checked(tables, names)
    clients = _triplet(tables)
    pooled = _triplet(tables.sum(axis=0))
    return Heterogeneity(*pooled.tolist(), *clients.mean(axis=0).tolist(), clients, tables.sum(axis=(1, 2)))


def class_imbalance(table: ArrayLike) -> Array:
    """CI, Eq. 1: one minus the entropy of the classes over its maximum; 0 for a single class."""
    return _imbalance(_checked(table).sum(axis=-1))


def attribute_imbalance(table: ArrayLike) -> Array:
    """AI, Eq. 2: one minus the entropy of the attribute over its maximum; 0 for a single attribute value."""
    return _imbalance(_checked(table).sum(axis=-2))


def spurious_correlation(table: ArrayLike) -> Array:
    """SC, Eq. 3: normalised mutual information of class and attribute; 0 when neither varies."""
    return _correlation(_checked(table))


def triplet(table: ArrayLike) -> Array:
    """The data heterogeneity triplet `[ci, ai, sc]` of each table, on a new last axis."""
    return _triplet(_checked(table))


def _triplet(tables: Array) -> Array:
    ci, ai = _imbalance(tables.sum(axis=-1)), _imbalance(tables.sum(axis=-2))
    return np.stack([ci, ai, _correlation(tables)], axis=-1)


def _imbalance(marginal: Array) -> Array:
    if marginal.shape[-1] == 1:
        return np.zeros(marginal.shape[:-1])
    return np.clip(1 - _entropy(marginal) / np.log(marginal.shape[-1]), 0, 1)


def _correlation(tables: Array) -> Array:
    rows, columns = tables.sum(axis=-1, keepdims=True), tables.sum(axis=-2, keepdims=True)
    total = rows.sum(axis=-2, keepdims=True)
    # n·N[y,a] / (N[y]·N[a]) is exactly 1 where class and attribute are independent: SC is then exactly 0.
    lift = np.divide(tables * total, rows * columns, out=np.ones_like(tables), where=tables > 0)
    information = (tables * np.log(lift)).sum(axis=(-2, -1)) / total[..., 0, 0]
    entropies = _entropy(rows[..., 0]) + _entropy(columns[..., 0, :])
    score = np.divide(2 * information, entropies, out=np.zeros_like(entropies), where=entropies > 0)
    return np.clip(score, 0, 1)


def _entropy(counts: Array) -> Array:
    """H in nats over the last axis, with 0·log 0 = 0."""
    total = counts.sum(axis=-1, keepdims=True)
    inverse = np.divide(total, counts, out=np.ones_like(counts), where=counts > 0)
    return np.asarray((counts * np.log(inverse)).sum(axis=-1) / total[..., 0])


def _checked(table: ArrayLike, names: Sequence[Any] | None = None) -> Array:
    """The tables as floats; refuses what is no table of counts, and says whose it is."""
    tables = np.asarray(table, dtype=np.float64)
    if tables.ndim < 2 or 0 in tables.shape[-2:]:
        raise UserError(f"A table of counts must have the axes [class, attribute], not the shape {tables.shape}.")
    flat = tables.reshape(-1, tables.shape[-2] * tables.shape[-1])
    for wrong, what in (
        (~np.isfinite(flat).all(axis=1), "a count that is not a finite number"),
        ((flat < 0).any(axis=1), "a negative count"),
        (~(flat > 0).any(axis=1), "no samples at all"),
    ):
        if wrong.any():
            position = int(wrong.argmax())
            who = f"Client {position if names is None else names[position]}" if tables.ndim > 2 else "The table"
            raise UserError(f"{who} has {what}.")
    return tables
