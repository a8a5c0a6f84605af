"""Which samples belong together, read off a histogram: a Gaussian mixture fitted to counts on a grid."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

Floats = NDArray[np.float64]

ITERATIONS = 300
TOLERANCE = 1e-7
PSEUDO_COUNT = 0.5  # samples every attribute is given in every class: no share is ever 0
OFFSET_PRIOR = 0.1
"""Samples per sample of a class that say it has no offset: what both could explain is the attribute's."""


@dataclass(frozen=True)
class Mixture:
    """`A` Gaussians that share one covariance, mixed differently in each class, which may shift them all together."""

    centres: Floats  # [A, q]
    offsets: Floats  # [Y, q]
    covariance: Floats  # [q, q]
    shares: Floats  # [Y, A]

    @property
    def separation(self) -> float:
        """How many standard deviations the two nearest centres are apart."""
        whitened = np.linalg.solve(np.linalg.cholesky(self.covariance), self.centres.T).T
        distances = np.linalg.norm(whitened[:, None] - whitened[None], axis=2)
        return float(distances[np.triu_indices(len(whitened), 1)].min())


def fit(points: Floats, counts: Floats, num_components: int, seed: int) -> Mixture:
    """Maximum likelihood by EM from k-means: `points` [cells, q], and the samples of each class at each [Y, cells].

    Centres and covariance are those of the attribute, so classes share them. How common each attribute is, is each
    class's own, and so is an offset: a direction of the attribute is seldom quite free of the class.
    """
    total = counts.sum(axis=0)
    labels = _by_kmeans(points, total, num_components, seed)
    posterior = np.repeat(np.eye(num_components)[labels][None], len(counts), axis=0)  # [Y, cells, A]
    offsets = np.zeros((len(counts), points.shape[1]))
    before = -np.inf
    for _ in range(ITERATIONS):
        mixture = _maximise(points, counts, posterior, offsets)
        offsets = mixture.offsets
        log_joint = np.log(mixture.shares)[:, None, :] + _log_density(points, mixture)
        top = log_joint.max(axis=2, keepdims=True)
        log_sum = top[..., 0] + np.log(np.exp(log_joint - top).sum(axis=2))
        posterior = np.exp(log_joint - log_sum[..., None])
        likelihood = float((counts * log_sum).sum() / total.sum())
        if likelihood - before < TOLERANCE:
            break
        before = likelihood
    return mixture


def _by_kmeans(points: Floats, weights: Floats, num_components: int, seed: int) -> NDArray[np.int64]:
    """[cells]: nearest of the centres of the weighted, non-empty cells; on a line, Otsu's threshold."""
    filled = weights > 0
    kmeans = KMeans(min(num_components, int(filled.sum())), n_init=10, random_state=seed % 2**32)
    kmeans.fit(points[filled], sample_weight=weights[filled])
    labels: NDArray[np.int64] = kmeans.predict(points)
    return labels


def _maximise(points: Floats, counts: Floats, posterior: Floats, offsets: Floats) -> Mixture:
    """Centres given the offsets, then offsets given the centres, then the rest: likelihood rises all the same."""
    weights = counts[..., None] * posterior  # [Y, cells, A]
    by_class = weights.sum(axis=1)  # [Y, A]
    sums = np.einsum("yca,ci->yai", weights, points)
    mass = np.maximum(by_class.sum(axis=0), 1e-12)
    centres = (sums - by_class[..., None] * offsets[:, None]).sum(axis=0) / mass[:, None]
    sizes = np.maximum(by_class.sum(axis=1), 1e-12)
    offsets = (sums - by_class[..., None] * centres).sum(axis=1) / (sizes * (1 + OFFSET_PRIOR))[:, None]
    deviations = _deviations(points, centres, offsets)
    covariance = np.einsum("yca,ycai,ycaj->ij", weights, deviations, deviations, optimize=True) / mass.sum()
    # No tighter than the grid can tell: keeps a component on a single cell finite.
    covariance += np.eye(points.shape[1]) * 1e-4
    shares = (by_class + PSEUDO_COUNT) / (by_class + PSEUDO_COUNT).sum(axis=1, keepdims=True)
    return Mixture(centres, offsets, covariance, shares)


def _deviations(points: Floats, centres: Floats, offsets: Floats) -> Floats:
    """[Y, cells, A, q]"""
    return np.asarray(points[None, :, None] - centres[None, None] - offsets[:, None, None])


def _log_density(points: Floats, mixture: Mixture) -> Floats:
    """[Y, cells, A], up to a constant that all components share."""
    root = np.linalg.cholesky(mixture.covariance)
    deviations = _deviations(points, mixture.centres, mixture.offsets)
    whitened = np.linalg.solve(root, deviations.reshape(-1, points.shape[1]).T)
    distances = np.square(whitened).sum(axis=0).reshape(deviations.shape[:3])
    return np.asarray(-0.5 * distances - np.log(np.diag(root)).sum())
