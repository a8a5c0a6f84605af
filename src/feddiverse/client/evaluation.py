"""What θ does on samples, without training: right answers per (class, attribute), losses, features."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddiverse.client.augmentation import Augment
from feddiverse.client.training import batches, cross_entropy
from feddiverse.data.federation import Samples
from feddiverse.messages import EVALUATION_ONLY, Vector
from feddiverse.models import FlatModel

PIXELS_PER_BATCH = 128 * 28 * 28  # measured: more falls out of the cache, less starves the matrix products
SMALLEST_BATCH, LARGEST_BATCH = 16, 128


def correct_and_total(model: FlatModel, samples: Samples, num_attributes: int) -> NDArray[np.int64]:
    """[2, classes, attributes]: samples of each group that the model's current weights get right, and all."""
    predicted = np.concatenate([logits.argmax(1).cpu().numpy() for logits, _ in outputs(model, samples)] or [samples.y])
    shape = (model.spec.num_classes, num_attributes)
    return np.stack([group_counts(samples, shape, samples.y == predicted), group_counts(samples, shape)])


def sample_losses(model: FlatModel, samples: Samples) -> NDArray[np.float64]:
    """The cross-entropy of every sample under the model's current weights, [n]."""
    losses = [cross_entropy(logits, y).cpu().numpy() for logits, y in outputs(model, samples)]
    return np.concatenate(losses or [np.empty(0)]).astype(np.float64)


def group_counts(
    samples: Samples, shape: tuple[int, int], chosen: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """[classes, attributes]: the number of (chosen) samples in each group."""
    counts = np.zeros(shape, dtype=np.int64)
    a = np.zeros_like(samples.y) if samples.a is None else samples.a
    np.add.at(counts, (samples.y, a), 1 if chosen is None else chosen.astype(np.int64))
    return counts


def outputs(model: FlatModel, samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits and labels, batch by batch, in the order of the samples."""
    model.module.eval()
    with torch.inference_mode():
        for x, y in batches(samples, np.arange(len(samples)), _batch_size(samples), model):
            yield model.module(x), y


def features(theta: Vector, samples: Samples, model: FlatModel) -> NDArray[np.float32]:
    """[n, d]: the input of the model's head under θ, for every sample in order."""
    model.load(theta)
    return seen_by(model, samples)


def seen_by(model: FlatModel, samples: Samples, augment: Augment | None = None) -> NDArray[np.float32]:
    """[n, d]: the input of the head under the model's current weights, for every sample in order; of pictures changed
    by `augment`, if given."""
    model.module.eval()
    parts = []
    with torch.inference_mode():
        for x, _ in batches(samples, np.arange(len(samples)), LARGEST_BATCH, model, augment):
            parts.append(model.module.features(x).cpu().numpy())  # type: ignore[operator]
    return np.concatenate(parts)


def compared_with_truth(estimated: NDArray[np.int64], samples: Samples) -> dict[str, float]:
    """How many samples have estimated attribute e and true attribute t, where that is known: for evaluation only."""
    if samples.a is None:
        return {}
    pairs, counts = np.unique(np.stack([estimated, samples.a]), axis=1, return_counts=True)
    return {f"{EVALUATION_ONLY}{e}.{t}": float(n) for (e, t), n in zip(pairs.T, counts, strict=True)}


def _batch_size(samples: Samples) -> int:
    pixels = math.prod(samples.x.shape[2:])
    return min(max(PIXELS_PER_BATCH // pixels, SMALLEST_BATCH), LARGEST_BATCH)
