"""Sums that one client cannot poison: honest answers pass, lies are refused by name and spoil nothing."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from synthetic_features import Clients, without_a_model

from feddiverse.data.federation import Samples
from feddiverse.estimation.consensus import Consensus
from feddiverse.estimation.directions import Scatter
from feddiverse.estimation.plausible import FEW, moments_problem, triplet_problem, trusted_scatter
from feddiverse.experiment.truth import compare
from feddiverse.heterogeneity import triplet
from feddiverse.messages import AttributeTriplet, FeatureHistogram, FeatureMoments, Reply, Task

GSC = np.array(
    2 * [[[45, 45], [5, 5]]] + 2 * [[[5, 5], [45, 45]]] + 2 * [[[45, 5], [45, 5]]] + 2 * [[[5, 45], [5, 45]]]
    + 8 * [[[45, 5], [5, 45]]] + [[[5, 45], [45, 5]]]
)  # fmt: skip
LIAR = 3
HONEST = [k for k in range(len(GSC)) if k != LIAR]


@pytest.fixture(autouse=True)
def _features(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_model(monkeypatch)


class Liars(Clients):
    """Client 3's answers are changed by `lies`: kind of question → what it makes of the true answer."""

    lies: dict[type[Task], Callable[[Reply], Reply]] = {}  # noqa: RUF012 (set by each test)

    def ask(self, task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        for reply in super().ask(task, clients):
            yield self.lies[type(task)](reply) if reply.client == LIAR and type(task) in self.lies else reply


def estimated(clients: Clients, **settings: float) -> tuple[Consensus, dict[int, np.ndarray]]:
    estimator = Consensus(seed=0, num_classes=2, **settings)
    return estimator, estimator.estimate(1, clients.sizes, clients.ask)


def right(found: dict[int, np.ndarray]) -> float:
    """The worst correlation of the honest clients' triplets with the truth."""
    honest = {place: found[k] for place, k in enumerate(HONEST) if k in found}
    assert len(honest) == len(HONEST)
    return min(r or 0.0 for r in compare(honest, GSC[HONEST], None)["r"].values())  # None: the same of all clients


def moments(clients: Clients) -> list[Reply]:
    return list(clients.ask(FeatureMoments(0, 1), list(clients.sizes)))


def test_of_honest_clients_everyone_counts_and_the_sum_is_the_plain_one() -> None:
    replies = moments(Clients(GSC, gap=4))
    assert all(moments_problem(r.vector, 2, 100, 256) is None for r in replies)
    trusted = trusted_scatter(replies, 2, 1)
    assert trusted is not None
    assert trusted.left_out == {}
    plain = Scatter.unpack(np.sum([r.vector for r in replies], axis=0, dtype=np.float64), 2)
    np.testing.assert_array_equal(trusted.scatter.between, plain.between)
    np.testing.assert_array_equal(trusted.counts[0], [90, 10])
    assert trusted_scatter([], 2, 1) is None


def test_one_of_another_model_does_not_stand_for_the_others() -> None:
    replies = [*moments(Clients(GSC, gap=4, num_features=7))[:1], *moments(Clients(GSC, gap=4))[1:]]
    trusted = trusted_scatter(replies, 2, 1)
    assert trusted is not None
    assert trusted.scatter.num_clients == len(GSC) - 1
    assert trusted.left_out == {0: "it has 7 features where most clients have 20"}


def test_more_features_than_were_asked_for_are_refused_before_they_are_looked_at() -> None:
    """2,000 of them would take seconds of the server's time, 20,000 its memory."""
    reply = moments(Clients(GSC, gap=4))[0]
    assert reply.vector is not None
    assert moments_problem(reply.vector, 2, 100, 20) is None
    problem = moments_problem(reply.vector, 2, 100, 19)
    assert problem == "464 numbers are no moments of 20 features where 19 are the most"


def changed(position: int, value: float) -> Callable[[np.ndarray], None]:
    def change(vector: np.ndarray) -> None:
        vector[position] = value

    return change


def scaled(vector: np.ndarray) -> None:
    vector *= 100


def turned(vector: np.ndarray) -> None:
    d = 20
    within = slice(4 + 2 * d, 4 + 2 * d + d * (d + 1) // 2)
    vector[within] *= -1


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (scaled, "its moments count 10000 samples of its 100"),
        (changed(0, 2), "its moments count 100 samples of its 100"),
        (changed(2, -10), "its moments count 80 samples"),
        (changed(2, 10.5), "its moments count 100.5 samples"),
        (changed(2, 1e6), "its moments count 1.00009e+06 samples"),
        (changed(1, 1), "sums of classes that it counts no sample of"),
        (changed(6, 1e4), "the products in its moments are not those of its sums"),
        (changed(-1, 1e5), "the products in its moments are not those of its sums"),
        (turned, "its scatter is that of no samples"),
        (changed(4 + 40 + 1, 1e4), "its scatter is that of no samples"),  # a covariance beyond the variances
    ],
)  # fmt: skip
def test_moments_of_no_samples_are_refused(lie: Callable[[np.ndarray], None], reason: str) -> None:
    vector = moments(Clients(GSC, gap=4))[LIAR].vector.copy()
    lie(vector)
    problem = moments_problem(vector, 2, 100, 256)
    assert problem is not None
    assert reason in problem


