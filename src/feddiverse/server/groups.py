"""Accuracy per group (class, attribute), and the worst of them: what the paper reports (Sec. V-A); per class; and where
nobody knows the attributes, per group as it is read off the samples."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

LEAST = 10
"""Samples from which an estimated group or a client can be the worst: among fewer, a few misread ones would decide."""


@dataclass(frozen=True)
class Accuracies:
    """How well one θ does on the test set."""

    accuracy: float
    worst_class_accuracy: float
    worst_group_accuracy: float | None  # None where nobody knows the attributes of test samples
    groups: list[dict[str, Any]]  # class, attribute, correct, count, accuracy (None for a group without samples)
    estimated_groups: list[dict[str, Any]] | None = None  # the same, attributes as they are read; None: not read
    worst_estimated_group_accuracy: float | None = None  # of those with `LEAST` samples or more


@dataclass(frozen=True)
class HeldOut(Accuracies):
    """On samples that clients hold out, all clients together."""

    clients: dict[int, dict[str, Any]] = field(default_factory=dict)  # correct, count, accuracy
    worst_client: int | None = None  # of those that hold out `LEAST` samples or more
    worst_client_accuracy: float | None = None

    @classmethod
    def of(cls, found: Accuracies, counted: Mapping[int, tuple[float, float]]) -> Self:
        """`counted`: client → right answers and samples."""
        clients = {
            client: {"correct": int(correct), "count": int(count), "accuracy": correct / count if count else None}
            for client, (correct, count) in counted.items()
        }
        enough = [(correct / count, client) for client, (correct, count) in counted.items() if count >= LEAST]
        accuracy, worst = min(enough, default=(None, None))
        return cls(**vars(found), clients=clients, worst_client=worst, worst_client_accuracy=accuracy)


def accuracies(table: NDArray[np.int64], attributes_known: bool = True) -> Accuracies:
    """From `table` [2, classes, attributes]: right answers, then samples. Groups without samples do not count."""
    correct, count = table
    groups = _groups(table)
    worst = min(group["accuracy"] for group in groups if group["count"])
    return Accuracies(
        float(correct.sum() / count.sum()), worst_class(groups), worst if attributes_known else None, groups
    )


def with_estimated(found: Accuracies, table: NDArray[np.int64]) -> Accuracies:
    """With groups as they are read off the samples, `table` [2, classes, attributes]."""
    groups = _groups(table)
    enough = [group["accuracy"] for group in groups if group["count"] >= LEAST]
    return replace(found, estimated_groups=groups, worst_estimated_group_accuracy=min(enough, default=None))


def _groups(table: NDArray[np.int64]) -> list[dict[str, Any]]:
    correct, count = table
    return [
        {"class": y, "attribute": a, "correct": int(correct[y, a]), "count": int(count[y, a]),
         "accuracy": float(correct[y, a] / count[y, a]) if count[y, a] else None}
        for y, a in np.ndindex(*count.shape)
    ]  # fmt: skip


def worst_class(groups: list[dict[str, Any]]) -> float:
    """The lowest accuracy of a class, all its groups taken together."""
    correct: Counter[int] = Counter()
    count: Counter[int] = Counter()
    for group in groups:
        correct[group["class"]] += group["correct"]
        count[group["class"]] += group["count"]
    return min(correct[y] / n for y, n in count.items() if n)
