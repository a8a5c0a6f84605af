"""HiCS-FL and HACCS against their formulas, and on clients of which the truth is known."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import entropy
from selection_fakes import FakeClients, build

from feddiverse.client.tasks import answer
from feddiverse.data import open_federation
from feddiverse.messages import LabelCounts, Reply, Task, Train
from feddiverse.models import ModelSpec, initial_theta
from feddiverse.models import build as build_model
from feddiverse.seeding import rng
from feddiverse.selection.haccs import HACCS, clusters, hellinger
from feddiverse.selection.hics_fl import HiCSFL, distances, estimated_entropy
from feddiverse.splits import SPLITS


def test_hics_entropy_and_distance_are_the_papers() -> None:
    updates = np.random.default_rng(0).normal(size=(6, 4))
    found = estimated_entropy(updates, 0.5)
    shares = np.exp(updates / 0.5)
    np.testing.assert_allclose(found, entropy(shares.T))
    np.testing.assert_allclose(estimated_entropy(np.array([[900.0, 0.0], [0.0, 0.0]]), 1e-3), [0, np.log(2)])
    between = distances(updates, found, 10.0)
    u, k = updates[1], updates[4]
    angle = np.arccos(u @ k / np.linalg.norm(u) / np.linalg.norm(k))
    assert between[1, 4] == pytest.approx(angle + 10 * abs(found[1] - found[4]))
    assert distances(np.zeros((2, 3)), np.zeros(2), 10.0).tolist() == [[0, 0], [0, 0]]


def with_biases(selector: HiCSFL, biases: dict[int, list[float]], round: int = 1) -> HiCSFL:
    theta = np.zeros(40, np.float32)
    replies = []
    for client, bias in biases.items():
        vector = np.full(40, 7.0, np.float32)  # nothing but the bias may matter
        vector[38:] = bias
        replies.append(Reply(client, 10, vector))
    selector.observe(round, theta, replies)
    return selector


def test_hics_asks_everyone_once_before_it_selects() -> None:
    selector, sizes = build("hics_fl"), dict.fromkeys(range(20), 5)
    seen: set[int] = set()
    for t in range(1, 4):
        chosen = selector.choose(t, 6, sizes, FakeClients(), rng(0, "select", t))
        assert not seen & set(chosen)
        seen |= set(chosen)
        with_biases(selector, {i: [0.1, 0.2] for i in chosen}, t)
    last = selector.choose(4, 6, sizes, FakeClients(), rng(0, "select", 4))
    assert set(range(20)) - seen <= set(last)


def test_hics_prefers_balanced_clients_at_first_and_nobody_in_the_end() -> None:
    """Two clusters of ten: entropies ln 2 and nearly 0. Of the first pick the odds are exp(γ(1 − t/T)·ln 2) : 1."""
    biases = {i: [0.0, 0.0001 * i] if i < 10 else [9.0, 0.01 * i] for i in range(20)}
    for t, odds in ((0, 2.0**4), (6, 2.0**2), (12, 1.0)):
        selector = with_biases(HiCSFL(slice(38, 40), rounds=12, lr=1.0, clusters=2), biases)
        firsts = Counter(
            selector.choose(t, 1, dict.fromkeys(range(20), 5), FakeClients(), rng(0, "select", n))[0] < 10
            for n in range(800)
        )
        assert firsts[True] / 800 == pytest.approx(odds / (1 + odds), abs=0.06)


def test_hics_leaves_out_no_cluster_that_has_clients_left() -> None:
    """Sampling goes on in other clusters when one is exhausted; larger clients are likelier within one."""
    biases = {i: [0.0, 0.0] if i < 3 else [9.0, 0.0] for i in range(8)}
    selector = with_biases(HiCSFL(slice(38, 40), rounds=100, lr=1.0, clusters=2), biases)
    sizes = {i: 1000 if i == 4 else 1 for i in range(8)}
    times: Counter[int] = Counter()
    for n in range(200):
        chosen = selector.choose(1, 4, sizes, FakeClients(), rng(0, "select", n))
        assert len(set(chosen)) == 4
        times.update(chosen)
    assert times[4] > 5 * max(times[i] for i in (3, 5, 6, 7))


def test_hics_does_not_try_a_dead_client_every_round() -> None:
    selector, sizes = build("hics_fl"), dict.fromkeys(range(12), 5)
    tried = 0
    for t in range(1, 31):
        chosen = selector.choose(t, 4, sizes, FakeClients(), rng(0, "select", t))
        tried += 3 in chosen
        with_biases(selector, {i: [0.1, 0.2] for i in chosen if i != 3}, t)
    assert 2 <= tried <= 5


def test_hics_reads_label_entropy_off_real_training() -> None:
    """After one epoch on digits, the estimate follows the true entropy of the clients' labels."""
    federation = open_federation("gci:digits", 0)
    source = federation.source
    spec = ModelSpec("cnn", 2, source.shape, source.mean, source.std)
    model, theta = build_model(spec), initial_theta(spec, 0)
    selector = HiCSFL(model.head_bias, rounds=100, lr=0.02)
    for k in range(24):
        selector.observe(1, theta, [answer(Train(0, 1, lr=0.02), theta, k, federation.client(k), model)])
    found = selector.findings()["estimated_label_entropy"]
    true = entropy(federation.counts.sum(axis=2).T)
    assert np.corrcoef([found[str(k)] for k in range(24)], true)[0, 1] > 0.9


