"""The consensus estimator on a client: sums of what θ sees, then a count of its own attributes (docs/estimators.md).

Three questions, each one forward pass; nothing is trained. What leaves the client is a sum that secure aggregation
could hide among those of others, and in the end its triplet.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from feddiverse import seeding
from feddiverse.client.draws import remember
from feddiverse.client.evaluation import compared_with_truth, features
from feddiverse.client.noise import private_counts
from feddiverse.data.federation import Samples
from feddiverse.heterogeneity import triplet
from feddiverse.messages import (
    AttributeTriplet,
    FeatureHistogram,
    FeatureMoments,
    Projected,
    ReadHeldOut,
    Reply,
    Vector,
)
from feddiverse.models import FlatModel

Floats = NDArray[np.float64]

PRIOR_SAMPLES = 2.0
"""How many samples of its own the federation's share of an attribute is worth to a client."""
ITERATIONS = 100


def feature_moments(task: FeatureMoments, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    """First and second moments within each class, as one vector of sums."""
    x = projected(task, features(theta, samples, model))
    num_classes, d = model.spec.num_classes, x.shape[1]
    counts = np.bincount(samples.y, minlength=num_classes)
    sums = np.zeros((num_classes, d))
    np.add.at(sums, samples.y, x)
    present = counts > 0
    means = sums[present] / counts[present, None]
    centred = x - (sums / np.maximum(counts, 1)[:, None])[samples.y]
    upper = np.triu_indices(d)
    within, between = centred.T @ centred, (means.T * counts[present]) @ means
    parts = [np.array([1, present.sum()]), counts, sums.ravel(), within[upper], between[upper]]
    return Reply(client_id, vector=np.concatenate(parts).astype(np.float32))


def feature_histogram(
    task: FeatureHistogram, theta: Vector, client_id: int, samples: Samples, model: FlatModel
) -> Reply:
    """How many samples of each class fall into each cell of the grid."""
    coordinates = along(task, theta, samples, model)
    cells = np.clip((coordinates / task.reach + 1) * task.bins / 2, 0, task.bins - 1).astype(np.int64)
    counts = np.zeros((model.spec.num_classes, *[task.bins] * coordinates.shape[1]), np.float32)
    np.add.at(counts, (samples.y, *cells.T), 1)
    return Reply(client_id, vector=counts.ravel())


def attribute_triplet(
    task: AttributeTriplet, theta: Vector, client_id: int, samples: Samples, model: FlatModel
) -> Reply:
    """Three numbers: the triplet of the client's samples, each counted under its most likely attribute."""
    coordinates = along(task, theta, samples, model)
    likelihoods = log_likelihoods(coordinates, task.centres[samples.y])
    # With noise, a sample is read for itself: if others moved it, one of them could change many counts.
    iterations = 0 if task.epsilon else ITERATIONS
    posterior = posteriors(likelihoods, samples.y, task.shares.astype(np.float64), iterations)
    if task.remember:
        remember(samples, posterior, coordinates)
    a = posterior.argmax(axis=1)
    matrix, sure = np.zeros(task.shares.shape), np.zeros(task.shares.shape)
    np.add.at(matrix, (samples.y, a), 1)
    np.add.at(sure, (samples.y, a), posterior.max(axis=1) >= task.confidence)
    if task.matrix and task.confidence:  # two tables share one ε
        half = replace(task, epsilon=task.epsilon / 2)
        matrix = private_counts(half, matrix, client_id, samples, "all")
        sure = private_counts(half, sure, client_id, samples, "sure")
    else:
        matrix = sure = private_counts(task, matrix, client_id, samples)
    metrics = dict(zip(("ci", "ai", "sc"), triplet(matrix).tolist(), strict=True))
    vector = sure.ravel().astype(np.float32) if task.matrix else None
    return Reply(client_id, vector=vector, metrics=metrics | compared_with_truth(a, samples))


def along(
    task: FeatureHistogram | AttributeTriplet | ReadHeldOut, theta: Vector, samples: Samples, model: FlatModel
) -> Floats:
    """[n, q]: where each sample lies along the directions."""
    return np.asarray(projected(task, features(theta, samples, model)) @ task.directions - task.origin)


def projected(task: Projected, x: NDArray[np.float32]) -> Floats:
    """[n, D] → [n, d]: a random projection that all clients share; `dimensions` features or fewer stay as they are."""
    if x.shape[1] <= task.dimensions:
        return x.astype(np.float64)
    shared = seeding.rng(task.seed, "projection").standard_normal((x.shape[1], task.dimensions))
    return np.asarray(x @ (shared / np.sqrt(x.shape[1])))


def log_likelihoods(coordinates: Floats, centres: NDArray[np.float32]) -> Floats:
    """[n, A]: log density of each sample under unit Gaussians around its `centres` [n, A, q], up to a constant."""
    distances = coordinates[:, None, :] - centres.astype(np.float64)
    return np.asarray(-0.5 * np.square(distances).sum(axis=2))


def posteriors(likelihoods: Floats, y: NDArray[np.int64], shares: Floats, iterations: int = ITERATIONS) -> Floats:
    """[n, A]: each sample's attribute, given how often this client shows each attribute in each class."""
    return given_shares(likelihoods, own_shares(likelihoods, y, shares, iterations)[y])


def given_shares(likelihoods: Floats, shares: Floats) -> Floats:
    """[n, A]: each sample's attribute, given the share [n, A] of each that is expected there."""
    posterior = np.exp(likelihoods - likelihoods.max(axis=1, keepdims=True)) * shares
    return np.asarray(posterior / posterior.sum(axis=1, keepdims=True))


def own_shares(likelihoods: Floats, y: NDArray[np.int64], shares: Floats, iterations: int = ITERATIONS) -> Floats:
    """[Y, A]: how often these samples show each attribute in each class; as all clients do in classes they have not.

    Found by expectation-maximisation with the densities held fixed, from the federation's shares as a prior (with 0
    `iterations` it is these). Where values overlap, a plain threshold would put the tail of a client's only attribute
    on the other side, and its spurious correlation would look weaker than it is.
    """
    weights = np.exp(likelihoods - likelihoods.max(axis=1, keepdims=True))
    present, position, sizes = np.unique(y, return_inverse=True, return_counts=True)
    own = shares[present]
    for _ in range(iterations):
        posterior = weights * own[position]
        posterior /= posterior.sum(axis=1, keepdims=True)
        counts = np.zeros_like(own)
        np.add.at(counts, position, posterior)
        own = (counts + PRIOR_SAMPLES * shares[present]) / (sizes[:, None] + PRIOR_SAMPLES)
    found = shares.copy()
    found[present] = own
    return found
