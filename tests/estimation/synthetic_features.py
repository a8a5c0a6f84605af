"""A federation of made-up features, answered by the real client code: consensus without a model."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from feddiverse.client import consensus
from feddiverse.data.federation import Samples
from feddiverse.messages import AttributeTriplet, FeatureHistogram, FeatureMoments, Reply, Task

ANSWERS = {
    FeatureMoments: consensus.feature_moments,
    FeatureHistogram: consensus.feature_histogram,
    AttributeTriplet: consensus.attribute_triplet,
}


class Clients:
    """Features are noise, plus something of the class, plus `gap` along a direction of the attribute's own."""

    def __init__(self, counts: NDArray[np.int64], gap: float, num_features: int = 20, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        _, num_classes, num_attributes = counts.shape
        of_class = rng.normal(size=(num_classes, num_features))
        axes = np.linalg.qr(rng.normal(size=(num_features, num_features)))[0]
        of_attribute = gap * axes[:num_attributes] / np.sqrt(2)  # any two values are `gap` apart
        self.samples: list[Samples] = []
        for table in counts:
            y, a = (np.repeat(index.ravel(), table.ravel()) for index in np.indices(table.shape))
            x = rng.normal(size=(len(y), num_features)) + of_class[y] + of_attribute[a] + 3
            self.samples.append(Samples(x.astype(np.float32), y, a))
        self.model = SimpleNamespace(spec=SimpleNamespace(num_classes=num_classes))
        self.sizes = {k: len(s) for k, s in enumerate(self.samples)}
        self.asked: list[Task] = []
        self.dead: set[int] = set()

    def ask(self, task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        self.asked.append(task)
        for k in clients:
            if k in self.dead:
                yield Reply(k, failure="gone")
            else:
                reply: Reply = ANSWERS[type(task)](task, None, k, self.samples[k], self.model)
                yield replace(reply, num_examples=len(self.samples[k]))


def without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let samples be the features themselves."""
    monkeypatch.setattr(consensus, "features", lambda theta, samples, model: samples.x)