def test_head_bias_is_where_the_head_keeps_it() -> None:
    for name, shape in (("mlp", (5,)), ("cnn", (3, 28, 28))):
        pictures = ((0.5,) * 3, (0.5,) * 3) if name == "cnn" else (None, None)
        model = build_model(ModelSpec(name, 3, shape, *pictures))
        model.module.head.bias.data[:] = 7.25
        np.testing.assert_array_equal(model.vector()[model.head_bias], [7.25] * 3)
        assert (model.vector() == 7.25).sum() == 3


def test_hellinger_by_hand() -> None:
    between = hellinger(np.array([[3.0, 1.0], [1.0, 3.0], [0.0, 8.0]]))
    p, q = np.sqrt([0.75, 0.25]), np.sqrt([0.25, 0.75])
    assert between[0, 1] == pytest.approx(np.linalg.norm(p - q) / np.sqrt(2))
    assert between[0, 2] == pytest.approx(np.sqrt(1 - np.sqrt(0.25)))  # 1 − Bhattacharyya's coefficient
    assert np.diag(between).tolist() == [0, 0, 0]


def test_haccs_clusters_gsc_by_its_labels() -> None:
    """Two clients of mostly class 0, two of mostly class 1, twenty balanced ones."""
    counts = SPLITS["gsc"].counts.sum(axis=2).astype(float)
    found = clusters(counts)
    for label in set(found.tolist()):
        assert len({tuple(row) for row in counts[found == label]}) == 1
    assert sorted(np.bincount(found).tolist()) == [2, 2, 20]
    alone = clusters(np.array([[9.0, 1], [9, 1], [1, 9], [5, 5]]))
    assert len(set(alone.tolist())) == 3  # two that are like nobody else are not one cluster


class OfGsc(FakeClients):
    def answer(self, task: Task, client: int) -> Reply:
        assert isinstance(task, LabelCounts)
        return Reply(client, 1000, SPLITS["gsc"].counts[client].sum(axis=1).astype(np.float32))


def test_haccs_hears_every_cluster_and_the_worse_ones_more() -> None:
    selector, sizes = build("haccs"), dict.fromkeys(range(24), 10)
    kind = np.array([0] * 2 + [1] * 2 + [2] * 20)
    theta = np.zeros(1, np.float32)
    for t in range(1, 20):  # nobody was heard of: equal weights, three places each (two where there are only two)
        chosen = selector.choose(t, 9, sizes, OfGsc(), rng(0, "select", t))
        assert np.bincount(kind[chosen]).tolist() == [2, 2, 5]
    losses = {0: 2.0, 2: 1.0, 4: 1.0}  # squared: 4 : 1 : 1
    selector.observe(20, theta, [Reply(k, 10, metrics={"loss": loss}) for k, loss in losses.items()])
    picks = Counter(int(kind[selector.choose(21, 1, sizes, OfGsc(), rng(0, "select", t))[0]]) for t in range(600))
    assert picks[0] / 600 == pytest.approx(4 / 6, abs=0.07)


def test_haccs_noise_is_laplace_on_the_client() -> None:
    federation = open_federation("digits-gsc", 0)
    source = federation.source
    model = build_model(ModelSpec("cnn", 2, source.shape, source.mean, source.std))
    samples = federation.client(0)
    exact = np.bincount(samples.y, minlength=2)

    def sent(round: int, epsilon: float) -> np.ndarray:
        vector = answer(LabelCounts(0, round, epsilon=epsilon), np.empty(0, np.float32), 0, samples, model).vector
        assert vector is not None
        return vector

    np.testing.assert_array_equal(sent(1, 0.0), exact)
    np.testing.assert_array_equal(sent(1, 2.0), sent(1, 2.0))
    noise = np.array([sent(t, 0.5) - exact for t in range(400)]).ravel()
    # Counts add up to the client's samples again: half the difference of two Laplace noises of b = 2/ε, E = 3b/4.
    assert np.abs(noise).mean() == pytest.approx(3.0, rel=0.15)
    assert min(sent(t, 0.001).min() for t in range(20)) == 0.0  # never below zero
    asked = OfGsc()
    HACCS(3, 2, epsilon=0.5).choose(1, 9, dict.fromkeys(range(24), 10), asked, rng(0, "select"))
    assert asked.asked[0][0] == LabelCounts(3, 1, epsilon=0.5)
