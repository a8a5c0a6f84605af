"""Every hidden group counts equally: the server's side, all from sums over clients (docs/rebalance.md).

A *group* is a class with an attribute value as the consensus estimator reads it; nobody labelled it. `calibrate` finds
by which weights clients draw their samples so that all groups are drawn equally often; `BalancedSums` holds what is
needed to solve the last layer anew, in closed form, with every group of the same weight.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from feddiverse import secagg
from feddiverse.messages import Vector

Floats = NDArray[np.float64]

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""λ to choose from, in units of a standardised feature's variance."""
NUM_FOLDS = 5
FEWEST = secagg.FEWEST + 1  # clients of a fold: one of them may be lost, and a secure sum still be made
ITERATIONS = 500
ROUNDING = 1e-5  # of the trace: what sums in 32-bit numbers may miss being positive semi-definite by
LEAST_SPREAD = 1e-3  # of the widest feature's deviation: what varies less is noise, and is not blown up


def calibrate(matrices: Floats, sizes: Floats) -> Floats:
    """u [Y, A]: weights of groups such that over all clients every group is drawn equally often.

    A client draws as many samples as it has (`sizes` [K]), each of its `matrices[k]` [Y, A] with probability
    proportional to its group's weight. Plain 1/(samples of the group) would not do: a client that has only one group
    draws nothing else, whatever its weight. Groups that nobody has keep weight 0.
    """
    shape = matrices.shape[1:]
    cells = matrices.reshape(len(matrices), -1)
    there = cells.sum(axis=0) > 0
    weights = np.where(there, 1 / np.maximum(cells.sum(axis=0), 1), 0.0)
    for _ in range(ITERATIONS):
        drawn = cells * weights
        totals = np.maximum(drawn.sum(axis=1, keepdims=True), 1e-300)
        shares = (sizes[:, None] * drawn / totals).sum(axis=0)
        shares = shares / max(shares.sum(), 1e-300)
        weights = np.where(there, weights * np.sqrt((1 / there.sum()) / np.maximum(shares, 1e-12)), 0.0)
        weights /= weights.sum()
    return weights.reshape(shape)


