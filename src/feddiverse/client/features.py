"""What θ sees in a client's pictures: the input of the model's head, computed once and in evaluation mode."""

import numpy as np
import torch
from numpy.typing import NDArray

from feddiverse.client.training import batches
from feddiverse.federation import Samples
from feddiverse.messages import EVALUATION_ONLY, Vector
from feddiverse.models import FlatModel

BATCH_SIZE = 128


def features(theta: Vector, samples: Samples, model: FlatModel) -> NDArray[np.float32]:
    """[n, d]: the features of every sample under θ, in the order of the samples."""
    model.load(theta)
    model.module.eval()
    parts = []
    with torch.inference_mode():
        for images, _ in batches(samples, np.arange(len(samples)), BATCH_SIZE, model):
            parts.append(model.module.features(images).cpu().numpy())  # type: ignore[operator]
    return np.concatenate(parts)


def confusion(estimated: NDArray[np.int64], samples: Samples) -> dict[str, float]:
    """How many samples have estimated attribute e and true attribute t, as metrics that are for evaluation only."""
    pairs, counts = np.unique(np.stack([estimated, samples.a]), axis=1, return_counts=True)
    return {f"{EVALUATION_ONLY}{e}.{t}": float(n) for (e, t), n in zip(pairs.T, counts, strict=True)}
