"""Noise that makes what leaves a client private: its distribution, its limits, and what it is drawn from."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats

from feddiverse.client import consensus, noise, tasks
from feddiverse.data.federation import Samples
from feddiverse.heterogeneity import triplet
from feddiverse.messages import AttributeTriplet, LabelCounts, Train, TrueMatrix

Y, A = np.repeat([0, 1], [30, 10]), np.tile([0, 0, 0, 1], 10)
SAMPLES = Samples(np.zeros((40, 3), np.float32), Y, A)
MODEL = SimpleNamespace(spec=SimpleNamespace(num_classes=2))
TABLE = np.array([[23, 7], [7, 3]])


def drawn(scale: float, n: int = 200_000) -> np.ndarray:
    u = np.random.default_rng(0).random(2 * n)
    return noise.discrete_laplace(u, scale)


@pytest.mark.parametrize("scale", [0.4, 2.0, 9.0])
def test_noise_of_counts_is_discrete_laplace(scale: float) -> None:
    """Against SciPy's distribution: a chi-square test, its seed fixed."""
    found, times = np.unique(drawn(scale), return_counts=True)
    expected = 200_000 * scipy.stats.dlaplace(1 / scale).pmf(found)
    common = expected > 20
    statistic = (np.square(times - expected) / expected)[common].sum()
    assert statistic < scipy.stats.chi2(common.sum() - 1).ppf(1 - 1e-4)


def test_two_tables_that_differ_in_one_sample_cannot_be_told_apart_beyond_epsilon() -> None:
    """The definition itself: P[answer | table] ≤ exp(ε) P[answer | neighbour] for every answer, exactly."""
    epsilon = 0.7
    law = scipy.stats.dlaplace(epsilon / noise.REPLACED)
    answers = np.arange(-60, 61)
    here = law.logpmf(answers - 5)[:, None] + law.logpmf(answers - 8)[None]
    there = law.logpmf(answers - 4)[:, None] + law.logpmf(answers - 9)[None]  # one sample is of the other class
    assert np.abs(here - there).max() == pytest.approx(epsilon)


def test_the_distribution_used_is_that_one() -> None:
    """Deviation of the noise on a count of a large client, where no limit is in the way."""
    many = Samples(np.zeros((20_000, 1)), np.repeat([0, 1], 10_000), None)
    counts = np.array([10_000.0, 10_000.0])
    told = [noise.private_counts(LabelCounts(s, 1, epsilon=0.5), counts, 3, many)[0] for s in range(2000)]
    # The two counts are moved to add up again, each by half of what is too much: half the difference of two noises.
    deviation = scipy.stats.dlaplace(0.5 / 2).std() / math.sqrt(2)
    kurtosis = 1.5  # in excess of a Gaussian's: half of a Laplace's 3, for a sum of two
    assert np.std(told) == pytest.approx(deviation, rel=4 * math.sqrt((2 + kurtosis) / (4 * 2000)))
    assert np.mean(told) == pytest.approx(10_000, abs=4 * deviation / math.sqrt(2000) + 0.5)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 5.0])
def test_noisy_counts_are_counts_of_as_many_samples(epsilon: float) -> None:
    for seed in range(50):
        told = noise.private_counts(TrueMatrix(seed, 1, 2, epsilon=epsilon), TABLE.astype(float), 0, SAMPLES)
        assert told.shape == TABLE.shape
        assert told.min() >= 0
        assert told.sum() == 40
        assert (told == np.round(told)).all()


def test_the_nearest_possible_table_is_found() -> None:
    """Against all tables of six samples in three cells."""
    every = [(a, b, 6 - a - b) for a in range(7) for b in range(7 - a)]
    rng = np.random.default_rng(1)
    for _ in range(50):
        noisy = rng.integers(-5, 9, 3).astype(float)
        nearest = min(np.square(noisy - table).sum() for table in every)
        assert np.square(noisy - noise.possible(noisy, 6)).sum() == nearest
    assert noise.possible(np.array([2.0, -3.0, 1.0]), 6, all_counted=False).tolist() == [2, 0, 1]
    assert noise.possible(np.array([9.0, 0.0, 0.0]), 6, all_counted=False).tolist() == [6, 0, 0]


def test_without_epsilon_counts_are_exact_and_with_a_large_one_nearly() -> None:
    for epsilon in (0.0, 60.0):
        reply = tasks.true_matrix(TrueMatrix(1, 1, 2, epsilon=epsilon), None, 0, SAMPLES, MODEL)
        assert reply.vector.tolist() == TABLE.ravel().tolist()
    counts = tasks.label_counts(LabelCounts(1, 1), None, 0, SAMPLES, MODEL)
    assert counts.vector.tolist() == [30, 10]


