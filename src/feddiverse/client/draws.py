"""Which samples a client draws for an epoch, where every hidden group shall count equally (docs/rebalance.md).

A client reads the attribute of its own samples once (`AttributeTriplet`) and, if asked to, remembers it: what it
remembers never leaves it.
"""

import numpy as np
from numpy.typing import NDArray

from feddiverse import seeding
from feddiverse.data.federation import Ids, Samples
from feddiverse.messages import Train

ATTRIBUTE, CONFIDENCE, COORDINATES = "attribute", "confidence", "coordinates"
"""What a client remembers of its samples once it has read them: the likeliest attribute, its posterior, and where along
the directions they lie."""


def remember(samples: Samples, posterior: NDArray[np.float64], coordinates: NDArray[np.float64]) -> None:
    """Keep what was read: from the posterior [n, A], and the coordinates [n, q] it was read off."""
    samples.memory[ATTRIBUTE] = posterior.argmax(axis=1)
    samples.memory[CONFIDENCE] = posterior.max(axis=1)
    samples.memory[COORDINATES] = coordinates.astype(np.float32)


def remember_truth(samples: Samples) -> None:
    """Keep the true attributes in place of a reading: an upper bound for experiments."""
    assert samples.a is not None
    samples.memory[ATTRIBUTE] = samples.a
    samples.memory[CONFIDENCE] = np.ones(len(samples))


class Unread(Exception):
    """The client is asked for what it can only say once it has read its attributes."""


def remembered(samples: Samples) -> tuple[Ids, NDArray[np.float64]]:
    """The attribute of each sample as it was read, [n], and how sure that is, [n]."""
    if ATTRIBUTE not in samples.memory or len(samples.memory[ATTRIBUTE]) != len(samples):
        raise Unread("it has not read its attributes: they must be asked for first")
    return samples.memory[ATTRIBUTE], samples.memory[CONFIDENCE]


def sample_weights(samples: Samples, weights: NDArray[np.float32], confidence: float) -> NDArray[np.float64]:
    """[n]: the weight of each sample's group [Y, A]; 0 for one whose attribute is not sure enough."""
    attribute, sure = remembered(samples)
    return np.where(sure >= confidence, weights.astype(np.float64)[samples.y, attribute], 0.0)


def is_aside(samples: Samples, share: float, seed: int, client: int) -> NDArray[np.bool_]:
    """[n]: whether a sample is set aside: a share of those of each class, by lot, the same in every round."""
    rng = seeding.rng(seed, "set aside", client=client)
    aside = np.zeros(len(samples), bool)
    for label in np.unique(samples.y):
        of_class = rng.permutation(np.flatnonzero(samples.y == label))
        aside[of_class[: int(share * len(of_class) + rng.random())]] = True
    return aside


def epoch(task: Train, client: int, samples: Samples, rng: np.random.Generator) -> Ids:
    """The samples of one epoch, in their order: each once, or drawn by group; none that is set aside."""
    there = np.arange(len(samples))
    if task.set_aside:
        left = np.flatnonzero(~is_aside(samples, task.set_aside, task.seed, client))
        there = left if len(left) else there  # a client of one sample trains on it
    return balanced_epoch(task, samples, there, rng) if task.draw.size else rng.permutation(there)


def balanced_epoch(task: Train, samples: Samples, there: Ids, rng: np.random.Generator) -> Ids:
    """As many samples as the client has, of those `there`, in random order, in proportion to their groups' weights.

    Systematic draws: a sample of weight w is drawn ⌊wn⌋ or ⌈wn⌉ times, never by luck more often. A client without any
    sure sample, or only of groups without weight, takes all of them once.
    """
    weights = sample_weights(samples, task.draw, task.draw_confidence)[there]
    n = len(samples)
    if not weights.any():
        return rng.permutation(there)
    ends = np.cumsum(weights) / weights.sum()
    places = np.searchsorted(ends, (np.arange(n) + rng.random()) / n, side="right")
    return rng.permutation(there[np.minimum(places, len(there) - 1)])
