"""How good estimated triplets are, compared with the truth. For evaluation only: nothing here decides anything."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feddiverse.heterogeneity import triplet

DIMENSIONS = ("ci", "ai", "sc")


def best_naming(confusion: NDArray[np.float64]) -> NDArray[np.int64]:
    """`rows` such that `confusion[rows]` has most on its diagonal: which estimated attribute is which true one."""
    from scipy.optimize import linear_sum_assignment  # half a second, which a run without estimates need not wait for

    estimated, true = linear_sum_assignment(confusion, maximize=True)
    rows: NDArray[np.int64] = estimated[np.argsort(true)]
    return rows


def attribute_accuracy(confusion: NDArray[np.float64] | None) -> float | None:
    """Share of samples whose attribute was read right, under the best one-to-one naming of [estimated, true]."""
    if confusion is None or confusion.sum() == 0:
        return None
    return float(np.trace(confusion[best_naming(confusion)]) / confusion.sum())


def correlation(estimated: ArrayLike, true: ArrayLike) -> float | None:
    """Pearson's r, or None where it is undefined because one side does not vary."""
    e, t = np.asarray(estimated, dtype=np.float64), np.asarray(true, dtype=np.float64)
    e, t = e - e.mean(), t - t.mean()
    norm = np.sqrt((e @ e) * (t @ t))
    # A spread of rounding errors is no spread.
    return None if norm < 1e-12 * len(e) else float(np.clip(e @ t / norm, -1, 1))


def compare(
    triplets: Mapping[int, ArrayLike], counts: NDArray[np.int64], confusion: NDArray[np.float64] | None = None
) -> dict[str, Any]:
    """Estimated triplets against those of the true `counts` [client, class, attribute], over the estimated clients.

    Gives `r` and `mae` (each `ci ai sc`), `attribute_accuracy`, and in `undefined` the reason for every None in `r`.
    """
    ids = sorted(triplets)
    estimated = np.array([triplets[k] for k in ids], dtype=np.float64).reshape(len(ids), 3)
    true = triplet(counts[ids]) if ids else np.empty((0, 3))
    r: dict[str, float | None] = dict.fromkeys(DIMENSIONS)
    mae: dict[str, float | None] = dict.fromkeys(DIMENSIONS)
    undefined = {}
    for i, name in enumerate(DIMENSIONS):
        if not ids:
            undefined[name] = "no client was estimated"
            continue
        mae[name] = float(np.abs(estimated[:, i] - true[:, i]).mean())
        r[name] = correlation(estimated[:, i], true[:, i])
        if r[name] is None:
            constant = "truth" if np.ptp(true[:, i]) < 1e-9 else "estimate"
            undefined[name] = f"the {constant} is the same for all clients"
    return {
        "r": r,
        "mae": mae,
        "attribute_accuracy": attribute_accuracy(confusion),
        "undefined": undefined,
        "truth": {k: t.tolist() for k, t in zip(ids, true, strict=True)},
    }
