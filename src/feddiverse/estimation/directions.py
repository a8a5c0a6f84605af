"""In which directions do clients differ more than chance explains, and which values does the attribute take there?

The statistics behind the consensus estimator (docs/estimators.md), all from sums over clients.

For samples of one class, what differs between clients' means is mostly their attribute mix. Let B be the scatter of
class means between clients and W the covariance within: the leading generalised eigenvectors of (B, W + λI) are the
directions in which an attribute shows. Along these, a Gaussian mixture fitted to counts on a grid says which samples
belong together.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
from numpy.typing import NDArray

from feddiverse import seeding

Floats = NDArray[np.float64]

RIDGE = 1.0
"""λ, in units of a feature's own variance: keeps hundreds of weak features from conspiring by chance."""
NULL_DRAWS = 40
LEAST_SPREAD = 1e-6
"""A feature's variance over its squared mean from which it counts."""


def num_features(size: int, num_classes: int) -> int:
    """d for an answer of 2 + Y + Y·d + d(d + 1) numbers; 0 if there is no such d."""
    spare = size - 2 - num_classes
    d = round((-(num_classes + 1) + math.sqrt((num_classes + 1) ** 2 + 4 * spare)) / 2) if spare > 0 else 0
    return d if d * (num_classes + d + 1) == spare else 0


ITERATIONS = 300
STARTS = 10  # of k-means, of which the best is taken
TOLERANCE = 1e-7
PSEUDO_COUNT = 0.5  # samples every attribute is given in every class: no share is ever 0
OFFSET_PRIOR = 0.1
"""Samples per sample of a class that say it has no offset: what both could explain is the attribute's."""


