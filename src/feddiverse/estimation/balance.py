"""Every hidden group counts equally: the server's side, all from sums over clients (docs/rebalance.md).

A *group* is a class with an attribute value as the consensus estimator reads it; nobody labelled it. `calibrate` finds
by which weights clients draw their samples so that all groups are drawn equally often; `BalancedSums` holds what is
needed to solve the last layer anew, in closed form, with every group of the same weight.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from feddiverse.messages import Reply

Floats = NDArray[np.float64]

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""λ to choose from, in units of a standardised feature's variance."""
NUM_FOLDS = 5
ITERATIONS = 500
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
    """Client → fold, such that each fold has about the same share of every group: the largest clients are dealt first,
    each to the fold that is then least uneven."""
    totals = np.maximum(sum(matrices.values(), np.zeros(1)), 1e-12)
    num_folds = max(1, min(num_folds, len(matrices)))
    loads = [np.zeros_like(totals) for _ in range(num_folds)]
    folds = {}
    for client in sorted(matrices, key=lambda k: (-float((matrices[k] / totals).sum()), k)):
        part = matrices[client] / totals
        costs = [float(np.square(load + part).sum() - np.square(load).sum()) for load in loads]
        fold = int(np.argmin(costs))
        loads[fold] = loads[fold] + part
        folds[client] = fold
    return folds


@dataclass(frozen=True)
class BalancedSums:
    """Weighted sums of features x over samples, as `GroupSums` answers: Σ w and Σ w x of each class, and Σ w xxᵀ.

    Sums of clients add up, and those of some can be taken away.
    """

    weights: Floats  # [Y]
    sums: Floats  # [Y, d]
    products: Floats  # [d, d]

    @classmethod
    def of(cls, replies: Iterable[Reply], num_classes: int, d: int) -> Self:
        """The sum of all answers, one at a time."""
        total = np.zeros(length(num_classes, d))
        for reply in replies:
            assert reply.vector is not None
            total += reply.vector
        weights, sums, upper = np.split(total, [num_classes, num_classes * (1 + d)])
        products = np.zeros((d, d))
        products[np.triu_indices(d)] = upper
        return cls(weights, sums.reshape(num_classes, d), products + np.triu(products, 1).T)

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
            weight = scipy.linalg.solve(regular, b.T, assume_a="pos").T / deviation
            found.append((weight, targets - weight @ mean))
        return found


def length(num_classes: int, d: int) -> int:
    """Numbers in an answer to `GroupSums`."""
    return num_classes * (1 + d) + d * (d + 1) // 2


def best_penalty(errors: Floats, counts: Floats) -> int:
    """Which λ: the one whose worst group is best. `errors` [λ, group]: squared errors on clients left out, summed;
    `counts` [group]."""
    there = counts > 0
    return int((errors[:, there] / counts[there]).max(axis=1).argmin())
