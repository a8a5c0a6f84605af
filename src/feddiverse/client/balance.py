"""Every hidden group counts equally: a client's side of solving the last layer anew (docs/rebalance.md)."""

from collections.abc import Iterator

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from feddiverse.client.augmentation import augmentation
from feddiverse.client.consensus import log_likelihoods, posteriors, projected
from feddiverse.client.draws import is_aside, remembered
from feddiverse.client.evaluation import features, seen_by
from feddiverse.data.federation import Ids, Samples
from feddiverse.messages import Grouped, GroupSums, HeadErrors, Projected, Reply, Vector
from feddiverse.models import FlatModel

Floats = NDArray[np.float64]


def group_sums(task: GroupSums, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    """Weighted sums of features: of each class, and of their products; the mean over the views of the samples."""
    seen = features(theta, samples, model)
    weights = _of_samples(task, client_id, seen, samples)[1]
    of_class = np.eye(model.spec.num_classes)[samples.y] * weights[:, None]  # [n, Y]
    columns = of_class.T if task.by_class else of_class.sum(axis=1)[None]
    d, num_views = min(seen.shape[1], task.dimensions), 0
    sums = np.zeros((of_class.shape[1], d))
    products = [np.zeros((d, d), order="F") for _ in columns]
    for x in _views(task, client_id, seen, samples, model):
        num_views += 1
        sums += of_class.T @ x
        for place, column in enumerate(columns):
            products[place] = _with_products(products[place], x, column)
    packed = [scipy.linalg.lapack.dtrttp(lower, uplo="L")[0] for lower in products]  # column by column, diagonal first
    vector = np.concatenate([sums.ravel(), *packed]) / num_views
    return Reply(client_id, vector=np.concatenate([of_class.sum(axis=0), vector]).astype(np.float32))


def _views(
    task: GroupSums, client_id: int, seen: NDArray[np.float32], samples: Samples, model: FlatModel
) -> Iterator[Floats]:
    """Features [n, d] of the samples as they are, then of changed copies of them, one view at a time."""
    yield projected(task, seen)
    if task.views and (augment := augmentation(task, client_id)):
        for _ in range(task.views):
            yield projected(task, seen_by(model, samples, augment))


def _with_products(products: Floats, x: Floats, weights: Floats) -> Floats:
    """`products` and Σ w xxᵀ of one more view, in the same memory: the lower triangle, [d, d], as BLAS keeps it.

    BLAS takes half of a matrix times itself: half the time of a product of any two.
    """
    scaled = x * np.sqrt(weights)[:, None]
    return np.asarray(scipy.linalg.blas.dsyrk(1.0, scaled.T, beta=1.0, c=products, overwrite_c=True, lower=True))


def head_errors(task: HeadErrors, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    """What each of some heads would do on this client: squared errors summed over the sure samples of each group."""
    seen = features(theta, samples, model)
    attribute, weights = _of_samples(task, client_id, seen, samples)
    sure = weights > 0
    x, y = projected(task, seen)[sure], samples.y[sure]
    num_classes, num_attributes = task.weights.shape
    group = y * num_attributes + attribute[sure]
    targets = 2.0 * np.eye(num_classes)[y] - 1
    errors = np.zeros((len(task.heads), task.weights.size))
    for place, head in enumerate(task.heads.astype(np.float64)):
        squared = np.square(x @ head[:, :-1].T + head[:, -1] - targets).mean(axis=1)
        errors[place] = np.bincount(group, weights=squared, minlength=task.weights.size)
    counts = np.bincount(group, minlength=task.weights.size)
    return Reply(client_id, vector=np.concatenate([errors.ravel(), counts]).astype(np.float32))


def _of_samples(task: Grouped, client: int, seen: NDArray[np.float32], samples: Samples) -> tuple[Ids, Floats]:
    """The attribute of each sample, [n], and the weight of its group, [n]: 0 where the attribute is not sure enough, or
    the task is not about the sample."""
    if task.weights.shape[1] == 1:
        attribute, sure = np.zeros_like(samples.y), np.ones(len(samples))
    elif task.centres.size:
        coordinates = projected(Projected(task.seed, task.round, task.reading_dimensions), seen) @ task.directions
        likelihoods = log_likelihoods(coordinates - task.origin, task.centres[samples.y])
        posterior = posteriors(likelihoods, samples.y, task.shares.astype(np.float64))
        attribute, sure = posterior.argmax(axis=1), posterior.max(axis=1)
    else:
        attribute, sure = remembered(samples)
    weights = task.weights.astype(np.float64)[samples.y, attribute]
    counts = sure >= task.confidence
    if task.set_aside:
        counts &= is_aside(samples, task.set_aside, task.seed, client) == isinstance(task, HeadErrors)
    return attribute, np.where(counts, weights, 0.0)
