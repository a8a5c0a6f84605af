"""Comparison with the truth: against NumPy's own correlation, where correlation has no meaning, and kept apart."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from feddiverse.experiment import truth
from feddiverse.heterogeneity import triplet
from feddiverse.messages import AttributeTriplet, PaperTriplet, Reply, Task, Vector

COUNTS = np.array([[[90, 10], [10, 90]], [[90, 90], [10, 10]], [[50, 5], [20, 1]]])


def test_r_and_mae_agree_with_numpy() -> None:
    true = triplet(COUNTS)
    estimated = true + np.random.default_rng(0).normal(0, 0.1, true.shape)
    report = truth.compare(dict(enumerate(estimated)), COUNTS)
    for i, name in enumerate(truth.DIMENSIONS):
        assert report["r"][name] == pytest.approx(np.corrcoef(estimated[:, i], true[:, i])[0, 1])
        assert report["mae"][name] == pytest.approx(np.abs(estimated[:, i] - true[:, i]).mean())
    assert report["undefined"] == {}


def test_r_is_none_with_a_reason_where_nothing_varies() -> None:
    counts = np.repeat(COUNTS[:1], 4, axis=0)
    report = truth.compare({k: [0.1 * k, 0, 0] for k in range(4)}, counts)
    assert report["r"] == {"ci": None, "ai": None, "sc": None}
    assert report["undefined"]["ci"] == "the truth is the same for all clients"
    assert truth.compare({0: [0, 0, 0], 1: [0, 0, 0]}, COUNTS)["undefined"]["sc"].startswith("the estimate")
    assert truth.compare({}, COUNTS)["undefined"]["ai"] == "no client was estimated"


def test_only_estimated_clients_count() -> None:
    true = triplet(COUNTS)
    report = truth.compare({2: true[2], 0: true[0]}, COUNTS)
    assert list(report["truth"]) == [0, 2]
    assert report["mae"] == pytest.approx({"ci": 0, "ai": 0, "sc": 0})


@settings(max_examples=30)
@given(arrays.arrays(np.float64, (3, 3), elements=st.integers(0, 50).map(float)))
def test_attribute_accuracy_is_the_best_over_all_namings(confusion: np.ndarray) -> None:
    if confusion.sum() == 0:
        assert truth.attribute_accuracy(confusion) is None
        return
    best = max(sum(confusion[p[t], t] for t in range(3)) for p in itertools.permutations(range(3)))
    assert truth.attribute_accuracy(confusion) == pytest.approx(best / confusion.sum())


class Telling:
    """Clients who compare with the truth; client 1 names the attributes the other way round, client 9 fails."""

    clients: dict[int, int] = {0: 20, 1: 20, 2: 20}  # noqa: RUF012

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        right, swapped = {"0.0": 9.0, "0.1": 1.0, "1.1": 10.0}, {"0.1": 10.0, "1.0": 9.0, "1.1": 1.0}
        for k in clients:
            cells = {f"evaluation_only.{cell}": n for cell, n in (swapped if k == 1 else right).items()}
            yield (
                Reply(k, failure="gone")
                if k == 9
                else Reply(k, 20, metrics={"ci": 0.1 * k, "ai": 0.0, "sc": 0.0, **cells})
            )

    def close(self) -> None: ...


def asked(task: Task, state: dict[str, Any] | None = None) -> truth.TruthKept:
    """Asks all three, and sees to it that only what they found reaches the server."""
    kept = truth.TruthKept(Telling(), state)
    replies = list(kept.ask(task, np.zeros(1, np.float32), [2, 0, 9, 1]))
    assert [(reply.client, reply.metrics.get("ci"), reply.failure) for reply in replies] == [
        (2, 0.2, None), (0, 0.0, None), (9, None, "gone"), (1, 0.1, None)
    ]  # fmt: skip
    assert all(reply.metrics.keys() <= {"ci", "ai", "sc"} for reply in replies)
    return kept


def test_the_papers_clients_are_judged_by_their_own_best_naming() -> None:
    kept = asked(PaperTriplet(0, 1))
    np.testing.assert_array_equal(kept.confusion, 3 * np.array([[9, 1], [0, 10]]))
    np.testing.assert_array_equal(asked(PaperTriplet(0, 1), kept.state()).confusion, 2 * kept.confusion)


def test_attributes_that_all_clients_mean_alike_are_judged_by_one_naming() -> None:
    reading = {name: np.zeros(1, np.float32) for name in ("directions", "origin", "centres", "shares")}
    kept = asked(AttributeTriplet(0, 1, **reading))
    np.testing.assert_array_equal(kept.confusion, 2 * np.array([[9, 1], [0, 10]]) + np.array([[0, 10], [9, 1]]))


def test_where_nobody_knows_the_truth_there_is_nothing_to_remember() -> None:
    kept = truth.TruthKept(Telling())
    assert kept.confusion is None
    assert kept.state() == {}
