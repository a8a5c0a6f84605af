"""FedDiverse's rule exactly as the paper writes it (Sec. IV-B): the reference for `feddiverse_pool`, which is faster.

Weights of a draw are whole numbers of tickets, and ties are values within `TIE`: so both ways, which sum in different
orders, choose the same client.
"""

import numpy as np
from numpy.typing import NDArray

from feddiverse.selection.draws import Floats, one_of

LEADING = (2, 0, 1)  # which of [CI, AI, SC] leads a group of three: SC, then CI, then AI, and SC again
TIE = 1e-12  # values this close are equal: equal matrices in another order round differently
TICKETS = 2**32  # of a weight of one; sums of a billion clients still fit 64 bits


def normalise(triplets: Floats, smoothing: float = 0.0) -> Floats:
    """Δ̲ [K, 3]: every triplet divided by its sum; a zero triplet stays zero, and so complements any other.

    With `smoothing` ε (not the paper's) Δ̲ = (Δ + ε)/(‖Δ‖₁ + 3ε), and a zero triplet is as near to every kind.
    """
    triplets = np.asfortranarray(triplets + smoothing)  # one dimension at a time is read, by the million
    sums = triplets.sum(axis=1, keepdims=True)
    normalised: Floats = np.divide(triplets, sums, out=np.zeros_like(triplets), where=sums > 0)
    return normalised


def choose_as_written(triplets: Floats, k: int, rng: np.random.Generator, smoothing: float = 0.0) -> list[int]:
    """Sec. IV-B, step by step: `k` positions of `triplets` [K, 3], each a [CI, AI, SC], in the order they are picked.

    Where the paper's rule says nothing, one of those left is drawn uniformly: all values of the leading dimension are
    zero; the triplet of k_p is zero; the cross product vanishes; several clients are equally good.
    `smoothing`: see `normalise`; 0 is the paper's rule.
    """
    normalised = normalise(triplets, smoothing)
    weights = tickets(np.asfortranarray(triplets))
    left = np.ones(len(triplets), bool)
    chosen: list[int] = []
    for pick in range(min(k, len(triplets))):
        group, step = divmod(pick, 3)
        if step == 0:  # 1. probabilistic: p = Δ_i / ‖Δ_i‖₁ over those left, i the leading dimension
            p = weights[:, LEADING[group % 3]]
            candidate = draw(p if p.any() else left.astype(np.int64), rng)
        elif step == 1:  # 2. complementary: k_c = argmin ⟨Δ̲^{k_p}, Δ̲^k⟩
            candidate = one_of(_best(normalised, -normalised[chosen[-1]], left), rng)
        else:  # 3. orthogonal: k_r = argmax ⟨Δ̲^{k_p} × Δ̲^{k_c}, Δ̲^k⟩
            across = np.cross(normalised[chosen[-2]], normalised[chosen[-1]])
            candidate = one_of(_best(normalised, across, left), rng)
        chosen.append(candidate)
        left[candidate] = False
        weights[candidate] = 0
    return chosen


RELEASED_TIE = 1e-6


def choose_as_released(triplets: Floats, k: int, rng: np.random.Generator) -> list[int]:
    """The rule of the paper's released code (SpuriousFL, `select_noreplacement`), which is not that of its text:

    - before each group of three every dimension is divided by its sum over clients, then every client's triplet by its
      length (not by its sum); what that made of the triplets is what the next group starts from;
    - the order of dimensions is shuffled in each call, and turned by one place after each group.

    Undefined cases as in `choose_as_written`; a number that is no multiple of three ends within a group.
    """
    current = triplets[:, rng.permutation(3)]
    left = np.ones(len(triplets), bool)
    chosen: list[int] = []
    for pick in range(min(k, len(triplets))):
        step = pick % 3
        if step == 0:
            sums = current.sum(axis=0)
            current = np.divide(current, sums, out=np.zeros_like(current), where=sums > 0)
            weights = current[:, 0] * left
            candidate = draw(tickets(weights / weights.max()) if weights.any() else left.astype(np.int64), rng)
            lengths = np.linalg.norm(current, axis=1, keepdims=True)
            current = np.divide(current, lengths, out=np.zeros_like(current), where=lengths > 0)
            first = current[candidate].copy()
        elif step == 1:
            candidate = one_of(_best(current, -first, left, RELEASED_TIE), rng)
            second = current[candidate].copy()
        else:
            candidate = one_of(_best(current, np.cross(first, second), left, RELEASED_TIE), rng)
        chosen.append(candidate)
        left[candidate] = False
        current[candidate] = 0.0
        if step == 2:
            current = current[:, [2, 0, 1]]
    return chosen


def _best(normalised: Floats, direction: Floats, left: NDArray[np.bool_], tie: float = TIE) -> NDArray[np.intp]:
    return np.flatnonzero(left) if vanishes(direction) else farthest(normalised, direction, left, tie)


def vanishes(direction: Floats) -> bool:
    """No direction at all, but for rounding."""
    return bool(np.abs(direction).max() <= TIE)


def along(points: Floats, direction: Floats) -> Floats:
    """⟨points [n, 3], direction [3]⟩, summed in one order for every row (a BLAS product would not promise that)."""
    values: Floats = points[:, 0] * direction[0] + points[:, 1] * direction[1] + points[:, 2] * direction[2]
    return values


def farthest(points: Floats, direction: Floats, left: NDArray[np.bool_], tie: float = TIE) -> NDArray[np.intp]:
    """Positions of all points `left` at which ⟨point, direction⟩ is largest, ascending: the plain scan."""
    values = np.where(left, along(points, direction), -np.inf)
    return np.flatnonzero(values >= values.max() - tie)


def tickets(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Weights in [0, 1] as whole numbers of tickets: whole numbers add up to the same sum in any order."""
    counts: NDArray[np.int64] = np.rint(weights * TICKETS).astype(np.int64)
    return counts


def draw(counts: NDArray[np.int64], rng: np.random.Generator) -> int:
    """The position that holds the winning ticket; some count must be positive."""
    ends = np.cumsum(counts)
    return int(np.searchsorted(ends, rng.integers(ends[-1]), side="right"))
