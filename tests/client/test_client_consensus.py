"""Consensus on a client: its sums are what they claim, add up over clients, and its count is the most likely one."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from feddiverse.client import consensus
from feddiverse.data.federation import Samples
from feddiverse.estimation.directions import Scatter
from feddiverse.messages import AttributeTriplet, FeatureHistogram, FeatureMoments, Reply

MODEL = SimpleNamespace(spec=SimpleNamespace(num_classes=3))


@pytest.fixture(autouse=True)
def _features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let "pictures" be the features themselves."""
    monkeypatch.setattr(consensus, "features", lambda theta, samples, model: samples.x)


def some(n: int = 40, d: int = 5, classes: int = 3, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    x = rng.normal(2, 1, (n, d)).astype(np.float32)
    return Samples(x, rng.integers(0, classes, n), rng.integers(0, 2, n))


def moments_of(samples: Samples, dimensions: int = 9) -> Reply:
    return consensus.feature_moments(FeatureMoments(0, 1, dimensions), None, 0, samples, MODEL)


def test_moments_are_those_of_numpy() -> None:
    samples = some(classes=2)  # class 2 is missing
    scatter = Scatter.unpack(moments_of(samples).vector.astype(np.float64), 3)
    assert (scatter.num_clients, scatter.num_cells) == (1, 2)
    np.testing.assert_array_equal(scatter.counts, np.bincount(samples.y, minlength=3))
    cells = [samples.x[samples.y == y].astype(float) for y in range(2)]
    np.testing.assert_allclose(scatter.sums[:2], [x.sum(0) for x in cells], rtol=1e-5)
    within = sum(np.cov(x.T, bias=True) * len(x) for x in cells)
    np.testing.assert_allclose(scatter.within, within, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(scatter.covariance, np.cov(samples.x.T, bias=True), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(scatter.between, 0, atol=1e-4)  # one client does not differ from itself


def test_message_has_the_documented_size() -> None:
    y, d = 3, 5
    assert moments_of(some(d=d)).num_bytes == 4 * (2 + y + y * d + d * (d + 1))


def test_projection_is_shared_and_only_for_more_features_than_asked() -> None:
    x = some(d=30).x.astype(np.float32)
    a, b = (consensus.projected(FeatureMoments(7, round, 6), x) for round in (1, 9))
    assert a.shape == (40, 6)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(consensus.projected(FeatureMoments(7, 1, 30), x), x)
    # Distances survive a random projection on average.
    wide = np.random.default_rng(0).normal(size=(300, 1000)).astype(np.float32)
    narrow = consensus.projected(FeatureMoments(0, 1, 200), wide)
    ratio = np.square(narrow).sum(1) / np.square(wide).sum(1) * 1000 / 200
    assert ratio.mean() == pytest.approx(1, abs=0.05)


def test_histogram_counts_everyone_once_and_keeps_what_is_beyond_the_grid() -> None:
    x = np.array([[-99.0], [-4.9], [0.1], [4.9], [99.0]], np.float32)
    samples = Samples(x, np.array([0, 0, 1, 0, 2]), np.zeros(5, np.int64))
    task = FeatureHistogram(
        0, 1, directions=np.ones((1, 1), np.float32), origin=np.zeros(1, np.float32), bins=10, reach=5.0
    )
    reply = consensus.feature_histogram(task, None, 0, samples, MODEL)
    assert reply.vector is not None
    counts = reply.vector.reshape(3, 10)
    np.testing.assert_array_equal(counts[0], [2, 0, 0, 0, 0, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(np.argwhere(counts[1:]), [[0, 5], [1, 9]])


def test_a_clients_shares_maximise_the_posterior() -> None:
    """Against a one-dimensional optimiser: the attribute boundary EM settles on is that of the best share."""
    rng = np.random.default_rng(3)
    p = np.concatenate([rng.normal(0, 1, 90), rng.normal(2, 1, 10)])
    likelihoods = consensus.log_likelihoods(p[:, None], np.array([[[0.0], [2.0]]], np.float32))
    prior = np.array([0.6, 0.4])

    def cost(share: float) -> float:
        mixed = np.log(np.exp(likelihoods) @ [1 - share, share]).sum()
        return -float(mixed + consensus.PRIOR_SAMPLES * (prior @ np.log([1 - share, share])))

    best = minimize_scalar(cost, bounds=(1e-6, 1 - 1e-6), method="bounded").x
    expected = np.log(best / (1 - best)) + likelihoods[:, 1] - likelihoods[:, 0] > 0
    found = consensus.posteriors(likelihoods, np.zeros(100, np.int64), prior[None]).argmax(axis=1)
    np.testing.assert_array_equal(found, expected)
    # A plain threshold half-way would count far too many of the rare attribute.
    assert abs(found.sum() - 10) < abs((p > 1).sum() - 10)


@pytest.mark.parametrize("n", [1, 3])
def test_tiny_clients_are_no_trouble(n: int) -> None:
    samples = replace(some(n, d=2, classes=1), a=None)
    assert np.isfinite(moments_of(samples).vector).all()
    task = AttributeTriplet(
        0, 1, directions=np.eye(2, 1, dtype=np.float32), origin=np.zeros(1, np.float32),
        centres=np.array([[[-500.0], [900.0]]] * 3, np.float32), shares=np.full((3, 2), 0.5, np.float32), matrix=True,
    )  # fmt: skip
    reply = consensus.attribute_triplet(task, None, 0, samples, MODEL)
    assert reply.metrics == {"ci": 1.0, "ai": 1.0, "sc": 0.0}
    np.testing.assert_array_equal(reply.vector, [n, 0, 0, 0, 0, 0])
    assert reply.num_bytes == 24 + 24
    compared = consensus.attribute_triplet(task, None, 0, replace(samples, a=np.ones(n, np.int64)), MODEL)
    assert compared.metrics == {**reply.metrics, "evaluation_only.0.1": n}  # where the truth is known
    assert compared.num_bytes == reply.num_bytes
