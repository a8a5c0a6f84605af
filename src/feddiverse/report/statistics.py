"""What may be said from a few seeds: mean and deviation, paired differences with an interval, rounds needed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

DEVIATION_RULE = "standard deviation over seeds with n − 1"
CONFIDENCE = 0.95
POWER = 0.8
FEWEST_SEEDS = 3  # with two, a t interval is twelve standard errors wide each way


@dataclass(frozen=True)
class Spread:
    """Mean over seeds and standard deviation with n − 1 (None for a single seed: it has none)."""

    mean: float
    sd: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean paired difference with its t interval, and how likely chance alone makes one as large (None for a single
    pair)."""

    mean: float
    low: float | None
    high: float | None
    n: int
    p: float | None = None

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Reached:
    """Mean first time (a round, or seconds) at which a level was reached, over the seeds that reached it."""

    mean: float | None
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
    error = float(stats.sem(differences))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, n - 1)) if error else float(mean == 0)
    return Difference(mean, mean - half, mean + half, n, p)


def stay_sure(differences: Iterable[Difference | None]) -> set[int]:
    """Which of many comparisons, by their place, stay beyond the noise when corrected for how many they are (Holm).

    Of twenty intervals at 95 % one leaves zero out by luck; of these sets, one in twenty holds any that does.
    Comparisons of too few seeds are left out of account.
    """
    found = [
        (difference.p, place)
        for place, difference in enumerate(differences)
        if difference is not None and difference.p is not None and difference.n >= FEWEST_SEEDS
    ]
    sure: set[int] = set()
    for rank, (p, place) in enumerate(sorted(found)):
        if p > (1 - CONFIDENCE) / (len(found) - rank):
            break
        sure.add(place)
    return sure


def seeds_needed(difference: Difference, most: int = 100) -> int | None:
    """With how many seeds four intervals in five would leave zero out, were mean and spread as they seem; None: more
    than `most`. A rough guide, since both are themselves estimated from few seeds.
    """
    from scipy import stats

    if difference.low is None or difference.high is None:
        return None
    half, n = (difference.high - difference.low) / 2, difference.n
    sd = half * np.sqrt(n) / stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)
    numbers = np.arange(2, most + 1)
    errors = stats.t.ppf((1 + CONFIDENCE) / 2, numbers - 1) + stats.t.ppf(POWER, numbers - 1)
    enough = numbers[errors * sd / np.sqrt(numbers) < abs(difference.mean)]
    return int(enough[0]) if len(enough) else None


def first_reached(times: ArrayLike, accuracy: ArrayLike, level: float) -> float | None:
    """The first of `times` (rounds or seconds of evaluations) with accuracy ≥ `level`."""
    hits = np.asarray(times)[np.asarray(accuracy) >= level]
    return float(hits[0]) if len(hits) else None


def time_to_reach(curves: Sequence[tuple[ArrayLike, ArrayLike]], level: float) -> Reached:
    """When each curve (times, accuracy) first reaches `level`; the mean over those that do."""
    firsts = [first for times, accuracy in curves if (first := first_reached(times, accuracy, level)) is not None]
    return Reached(float(np.mean(firsts)) if firsts else None, len(firsts), len(curves))


def signed(value: float, digits: int = 2) -> str:
    """With a sign, the minus being a minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def in_points(difference: Difference) -> str:
    """`+8.6 points (−0.3 to +17.5, 3 seeds)`; fewer seeds than say something have no interval."""
    mean, seeds = f"{signed(100 * difference.mean, 1)} points", f"{difference.n} seed{'s' if difference.n > 1 else ''}"
    if difference.low is None or difference.high is None or difference.n < FEWEST_SEEDS:
        return f"{mean} ({seeds})"
    return f"{mean} ({signed(100 * difference.low, 1)} to {signed(100 * difference.high, 1)}, {seeds})"


def percent(spread: Spread) -> str:
    """`94.01 ± 0.98`, in percent as in the paper; a single seed has no deviation."""
    mean = f"{100 * spread.mean:.2f}"
    return mean if spread.sd is None else f"{mean} ± {100 * spread.sd:.2f}"


def points(difference: Difference) -> str:
    """`+2.1 [+0.3, +3.9]`: percentage points with their interval, where there are seeds enough for one."""
    mean = signed(100 * difference.mean)
    if difference.low is None or difference.high is None or difference.n < FEWEST_SEEDS:
        return f"{mean} ({difference.n} seed{'s' if difference.n > 1 else ''})"
    return f"{mean} [{signed(100 * difference.low)}, {signed(100 * difference.high)}]"
