"""The few random draws selectors share. All work on sorted ids, so that no order of arrival can matter."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


def sorted_ids(clients: Mapping[int, int]) -> Ids:
    """The ids of `clients`, ascending."""
    return np.sort(np.fromiter(clients, np.int64, len(clients)))


def by_weight(ids: Ids, weights: Floats, k: int, rng: np.random.Generator) -> list[int]:
    """`k` different ids, drawn one after the other with probability proportional to the weights of those left.

    An exponential variable of rate w is the first of several to ring with probability w/Σw, and what is left after it
    is again such a race: the k smallest of Exp(1)/w are exactly k successive draws (Efraimidis and Spirakis, 2006).
    Ids of weight zero come last, in uniform order, so the number is right however few weights are positive.
    """
    waits = rng.exponential(size=len(ids))
    positive = weights > 0
    rings = waits / np.where(positive, weights, 1.0)
    return take(ids, np.lexsort((rings, ~positive)), k)


def lowest(ids: Ids, scores: Floats, k: int, rng: np.random.Generator) -> list[int]:
    """The `k` ids of the smallest scores; equal scores are ordered at random."""
    return take(ids, np.lexsort((rng.random(len(ids)), scores)), k)


def clipped(values: Floats, quantile: float) -> Floats:
    """Values above the `quantile` of them as that one of them; 1: as they are.

    Of n values the ⌈quantile·n⌉-th smallest is the largest that is left, so it is an honest one's as long as less than
    a share of 1 − `quantile` lie.
    """
    if not len(values) or quantile >= 1:
        return values
    place = max(0, int(np.ceil(quantile * len(values) - 1e-9)) - 1)
    limited: Floats = np.minimum(values, np.sort(values)[place])
    return limited


def one_of(candidates: NDArray[np.intp], rng: np.random.Generator) -> int:
    """One of `candidates`, uniformly."""
    return int(candidates[rng.integers(len(candidates))])


def take(ids: Ids, order: NDArray[np.intp], k: int) -> list[int]:
    """The first `k` of `ids` in `order`, as plain integers."""
    chosen: list[int] = ids[order[:k]].tolist()
    return chosen
