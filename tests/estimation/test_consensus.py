"""Consensus from first question to triplets, on made-up features and real client code."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from synthetic_features import Clients, without_a_model

from feddiverse import registry
from feddiverse.estimation import consensus
from feddiverse.estimation.base import Estimator
from feddiverse.experiment.truth import TruthKept, compare
from feddiverse.heterogeneity import triplet
from feddiverse.messages import AttributeTriplet, FeatureHistogram, FeatureMoments, Reply, Task

GSC = np.array(
    2 * [[[45, 45], [5, 5]]] + 2 * [[[5, 5], [45, 45]]] + 2 * [[[45, 5], [45, 5]]] + 2 * [[[5, 45], [5, 45]]]
    + 8 * [[[45, 5], [5, 45]]] + [[[5, 45], [45, 5]]]
)  # fmt: skip


@pytest.fixture(autouse=True)
def _features(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_model(monkeypatch)


def build(counts: np.ndarray, **settings: object) -> Estimator:
    _, num_classes, num_attributes = counts.shape
    known = {"seed": 0, "num_classes": num_classes, "num_attributes": num_attributes}
    made: Estimator = registry.make(registry.ESTIMATOR, "consensus", known | settings)
    return made


def random_counts(num_clients: int, num_classes: int, num_attributes: int) -> np.ndarray:
    shares = np.random.default_rng(0).dirichlet(np.full(num_classes * num_attributes, 0.5), num_clients)
    return np.maximum(np.round(shares * 300), 1).astype(np.int64).reshape(num_clients, num_classes, num_attributes)


@pytest.mark.parametrize(
    "counts",
    [GSC, random_counts(15, 4, 2), random_counts(15, 3, 3), random_counts(20, 2, 4)],
    ids=lambda c: str(c.shape),
)
def test_triplets_and_attributes_are_found(counts: np.ndarray) -> None:
    clients, estimator = Clients(counts, gap=5), build(counts)
    truth = TruthKept(SimpleNamespace(ask=lambda task, theta, ids: clients.ask(task, ids)))
    found = estimator.estimate(1, clients.sizes, lambda task, ids: truth.ask(task, np.empty(0, np.float32), ids))
    report = compare(found, counts, truth.confusion)
    assert [type(task) for task in clients.asked] == [FeatureMoments, FeatureHistogram, AttributeTriplet]
    assert estimator.warnings == []
    assert report["r"]["ci"] == pytest.approx(1)
    assert report["r"]["ai"] > 0.98
    assert report["r"]["sc"] > 0.98
    assert report["attribute_accuracy"] > 0.97


def test_overlapping_values_are_counted_without_much_bias() -> None:
    """Two deviations and a half apart, one sample in ten is on the wrong side: a threshold would halve SC."""
    clients, estimator = Clients(GSC, gap=2.5), build(GSC)
    report = compare(estimator.estimate(1, clients.sizes, clients.ask), GSC)
    assert report["r"]["sc"] > 0.9
    assert report["mae"]["sc"] < 0.12


def test_matrices_mean_the_same_on_every_client() -> None:
    clients, estimator = Clients(GSC, gap=6), build(GSC)
    assert estimator.matrices is None
    estimator.wants_matrices = True
    found = estimator.estimate(1, clients.sizes, clients.ask)
    assert estimator.matrices is not None
    matrices = np.stack([estimator.matrices[k] for k in clients.sizes])
    naming = min(([0, 1], [1, 0]), key=lambda order: np.abs(matrices[:, :, order] - GSC).sum())
    assert np.abs(matrices[:, :, naming] - GSC).max() <= 2
    np.testing.assert_allclose(triplet(matrices[3]), found[3])


def test_same_mix_everywhere_is_detected() -> None:
    counts = np.repeat([[[30, 10], [5, 25]]], 12, axis=0) + np.arange(12)[:, None, None] % 2
    clients, estimator = Clients(counts, gap=5), build(counts)
    found = estimator.estimate(1, clients.sizes, clients.ask)
    assert "no attribute" in estimator.warnings[0]
    assert FeatureHistogram not in [type(task) for task in clients.asked]  # the second question would be in vain
    for k in clients.sizes:
        np.testing.assert_allclose(found[k], [triplet(counts[k])[0], 0, 0])


def test_values_that_overlap_too_much_are_warned_about() -> None:
    counts = random_counts(40, 2, 2)
    clients, estimator = Clients(counts, gap=1.2), build(counts)
    estimator.estimate(1, clients.sizes, clients.ask)
    assert "standard deviations apart" in estimator.warnings[0]


@pytest.mark.parametrize("counts", [GSC[:1], GSC[:, :, :1], GSC[:2, :1]], ids=["one client", "one value", "one class"])
def test_small_federations_give_finite_triplets(counts: np.ndarray) -> None:
    clients, estimator = Clients(counts, gap=5), build(counts)
    found = estimator.estimate(1, clients.sizes, clients.ask)
    assert found.keys() == clients.sizes.keys()
    assert np.isfinite(list(found.values())).all()


def test_late_clients_are_read_as_the_first_were_also_after_a_restart() -> None:
    clients, estimator = Clients(GSC, gap=6), build(GSC)
    clients.dead = {4}
    assert 4 not in estimator.estimate(1, clients.sizes, clients.ask)
    clients.dead = set()
    resumed = build(GSC)
    resumed.restore(estimator.state())
    clients.asked.clear()
    late = resumed.estimate(2, {4: clients.sizes[4]}, clients.ask)
    assert [type(task) for task in clients.asked] == [AttributeTriplet]
    np.testing.assert_allclose(late[4], triplet(GSC[4]), atol=0.05)


@pytest.mark.parametrize("dies_after", [0, 1])
def test_nobody_answers(dies_after: int) -> None:
    clients, estimator = Clients(GSC, gap=6), build(GSC)

    def ask(task, ids):
        if len(clients.asked) >= dies_after:
            clients.dead = set(clients.sizes)
        return clients.ask(task, ids)

    assert estimator.estimate(1, clients.sizes, ask) == {}
    clients.dead = set()
    assert len(estimator.estimate(2, clients.sizes, clients.ask)) == len(GSC)


def test_grid_never_grows_beyond_its_bound() -> None:
    assert [consensus.num_bins(q) for q in (1, 2, 3, 4, 5)] == [128, 64, 16, 8, 5]
    assert consensus.num_bins(50) == 2


@pytest.mark.parametrize("odd", [0, 5, 12], ids=["the largest client", "a small one", "the last"])
@pytest.mark.parametrize("sends", ["seven features", "nothing", "no such sum"])
def test_moments_of_another_length_cost_nobody_else_its_triplet(odd: int, sends: str) -> None:
    clients, estimator = Clients(GSC, gap=6), build(GSC)
    clients.sizes[0] += 100  # asked first
    expected = [k for k in clients.sizes if k != odd]
    numbers = {"seven features": 2 + 2 + 2 * 7 + 7 * 8, "nothing": 0, "no such sum": 50}[sends]

    def ask(task: Task, ids: Sequence[int]) -> Iterator[Reply]:
        for k in ids:
            if k != odd:
                yield from clients.ask(task, [k])
            elif type(task) is FeatureMoments:
                yield Reply(k, vector=np.ones(numbers, np.float32))
            else:
                yield Reply(k, failure="its features do not fit")

    assert sorted(estimator.estimate(1, clients.sizes, ask)) == expected
    assert estimator.warnings == []


def test_one_first_answer_is_not_all_there_is_to_learn_from() -> None:
    clients, estimator = Clients(GSC, gap=6), build(GSC)
    clients.dead = set(clients.sizes) - {3}
    assert estimator.estimate(1, clients.sizes, clients.ask) == {}
    assert estimator.estimate(2, clients.sizes, clients.ask) == {}
    (warning,) = estimator.warnings
    assert "Too few clients answered" in warning
    clients.dead = set()
    resumed = build(GSC)
    resumed.restore(estimator.state())
    report = compare(resumed.estimate(3, clients.sizes, clients.ask), GSC)
    assert report["r"]["sc"] > 0.98
    assert resumed.warnings == []


def test_a_first_client_on_its_own_does_not_blind_the_estimator_for_good() -> None:
    clients, estimator = Clients(GSC, gap=6), build(GSC)
    estimator.wants_matrices = True
    alone = estimator.estimate(1, {3: clients.sizes[3]}, clients.ask)
    np.testing.assert_allclose(alone[3], [triplet(GSC[3])[0], 0, 0])
    assert "too few clients or samples" in estimator.warnings[0]
    rest = {k: size for k, size in clients.sizes.items() if k != 3}
    found = estimator.estimate(2, rest, clients.ask)
    assert {matrix.shape for matrix in estimator.matrices.values()} == {(2, 2)}
    assert compare(found, GSC)["r"]["sc"] > 0.98
