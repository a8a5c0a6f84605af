"""HCSFed's compression of a local update (Song et al. 2023, "Fast heterogeneous federated learning with hybrid client
selection"): the numbers of θ_k − θ are clustered by one-dimensional k-means, and the centres are what is sent."""

import numpy as np
from numpy.typing import NDArray

from feddiverse.messages import Sketch, Vector

MAX_ITERATIONS = 100
TOLERANCE = 1e-4  # of the update's deviation


def compress(update: Vector, task: Sketch) -> Vector:
    """θ_k − θ → its `rate`·|θ| cluster centres (two at least), in ascending order."""
    return centres(update, task.length(update.size)).astype(np.float32)


def centres(values: NDArray[np.float32], num_centres: int) -> NDArray[np.float64]:
    """Lloyd's k-means of numbers on a line, [n] → [num_centres], ascending.

    Centres start at evenly spaced quantiles instead of at random numbers and stay in order, so that the same position
    means the same part of the update on every client; the released code leaves both to chance.
    On a sorted line a cluster is an interval: one search for its ends and a difference of running sums give its mean.
    """
    ordered = np.sort(values).astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    found: NDArray[np.float64] = np.quantile(ordered, (np.arange(num_centres) + 0.5) / num_centres)
    for _ in range(MAX_ITERATIONS):
        ends = np.searchsorted(ordered, (found[:-1] + found[1:]) / 2)
        edges = np.concatenate([[0], ends, [ordered.size]])
        sizes = np.diff(edges)
        means = np.where(sizes > 0, np.diff(sums[edges]) / np.maximum(sizes, 1), found)
        moved = float(np.abs(means - found).max())
        found = means
        if moved <= TOLERANCE * float(ordered.std()):
            break
    return found