def test_who_is_refused_is_not_believed_again_and_the_others_are_read_right() -> None:
    clients = Liars(GSC, gap=4)
    clients.lies = {FeatureMoments: lambda reply: replace(reply, vector=reply.vector * np.float32(100))}
    estimator, found = estimated(clients)
    assert estimator.refused == {LIAR}
    assert LIAR not in found
    assert right(found) > 0.98
    again = Consensus(seed=0, num_classes=2)
    again.restore(json.loads(json.dumps({**estimator.state(), "reading": {}}, default=list)))
    assert again.refused == {LIAR}
    assert estimator.estimate(2, {LIAR: 100}, clients.ask) == {}


def shifted(clients: Clients, by: float) -> None:
    """Client 3 tells the truth about other features: in one direction, `by` deviations away, for one class."""
    own = clients.samples[LIAR]
    away = np.zeros(own.x.shape[1])
    away[5] = by
    clients.samples[LIAR] = Samples((own.x + np.outer(own.y == 1, away)).astype(np.float32), own.y, own.a)


def test_what_one_client_alone_differs_in_is_left_out_and_named() -> None:
    clients = Clients(GSC, gap=4)
    shifted(clients, 8)
    estimator, found = estimated(clients)
    said = [warning for warning in estimator.warnings if "left out" in warning]
    assert len(said) == 1
    assert said[0].startswith(f"Client {LIAR} is left out of the consensus estimator's sums: it alone makes up")
    assert right(found) > 0.98
    assert LIAR in found  # it is asked for its triplet all the same: it may be honest, and merely alone
    _, spoilt = estimated(clients, largest_share=1.0)
    assert not right(spoilt) > 0.9


def test_features_much_longer_than_all_others_are_left_out() -> None:
    clients = Clients(GSC, gap=4)
    own = clients.samples[LIAR]
    clients.samples[LIAR] = Samples(own.x * np.float32(50), own.y, own.a)
    estimator, found = estimated(clients)
    assert any("times as long as the median client's" in warning for warning in estimator.warnings)
    assert right(found) > 0.98


def test_few_clients_may_differ() -> None:
    clients = Clients(GSC[: FEW - 1], gap=4)
    shifted(clients, 8)
    trusted = trusted_scatter(moments(clients), 2, 1)
    assert trusted is not None
    assert trusted.left_out == {}


@pytest.mark.parametrize("cell", [1e6, 100.0, -5.0])
def test_a_histogram_must_add_up_to_the_moments_counts(cell: float) -> None:
    def lie(reply: Reply) -> Reply:
        cells = np.zeros_like(reply.vector)
        cells[0] = cell
        return replace(reply, vector=cells)

    clients = Liars(GSC, gap=4)
    clients.lies = {FeatureHistogram: lie}
    estimator, found = estimated(clients)
    assert estimator.refused == {LIAR}
    assert right(found) > 0.98


