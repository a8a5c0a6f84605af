"""Group accuracies against scikit-learn's on drawn predictions."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score

from feddiverse.server.groups import accuracies


def test_matches_accuracies_computed_sample_by_sample() -> None:
    rng = np.random.default_rng(0)
    y, a, said = rng.integers(0, 3, 500), rng.integers(0, 2, 500), rng.integers(0, 3, 500)
    table = np.zeros((2, 3, 2), np.int64)
    np.add.at(table[0], (y, a), y == said)
    np.add.at(table[1], (y, a), 1)
    got = accuracies(table)
    by_group = {
        (i, j): accuracy_score(y[(y == i) & (a == j)], said[(y == i) & (a == j)]) for i in range(3) for j in range(2)
    }
    assert got.accuracy == pytest.approx(accuracy_score(y, said))
    assert got.worst_group_accuracy == pytest.approx(min(by_group.values()))
    by_class = [accuracy_score(y[y == i], said[y == i]) for i in range(3)]
    assert got.worst_class_accuracy == pytest.approx(min(by_class))
    assert accuracies(table, attributes_known=False).worst_group_accuracy is None
    assert accuracies(table, attributes_known=False).worst_class_accuracy == got.worst_class_accuracy
    assert {(g["class"], g["attribute"]): g["accuracy"] for g in got.groups} == pytest.approx(by_group)
    assert sum(g["count"] for g in got.groups) == 500


def test_a_group_without_samples_is_not_the_worst() -> None:
    got = accuracies(np.array([[[3, 0]], [[4, 0]]]))
    assert got.worst_group_accuracy == 0.75
    assert got.groups[1]["accuracy"] is None