@dataclass(frozen=True)
class Scatter:
    """The sum of all clients' answers to `FeatureMoments`, unpacked."""

    num_clients: int
    num_cells: int  # (client, class) pairs with samples
    counts: Floats  # [Y]
    sums: Floats  # [Y, d]
    within: Floats  # [d, d]: scatter around the means of cells
    products: Floats  # [d, d]: Σ over cells of sum·sumᵀ/count

    @classmethod
    def unpack(cls, total: Floats, num_classes: int) -> Self:
        """2 + Y + Y·d + d(d + 1) numbers → matrices."""
        d = num_features(total.size, num_classes)
        head, sums, within, products = np.split(
            total, np.cumsum([2 + num_classes, num_classes * d, d * (d + 1) // 2]).tolist()
        )
        upper = np.triu_indices(d)
        matrices = []
        for triangle in (within, products):
            matrix = np.zeros((d, d))
            matrix[upper] = triangle
            matrices.append(matrix + np.triu(matrix, 1).T)
        return cls(int(head[0]), int(head[1]), head[2:], sums.reshape(num_classes, d), *matrices)

    @property
    def freedom(self) -> int:
        """How many class means can differ from their class's: cells less classes."""
        return self.num_cells - int((self.counts > 0).sum())

    @property
    def spare(self) -> float:
        """How many samples can differ from their cell's mean: samples less cells."""
        return float(self.counts.sum()) - self.num_cells

    @property
    def can_be_compared(self) -> bool:
        """Whether there is anything to hold against each other: two clients with a class, and samples around a mean."""
        return self.freedom >= 1 and self.spare >= 1

    @property
    def between(self) -> Floats:
        """[d, d]: B, the scatter of the cells' means around their class's, weighted by count."""
        return np.asarray(self.products - (self.sums.T / np.maximum(self.counts, 1)) @ self.sums)

    def along(self, whole: "Scatter", axes: Floats) -> Floats:
        """[q]: how much of the scatter between clients, along each of `axes` [d, q], is of this part of the whole."""
        off = self.sums / np.maximum(self.counts, 1)[:, None] - whole.sums / np.maximum(whole.counts, 1)[:, None]
        return np.asarray((self.counts[:, None] * np.square(off @ axes)).sum(axis=0))

    @property
    def mean(self) -> Floats:
        """[d]: of all samples."""
        return np.asarray(self.sums.sum(axis=0) / self.counts.sum())

    @property
    def covariance(self) -> Floats:
        """[d, d]: of all samples, classes and clients together."""
        mean = self.mean
        return np.asarray((self.within + self.products) / self.counts.sum() - np.outer(mean, mean))


@dataclass(frozen=True)
class Directions:
    """`axes` [d, q]: leading directions. `strength`: how far clients differ along the first, relative to the farthest
    that chance alone gives in `NULL_DRAWS` tries; about 1 means that nothing is to be seen."""

    axes: Floats
    strength: float


def find_directions(scatter: Scatter, num: int, seed: int) -> Directions:
    """The `num` directions of most scatter between clients, relative to that within."""
    found = _leading(scatter, num)
    if found is None:
        return Directions(np.zeros((len(scatter.within), num)), 0.0)
    axes, value, w = found
    return Directions(axes, value / chance(w, scatter.freedom, seed))


def leading_axes(scatter: Scatter, num: int) -> Floats | None:
    """The axes of `find_directions` alone, which are found at once; None where there is nothing to compare."""
    found = _leading(scatter, num)
    return None if found is None else found[0]


def _leading(scatter: Scatter, num: int) -> tuple[Floats, float, Floats] | None:
    """Axes [d, num], the leading eigenvalue, and W of the features that vary, each divided by its deviation."""
    if not scatter.can_be_compared:
        return None
    covariance = scatter.within / scatter.spare
    variances = np.diag(covariance)
    # Answers are float32: what hardly varies around a large mean comes as rounding errors.
    least = np.maximum(1e-10 * variances.max(initial=0.0), LEAST_SPREAD * scatter.mean**2)
    alive = np.flatnonzero(variances > least)
    if len(alive) < num:
        return None
    scale = 1 / np.sqrt(variances[alive])
    w = covariance[np.ix_(alive, alive)] * scale * scale[:, None]
    b = scatter.between[np.ix_(alive, alive)] * scale * scale[:, None]
    # Means of few samples differ by chance, which adds W for every free mean: leave that out.
    values, vectors = scipy.linalg.eigh(
        b - scatter.freedom * w, w + RIDGE * np.eye(len(w)), subset_by_index=[len(w) - num, len(w) - 1]
    )
    axes = np.zeros((len(scatter.within), num))
    axes[alive] = vectors[:, ::-1] * scale[:, None]
    return axes, float(values[-1]), w


def chance(w: Floats, freedom: int, seed: int) -> float:
    """The largest leading eigenvalue in `NULL_DRAWS` draws of a federation whose clients do not differ.

    B is then Wishart with covariance W. In W's own basis its part in the metric W + λI has diagonal covariance.
    """
    eigenvalues = np.maximum(np.linalg.eigvalsh(w), 0)
    spread = np.sqrt(eigenvalues / (eigenvalues + RIDGE))
    rng = seeding.rng(seed, "chance scatter")
    largest = 0.0
    for _ in range(NULL_DRAWS):
        root = spread[:, None] * _wishart_root(len(w), freedom, rng)
        null = root @ root.T - freedom * np.diag(spread**2)
        largest = max(largest, _largest_eigenvalue(null))
    return largest


def _largest_eigenvalue(matrix: Floats) -> float:
    """By Lanczos' method from a fixed start: several times as fast as finding them all, and the same every time."""
    if len(matrix) < 10:
        return float(np.linalg.eigvalsh(matrix)[-1])
    start = np.ones(len(matrix))
    return float(scipy.sparse.linalg.eigsh(matrix, 1, which="LA", v0=start, tol=1e-9, return_eigenvectors=False)[0])


def _wishart_root(d: int, freedom: int, rng: np.random.Generator) -> Floats:
    """R with R·Rᵀ a standard Wishart matrix; Bartlett's triangle where there is more freedom than dimensions."""
    if freedom <= d:
        return rng.standard_normal((d, freedom))
    root = np.tril(rng.standard_normal((d, d)), -1)
    root[np.diag_indices(d)] = np.sqrt(rng.chisquare(freedom - np.arange(d)))
    return root


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
    """[cells]: nearest of the centres of the weighted, non-empty cells; on a line, Otsu's threshold.

    Lloyd's steps from several k-means++ starts, of which the best is taken; ours, since importing scikit-learn would
    take 2 s of every run. Centres are numbered from left to right, whatever the start was.
    """
    rng, filled = seeding.rng(seed, "clusters"), weights > 0
    x, w = points[filled], weights[filled]
    best, lowest = x[:1], np.inf
    for _ in range(STARTS):
        centres, cost = _lloyd(x, w, _far_apart(x, w, min(num_components, len(x)), rng))
        if cost < lowest:
            best, lowest = centres, cost
    return np.asarray(_squared_distances(points, best[np.lexsort(best.T[::-1])]).argmin(axis=1))


def _far_apart(points: Floats, weights: Floats, count: int, rng: np.random.Generator) -> Floats:
    """k-means++ (Arthur and Vassilvitskii, 2007): each centre drawn by its squared distance to those before it."""
    chosen = [int(rng.choice(len(points), p=weights / weights.sum()))]
    for _ in range(count - 1):
        mass = weights * _squared_distances(points, points[chosen]).min(axis=1)
        chosen.append(int(rng.choice(len(points), p=mass / mass.sum())))
    return points[chosen]


def _lloyd(points: Floats, weights: Floats, centres: Floats) -> tuple[Floats, float]:
    """Centres to the mean of what is nearest to them, until nothing moves; the weighted sum of squared distances."""
    labels = None
    for _ in range(ITERATIONS):
        distances = _squared_distances(points, centres)
        before, labels = labels, distances.argmin(axis=1)
        if before is not None and (labels == before).all():
            break
        mine = np.eye(len(centres))[labels] * weights[:, None]  # [cells, centres]
        mass = mine.sum(axis=0)[:, None]
        centres = np.where(mass > 0, mine.T @ points / np.maximum(mass, 1e-300), centres)
    return centres, float((weights * _squared_distances(points, centres).min(axis=1)).sum())


def _squared_distances(points: Floats, centres: Floats) -> Floats:
    """[points, centres]"""
    return np.asarray(np.square(points[:, None] - centres[None]).sum(axis=2))


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