def fold_of(matrices: dict[int, Floats], num_folds: int = NUM_FOLDS) -> dict[int, int]:
    """Client → fold, such that each fold has about the same share of every group, and as many clients (no fewer
    than `FEWEST`, where there are so many). The largest are dealt first, each to the fold that is then least uneven."""
    totals = np.maximum(sum(matrices.values(), np.zeros(1)), 1e-12)
    num_folds = max(1, min(num_folds, len(matrices) // FEWEST))
    loads = [np.zeros_like(totals) for _ in range(num_folds)]
    folds: dict[int, int] = {}
    open_to: list[int] = []
    for client in sorted(matrices, key=lambda k: (-float((matrices[k] / totals).sum()), k)):
        open_to = open_to or list(range(num_folds))
        part = matrices[client] / totals
        costs = [float(np.square(loads[k] + part).sum() - np.square(loads[k]).sum()) for k in open_to]
        fold = open_to.pop(int(np.argmin(costs)))
        loads[fold] = loads[fold] + part
        folds[client] = fold
    return folds


def group_weights(matrices: Iterable[Floats], even: bool = True) -> NDArray[np.float32]:
    """[Y, A]: by which a group's samples count, so that all groups together count equally (or all samples, if not
    `even`), and as much as there are samples. Groups that nobody has keep weight 0."""
    totals = sum(matrices, np.zeros(1))
    there = totals > 0
    of_group = totals.sum() / there.sum() / np.maximum(totals, 1) if even else np.ones_like(totals)
    return np.where(there, of_group, 0.0).astype(np.float32)


@dataclass(frozen=True)
class BalancedSums:
    """Weighted sums of features x over samples, as `GroupSums` answers: Σ w and Σ w x of each class, and Σ w xxᵀ.

    Sums of clients add up, and those of some can be taken away.
    """

    weights: Floats  # [Y]
    sums: Floats  # [Y, d]
    products: Floats  # [d, d]; of each class where that was asked for: [Y, d, d]

    @classmethod
    def unpacked(cls, vector: Floats, num_classes: int, d: int) -> Self:
        """What an answer, or a sum of answers, says."""
        weights, sums, parts = _split(vector, num_classes, d)
        lower = np.stack([_unpacked_triangle(part, d) for part in parts])
        products = lower + np.tril(lower, -1).transpose(0, 2, 1)
        return cls(weights, sums, products if len(parts) > 1 else products[0])

    def __add__(self, other: Self) -> "BalancedSums":
        return BalancedSums(self.weights + other.weights, self.sums + other.sums, self.products + other.products)

    def __sub__(self, other: Self) -> "BalancedSums":
        return BalancedSums(self.weights - other.weights, self.sums - other.sums, self.products - other.products)

    def heads(self, penalties: Iterable[float] = PENALTIES) -> list[tuple[Floats, Floats]]:
        """Ridge regression on targets ±1 for each λ: weights [Y, d] and biases [Y] of a linear layer on x.

        Features are standardised by their weighted mean and deviation, so that one λ suits all; (S + λ t I) b = B with
        t the mean variance.
        """
        total = float(self.weights.sum())
        mean = self.sums.sum(axis=0) / total
        covariance = self.products / total - np.outer(mean, mean)
        deviation = np.sqrt(np.maximum(np.diag(covariance), 0))
        deviation = np.maximum(deviation, max(LEAST_SPREAD * float(deviation.max()), 1e-12))
        s = covariance / np.outer(deviation, deviation)
        targets = 2 * self.weights / total - 1  # [Y]: weighted mean of ±1
        b = ((2 * self.sums - self.sums.sum(axis=0)) / total - np.outer(targets, mean)) / deviation  # [Y, d]
        scale = float(np.trace(s)) / len(s)
        found = []
        for penalty in penalties:
            regular = s.copy()
            regular[np.diag_indices(len(s))] += penalty * scale
            factor = scipy.linalg.cho_factor(regular, lower=True, overwrite_a=True, check_finite=False)
            weight = scipy.linalg.cho_solve(factor, b.T, check_finite=False).T / deviation
            found.append((weight, targets - weight @ mean))
        return found


def sums_problem(
    vector: Vector, num_classes: int, d: int, expected: Floats, slack: float, some: bool = False
) -> str | None:
    """What cannot be true of sums that a client sent, given the weights [Y] of all its samples of each class.

    `slack`: weight that may be missing or too much, such as of a sample that is just not, or just, read surely; with
    `some`, they are sums of some of its samples only. What is left of Σ w xxᵀ within classes must be positive
    semi-definite, up to the rounding of 32-bit numbers.
    """
    weights, sums, parts = _split(vector, num_classes, d)
    away = weights - expected if some else np.abs(weights - expected)
    if not (away <= 1e-3 * expected + slack).all() or weights.min() < 0:
        return "its sums have other weights than the samples it counted"
    there = weights > 0
    scaled = sums[there] / np.sqrt(weights[there])[:, None]
    within = _unpacked_triangle(parts.sum(axis=0), d)
    within -= (scaled.T @ scaled).T  # symmetric, and so laid out alike; nobody looks at the upper triangle
    trace = float(np.square(scaled).sum()) + float(np.trace(within))  # of Σ w xxᵀ
    within[np.diag_indices(d)] += ROUNDING * max(trace, 1e-30)
    try:
        scipy.linalg.cho_factor(within, lower=True, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError:
        return "its sums cannot be those of any samples (not positive semi-definite)"
    return None


def _unpacked_triangle(packed: NDArray[Any], d: int) -> NDArray[Any]:
    """An upper triangle that came row by row as a lower one, [d, d], of the same precision and as LAPACK keeps it."""
    (unpack,) = scipy.linalg.get_lapack_funcs(("tpttr",), (packed,))
    return np.asarray(unpack(d, packed, uplo="L")[0])


def _split(vector: NDArray[Any], num_classes: int, d: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Σ w [Y], Σ w x [Y, d], and the upper triangles of Σ w xxᵀ, [1 or Y, d(d+1)/2]."""
    weights, sums, upper = np.split(vector, [num_classes, num_classes * (1 + d)])
    return weights, sums.reshape(num_classes, d), upper.reshape(-1, d * (d + 1) // 2)


def length(num_classes: int, d: int, by_class: bool = False) -> int:
    """Numbers in an answer to `GroupSums`."""
    return num_classes * (1 + d) + d * (d + 1) // 2 * (num_classes if by_class else 1)


def best_penalty(errors: Floats, counts: Floats) -> int:
    """Which λ: the one whose worst group is best. `errors` [λ, group]: squared errors on clients left out, summed;
    `counts` [group]."""
    there = counts > 0
    return int((errors[:, there] / counts[there]).max(axis=1).argmin())


def worst_and_mean(errors: Floats, counts: Floats) -> Floats:
    """[λ]: the worst group's mean error plus the mean over groups. With a handful of samples set aside of the rarest
    group, its error alone would be mostly noise."""
    there = counts > 0
    means = errors[:, there] / counts[there]
    return np.asarray(means.max(axis=1) + means.mean(axis=1))
