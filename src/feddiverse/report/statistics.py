"""What may be said from a few seeds: mean and deviation, paired differences with an interval, rounds needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

DEVIATION_RULE = "standard deviation over seeds with n − 1"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """Mean over seeds and standard deviation with n − 1 (None for a single seed: it has none)."""

    mean: float
    sd: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean paired difference with its t interval (None for a single pair)."""

    mean: float
    low: float | None
    high: float | None
    n: int

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Reached:
    """Mean first round at which a level was reached, over the seeds that reached it."""

    rounds: float | None
    reached: int
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Mean ± standard deviation (n − 1)."""
    array = np.asarray(values, dtype=np.float64)
    return Spread(float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None, len(array))


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """`ours − theirs`, paired by seed: runs of one seed share split, batches and start, so pairing removes that noise.

    The interval is Student's t for the mean of the paired differences, at 95 %. It assumes about normal
    differences; with three seeds it is wide, and that is what three seeds can tell.
    """
    from scipy import stats

    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    differences = np.array([ours[s] - theirs[s] for s in seeds])
    mean, n = float(differences.mean()), len(differences)
    if n == 1:
        return Difference(mean, None, None, 1)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * stats.sem(differences))
    return Difference(mean, mean - half, mean + half, n)


def rounds_to_reach(curves: Sequence[tuple[ArrayLike, ArrayLike]], level: float) -> Reached:
    """First evaluated round with accuracy ≥ `level`, per curve (rounds, accuracy); the mean over those that do."""
    firsts = []
    for rounds, accuracy in curves:
        hits = np.asarray(rounds)[np.asarray(accuracy) >= level]
        if len(hits):
            firsts.append(float(hits[0]))
    return Reached(float(np.mean(firsts)) if firsts else None, len(firsts), len(curves))
