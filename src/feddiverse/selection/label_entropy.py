"""Greedy entropy of pooled labels: the simplest way to a class-balanced set of clients.

The greedy construction is that of Yang et al. ("Federated learning with class imbalance reduction", 2020), with the
entropy of the pooled class counts in place of their measure.
"""

import numpy as np
from numpy.typing import NDArray

from feddiverse.selection.draws import one_of
from feddiverse.selection.labels import Floats, LabelSelector

TIE = 1e-12


def entropy(counts: Floats) -> Floats:
    """Entropy in nats of each row [K, classes] of counts; of nothing it is 0."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    result: Floats = -(shares * logs).sum(axis=1)
    return result


class LabelEntropy(LabelSelector):
    """A uniformly drawn client, then again and again the one that makes the pooled labels most even; ties at random."""

    def pick(self, ids: NDArray[np.int64], counts: Floats, k: int, rng: np.random.Generator) -> list[int]:
        left = np.ones(len(counts), bool)
        pooled = np.zeros(counts.shape[1])
        chosen: list[int] = []
        for _ in range(k):
            values = np.where(left, entropy(counts + pooled) if chosen else 0.0, -np.inf)
            chosen.append(one_of(np.flatnonzero(values >= values.max() - TIE), rng))
            left[chosen[-1]] = False
            pooled += counts[chosen[-1]]
        return chosen