@pytest.mark.parametrize("cells", [0.0, -1e6, 1e14])
def test_who_tells_no_moments_has_no_part_in_the_histogram_either(cells: float) -> None:
    """Else a liar would leave the first question out, and nothing it says to the second could be checked."""
    clients = Liars(GSC, gap=4)
    clients.lies = {
        FeatureMoments: lambda reply: Reply(LIAR, failure="gone"),
        FeatureHistogram: lambda reply: replace(reply, vector=np.full_like(reply.vector, cells)),
    }
    estimator, found = estimated(clients)
    assert right(found) > 0.98
    honest, _ = estimated(Clients(np.delete(GSC, LIAR, axis=0), gap=4))
    assert estimator.separation == pytest.approx(honest.separation, rel=0.1)


def test_a_triplet_must_agree_with_the_counts_told_before() -> None:
    clients = Liars(GSC, gap=4)
    zeros = {"ci": 0.0, "ai": 0.0, "sc": 0.0}
    clients.lies = {AttributeTriplet: lambda reply: replace(reply, metrics=zeros)}
    estimator, found = estimated(clients)  # client 3 has 10 samples of one class and 90 of the other
    assert estimator.refused == {LIAR}
    assert LIAR not in found


def test_a_triplet_must_agree_with_the_histogram_told_before() -> None:
    """Its own CI is right, so only the histogram gives away that AI and SC are not."""
    clients = Liars(GSC, gap=4)
    clients.lies = {AttributeTriplet: lambda reply: replace(reply, metrics={**reply.metrics, "ai": 0.9, "sc": 0.0})}
    estimator, found = estimated(clients)
    assert estimator.refused == {LIAR}
    assert right(found) > 0.98


@pytest.mark.parametrize("gap", [1.5, 2.5, 4.0, 8.0])
@pytest.mark.parametrize("shape", [(2, 2), (3, 3)])
def test_what_a_histogram_implies_is_what_its_client_finds(gap: float, shape: tuple[int, int]) -> None:
    """With values that overlap too: nobody honest is refused, by a margin."""
    shares = np.random.default_rng(1).dirichlet(np.full(shape[0] * shape[1], 0.4), 15)
    counts = np.maximum(np.round(shares * 150), 1).astype(np.int64).reshape(15, *shape)
    clients = Clients(counts, gap=gap)
    estimator = Consensus(seed=0, num_classes=shape[0], num_attributes=shape[1])
    found = estimator.estimate(1, clients.sizes, clients.ask)
    assert estimator.refused == set()
    assert len(estimator._implied) in (0, 15)
    for client, implied in estimator._implied.items():
        assert np.abs(found[client] - implied).max() < 0.1


@given(
    shape=st.sampled_from([(2, 2), (4, 2), (3, 3), (2, 1), (1, 2)]).flatmap(
        lambda shape: arrays(np.int64, shape, elements=st.integers(0, 40)).filter(np.any)
    )
)
def test_no_real_tables_triplet_is_refused(shape: np.ndarray) -> None:
    problem = triplet_problem(triplet(shape), int(shape.sum()), *shape.shape, shape.sum(axis=1).astype(float))
    assert problem is None


@pytest.mark.parametrize(
    ("claim", "num_samples", "reason"),
    [
        ((0.0, 0.5, 0.0), 7, "no 7 samples of 2 kinds have its CI of 0"),
        ((0.2, 0.0, 0.0), 7, "no 7 samples of 2 kinds have its AI of 0"),
        ((0.999, 0.0, 0.0), 100, "no 100 samples of 2 kinds have its CI of 0.999"),
        ((0.9, 0.0, 0.9), 100, "its SC of 0.9 is more than its CI of 0.9 and AI of 0 leave room for"),
        ((1.0, 0.0, 0.5), 100, "its SC of 0.5 is more than"),
    ],
)
def test_what_no_table_of_its_size_has_is_refused(claim: tuple[float, ...], num_samples: int, reason: str) -> None:
    problem = triplet_problem(np.array(claim), num_samples, 2, 2)
    assert problem is not None
    assert reason in problem
