"""Quality of triplets: against NumPy's own correlation, and where correlation has no meaning."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from feddiverse.experiment import truth as quality
from feddiverse.heterogeneity import triplet

COUNTS = np.array([[[90, 10], [10, 90]], [[90, 90], [10, 10]], [[50, 5], [20, 1]]])


def test_r_and_mae_agree_with_numpy() -> None:
    true = triplet(COUNTS)
    estimated = true + np.random.default_rng(0).normal(0, 0.1, true.shape)
    report = quality.compare(dict(enumerate(estimated)), COUNTS)
    for i, name in enumerate(quality.DIMENSIONS):
        assert report["r"][name] == pytest.approx(np.corrcoef(estimated[:, i], true[:, i])[0, 1])
        assert report["mae"][name] == pytest.approx(np.abs(estimated[:, i] - true[:, i]).mean())
    assert report["undefined"] == {}


def test_r_is_none_with_a_reason_where_nothing_varies() -> None:
    counts = np.repeat(COUNTS[:1], 4, axis=0)
    report = quality.compare({k: [0.1 * k, 0, 0] for k in range(4)}, counts)
    assert report["r"] == {"ci": None, "ai": None, "sc": None}
    assert report["undefined"]["ci"] == "the truth is the same for all clients"
    assert quality.compare({0: [0, 0, 0], 1: [0, 0, 0]}, COUNTS)["undefined"]["sc"].startswith("the estimate")
    assert quality.compare({}, COUNTS)["undefined"]["ai"] == "no client was estimated"


def test_only_estimated_clients_count() -> None:
    true = triplet(COUNTS)
    report = quality.compare({2: true[2], 0: true[0]}, COUNTS)
    assert list(report["truth"]) == [0, 2]
    assert report["mae"] == pytest.approx({"ci": 0, "ai": 0, "sc": 0})


@settings(max_examples=30)
@given(arrays.arrays(np.float64, (3, 3), elements=st.integers(0, 50).map(float)))
def test_attribute_accuracy_is_the_best_over_all_namings(confusion: np.ndarray) -> None:
    if confusion.sum() == 0:
        assert quality.attribute_accuracy(confusion) is None
        return
    best = max(sum(confusion[p[t], t] for t in range(3)) for p in itertools.permutations(range(3)))
    assert quality.attribute_accuracy(confusion) == pytest.approx(best / confusion.sum())