def test_noise_is_the_same_for_the_same_seed_round_and_client_only() -> None:
    def told(seed: int, round: int, client: int) -> list[float]:
        many = Samples(np.zeros((1000, 1)), np.zeros(1000, np.int64), None)
        return noise.private_counts(LabelCounts(seed, round, epsilon=0.05), np.full(4, 250.0), client, many).tolist()

    assert told(1, 2, 3) == told(1, 2, 3)
    assert len({tuple(told(*key)) for key in [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)]}) == 4


def test_a_deployed_clients_noise_is_not_the_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server knows the seed: noise that it could compute would hide nothing."""
    secret = Samples(SAMPLES.x, SAMPLES.y, None, secret_noise=True)
    monkeypatch.setattr(noise.seeding, "rng", lambda *key: pytest.fail("the seed was used"))
    monkeypatch.setattr(noise.os, "urandom", lambda n: b"\x7f" * n)
    assert noise.private_counts(LabelCounts(1, 2, epsilon=1), np.array([30.0, 10]), 0, secret).tolist() == [30, 10]
    task = Train(1, 1, clip=1.0, noise=2.0)
    update = noise.private_update(task, np.zeros(3, np.float32), 0, secret)
    assert update == pytest.approx(2 * scipy.stats.norm.ppf(0x7F7F7F7F7F7F7F7F / 2**64), rel=1e-6)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> AttributeTriplet:
    """A question whose directions read the first feature; samples of attribute 1 lie at 4."""
    monkeypatch.setattr(consensus, "features", lambda theta, samples, model: samples.x)
    return AttributeTriplet(
        5, 1, 3,
        directions=np.eye(3, 1, dtype=np.float32), origin=np.zeros(1, np.float32),
        centres=np.array([[[0.0], [4.0]]] * 2, np.float32), shares=np.full((2, 2), 0.5, np.float32), matrix=True,
    )  # fmt: skip


def test_triplets_are_those_of_the_noisy_table(read: AttributeTriplet) -> None:
    from dataclasses import replace

    seen = Samples((4.0 * A[:, None] * np.eye(1, 3)).astype(np.float32), Y, A)
    plain = consensus.attribute_triplet(read, None, 0, seen, MODEL)
    assert plain.vector.tolist() == TABLE.ravel().tolist()
    noisy = consensus.attribute_triplet(replace(read, epsilon=0.2), None, 0, seen, MODEL)
    assert noisy.vector.tolist() != plain.vector.tolist()
    expected = triplet(noisy.vector.reshape(2, 2))
    assert [noisy.metrics[name] for name in ("ci", "ai", "sc")] == pytest.approx(expected.tolist())


def test_with_noise_one_sample_changes_one_count(read: AttributeTriplet, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the noise is made for. Without it, a client's own shares move samples that lie between the values."""
    from dataclasses import replace

    monkeypatch.setattr(consensus, "private_counts", lambda task, counts, client, samples, which="": counts)

    def table(first: float, epsilon: float) -> np.ndarray:
        x = np.zeros((9, 3), np.float32)
        x[:, 0] = [first, *[1.95] * 8]
        seen = Samples(x, np.zeros(9, np.int64), None)
        task = replace(read, epsilon=epsilon)
        return consensus.attribute_triplet(task, None, 0, seen, MODEL).vector

    assert np.abs(table(0.0, 1.0) - table(4.0, 1.0)).sum() == 2
    assert np.abs(table(-9.0, 0.0) - table(99.0, 0.0)).sum() >= 2


def test_updates_are_clipped_and_noise_is_gaussian() -> None:
    rng = np.random.default_rng(2)
    update = rng.normal(size=50_000).astype(np.float32)
    clipped = noise.private_update(Train(1, 1, clip=3.0), update, 0, SAMPLES)
    assert np.linalg.norm(clipped) == pytest.approx(3.0, rel=1e-6)
    assert clipped == pytest.approx(update * 3 / np.linalg.norm(update), rel=1e-4, abs=1e-7)
    short = (update * 1e-4).astype(np.float32)
    assert noise.private_update(Train(1, 1, clip=3.0), short, 0, SAMPLES) == pytest.approx(short)
    added = noise.private_update(Train(1, 1, clip=3.0, noise=0.5), short, 0, SAMPLES).astype(float) - short
    assert scipy.stats.kstest(added / 1.5, "norm").pvalue > 1e-3
    again = noise.private_update(Train(1, 1, clip=3.0, noise=0.5), short, 0, SAMPLES).astype(float) - short
    assert (added == again).all()
