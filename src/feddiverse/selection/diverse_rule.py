"""FedDiverse's rule exactly as the paper writes it (Sec. IV-B): the reference for `diverse_pool`, which is faster."""

import numpy as np
from numpy.typing import NDArray

from feddiverse.selection.draws import one_of
from feddiverse.selection.extremes import TIE, Floats, farthest
from feddiverse.selection.lottery import draw, tickets

LEADING = (2, 0, 1)  # which of [CI, AI, SC] leads a group of three: SC, then CI, then AI, and SC again


def normalise(triplets: Floats) -> Floats:
    """Δ̲ [K, 3]: every triplet divided by its sum; a zero triplet stays zero, and so complements any other."""
    triplets = np.asfortranarray(triplets)  # one dimension at a time is read, by the million
    sums = triplets.sum(axis=1, keepdims=True)
    normalised: Floats = np.divide(triplets, sums, out=np.zeros_like(triplets), where=sums > 0)
    return normalised


def choose_as_written(triplets: Floats, k: int, rng: np.random.Generator) -> list[int]:
    """Sec. IV-B, step by step: `k` positions of `triplets` [K, 3], each a [CI, AI, SC], in the order they are picked.

    Where the paper's rule says nothing, one of those left is drawn uniformly: all values of the leading dimension are
    zero; the triplet of k_p is zero; the cross product vanishes; several clients are equally good.
    """
    normalised = normalise(triplets)
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


def _best(normalised: Floats, direction: Floats, left: NDArray[np.bool_]) -> NDArray[np.intp]:
    return np.flatnonzero(left) if vanishes(direction) else farthest(normalised, direction, left)


def vanishes(direction: Floats) -> bool:
    """No direction at all, but for rounding."""
    return bool(np.abs(direction).max() <= TIE)
