"""Last layers that others solve from clients' sums, to stand beside ours: Fed3R and CCVR.

They were published without hidden groups: every sample (Fed3R) or class (CCVR) counts the same.
"""

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from feddiverse import seeding
from feddiverse.estimation.balance import BalancedSums

Floats = NDArray[np.float64]

FED3R_PENALTY = 0.01
VIRTUAL_SAMPLES = 1000
"""Of each class, drawn for CCVR."""


def fed3r(sums: BalancedSums, penalty: float = FED3R_PENALTY) -> tuple[Floats, Floats]:
    """Fed3R (Fanì, Camoriano, Caputo, Ciccone, ICML 2024): ridge regression on one-hot classes, in closed form.

    (Σ φφᵀ + λI) W = Σ φ onehot(y)ᵀ with φ = (x, 1), as their code has it (the bias is penalised too), then each class's
    weights and bias over the norm of its weights. Features are taken as they are; λ = 0.01 is theirs.
    """
    d = sums.sums.shape[1]
    a = np.empty((d + 1, d + 1))
    a[:d, :d] = sums.products
    a[d, :d] = a[:d, d] = sums.sums.sum(axis=0)
    a[d, d] = sums.weights.sum()
    a[np.diag_indices(d + 1)] += penalty
    b = np.column_stack([sums.sums, sums.weights]).T  # [d + 1, Y]
    solved = scipy.linalg.solve(a, b, assume_a="sym").T
    norms = np.linalg.norm(solved[:, :d], axis=1, keepdims=True)
    solved = solved / np.where(norms == 0, 1e-6, norms)
    return solved[:, :d], solved[:, d]


def ccvr(sums: BalancedSums, seed: int) -> tuple[Floats, Floats]:
    """CCVR (Luo et al., NeurIPS 2021): a softmax classifier trained on virtual features, as many of each class.

    Features of a class are drawn from the Gaussian that has the mean and the covariance of all clients' features of
    that class. They train theirs by SGD; this is the minimum of the same loss, found by L-BFGS from zero.
    """
    generator = seeding.rng(seed, "virtual features")
    drawn = []
    for weight, total, products in zip(sums.weights, sums.sums, sums.products, strict=True):
        mean = total / weight
        values, vectors = np.linalg.eigh(products / weight - np.outer(mean, mean))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        drawn.append(mean + generator.standard_normal((VIRTUAL_SAMPLES, len(mean))) @ root.T)
    x = np.concatenate(drawn)
    return softmax_head(x, np.repeat(np.arange(len(drawn)), VIRTUAL_SAMPLES))


def softmax_head(x: Floats, y: NDArray[np.int64], steps: int = 200) -> tuple[Floats, Floats]:
    """Weights [Y, d] and bias [Y] that minimise cross-entropy, as far as L-BFGS comes in `steps`."""
    from scipy.optimize import minimize  # half a second, which no other head need wait for

    centre, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-12)
    z = np.column_stack([(x - centre) / scale, np.ones(len(x))])  # well conditioned; the minimum is the same
    targets = np.eye(int(y.max()) + 1)[y]

    def loss(flat: Floats) -> tuple[float, Floats]:
        logits = z @ flat.reshape(z.shape[1], -1)
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        chances /= chances.sum(axis=1, keepdims=True)
        value = -np.log(np.maximum((chances * targets).sum(axis=1), 1e-300)).mean()
        return float(value), (z.T @ (chances - targets)).ravel() / len(z)

    start = np.zeros(z.shape[1] * targets.shape[1])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": steps}).x
    solved = found.reshape(z.shape[1], -1).T
    weight = solved[:, :-1] / scale
    return weight, solved[:, -1] - weight @ centre
