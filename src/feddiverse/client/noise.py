"""Differential privacy where a number leaves a client: noise on counts, clipping and noise on updates (docs/trust.md).

How many samples a client has is known to the server anyway. So the neighbours that must not be told apart are two data
sets of the same size that differ in one sample (counts), or in all of a client's samples (updates).
"""

import os

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from feddiverse import seeding
from feddiverse.data.federation import Samples
from feddiverse.messages import Counted, Task, Train, Vector

Floats = NDArray[np.float64]

REPLACED = 2.0
"""How far apart two tables can be, summed over cells, that differ in one sample: one less here, one more there."""


def private_counts(task: Counted, counts: Floats, client: int, samples: Samples, which: str = "") -> Floats:
    """Counts with noise that makes them `task.epsilon`-differentially private, then the nearest counts that so many
    samples can have. As they are where it is 0. `which`: one noise for each table of an answer."""
    if not task.epsilon:
        return counts
    u = _uniform(task, f"noise of counts {which}".rstrip(), client, 2 * counts.size, samples)
    noisy = counts + discrete_laplace(u, REPLACED / task.epsilon).reshape(counts.shape)
    return possible(noisy, len(samples), all_counted=which != "sure")


def private_update(task: Train, update: Vector, client: int, samples: Samples) -> Vector:
    """An update cut to the length `task.clip`, with Gaussian noise of `task.noise` times that on each number."""
    length = float(np.linalg.norm(update.astype(np.float64)))
    scale = min(1.0, task.clip / length) if length else 1.0
    changed = scale * update.astype(np.float64)
    if task.noise:
        changed += task.noise * task.clip * ndtri(_uniform(task, "noise of updates", client, update.size, samples))
    return changed.astype(np.float32)


def discrete_laplace(u: Floats, scale: float) -> Floats:
    """Whole numbers k with probability in proportion to exp(−|k|/scale): differences of two geometric ones.

    `u`: two uniform numbers for each.
    """
    first, second = np.floor(-scale * np.log(u)).reshape(2, -1)
    return np.asarray(first - second)


def possible(noisy: Floats, num_samples: int, all_counted: bool = True) -> Floats:
    """The nearest table of whole counts, none negative, of `num_samples` samples (or fewer, unless `all_counted`).

    It sees the noisy table only, so it costs no privacy.
    """
    counts = np.maximum(noisy.ravel(), 0)
    if all_counted or counts.sum() > num_samples:
        counts = _on_simplex(noisy.ravel(), num_samples)
    whole = np.floor(counts + 1e-9)
    missing = round(counts.sum() - whole.sum())
    whole[np.argsort(whole - counts, kind="stable")[:missing]] += 1  # largest remainders
    return whole.reshape(noisy.shape)


def _on_simplex(x: Floats, total: float) -> Floats:
    """The nearest point with nothing negative and this sum: all numbers less the same, those below zero as zero."""
    falling = np.sort(x)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, x.size + 1)
    return np.asarray(np.maximum(x - excess[np.flatnonzero(falling > excess)[-1]], 0))


def _uniform(task: Task, purpose: str, client: int, size: int, samples: Samples) -> Floats:
    """Uniform numbers in (0, 1): of the operating system's secret randomness, or of the run's seed."""
    if samples.secret_noise:
        words = np.frombuffer(os.urandom(8 * size), np.uint64)
    else:
        words = seeding.rng(task.seed, purpose, task.round, client).integers(2**64, size=size, dtype=np.uint64)
    return np.asarray((words >> np.uint64(11)) + 0.5, np.float64) * 2.0**-53
