"""Accuracy per group (class, attribute), and the worst of them: what the paper reports (Sec. V-A); and per class."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Accuracies:
    """How well one θ does on the test set."""

    accuracy: float
    worst_class_accuracy: float
    worst_group_accuracy: float | None  # None where nobody knows the attributes of test samples
    groups: list[dict[str, Any]]  # class, attribute, correct, count, accuracy (None for a group without samples)


def accuracies(table: NDArray[np.int64], attributes_known: bool = True) -> Accuracies:
    """From `table` [2, classes, attributes]: right answers, then samples. Groups without samples do not count."""
    correct, count = table
    groups = [
        {"class": y, "attribute": a, "correct": int(correct[y, a]), "count": int(count[y, a]),
         "accuracy": float(correct[y, a] / count[y, a]) if count[y, a] else None}
        for y, a in np.ndindex(*count.shape)
    ]  # fmt: skip
    worst = min(group["accuracy"] for group in groups if group["count"])
    return Accuracies(
        float(correct.sum() / count.sum()), worst_class(groups), worst if attributes_known else None, groups
    )


def worst_class(groups: list[dict[str, Any]]) -> float:
    """The lowest accuracy of a class, all its groups taken together."""
    correct: Counter[int] = Counter()
    count: Counter[int] = Counter()
    for group in groups:
        correct[group["class"]] += group["correct"]
        count[group["class"]] += group["count"]
    return min(correct[y] / n for y, n in count.items() if n)
