"""The statistics behind consensus: directions are found where clients differ and not invented where they do not; the
mixture on a grid against scikit-learn's on the samples themselves."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture
from synthetic_features import Clients, without_a_model

from feddiverse.estimation.directions import (
    Mixture,
    Scatter,
    _by_kmeans,
    _largest_eigenvalue,
    chance,
    find_directions,
    fit,
)
from feddiverse.messages import FeatureMoments

DIFFERENT = np.array([[[45, 5], [5, 45]]] * 4 + [[[45, 45], [5, 5]]] * 4 + [[[30, 2], [30, 2]], [[2, 30], [2, 30]]])
ALIKE = np.full((10, 2, 2), 25)


@pytest.fixture(autouse=True)
def _features(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_model(monkeypatch)


def scatter_of(clients: Clients) -> Scatter:
    replies = clients.ask(FeatureMoments(0, 1), list(clients.sizes))
    return Scatter.unpack(np.sum([reply.vector for reply in replies], axis=0, dtype=np.float64), 2)


def test_scatter_within_and_between_make_up_the_total() -> None:
    clients = Clients(DIFFERENT, gap=3)
    scatter = scatter_of(clients)
    x, y = np.concatenate([s.x for s in clients.samples]), np.concatenate([s.y for s in clients.samples])
    total = sum(np.cov(x[y == c].T, bias=True) * (y == c).sum() for c in range(2))
    np.testing.assert_allclose(scatter.within + scatter.between, total, rtol=1e-3, atol=0.1)
    assert scatter.freedom == 2 * len(DIFFERENT) - 2


def test_direction_of_the_attribute_is_found() -> None:
    clients = Clients(DIFFERENT, gap=4)
    found = find_directions(scatter_of(clients), 1, seed=0)
    assert found.strength > 3
    x, a = np.concatenate([s.x for s in clients.samples]), np.concatenate([s.a for s in clients.samples])
    p = x @ found.axes[:, 0]
    assert abs(np.corrcoef(p, a)[0, 1]) > 0.8


@pytest.mark.parametrize("seed", range(8))
def test_clients_alike_look_like_chance(seed: int) -> None:
    assert find_directions(scatter_of(Clients(ALIKE, gap=4, seed=seed)), 1, seed=0).strength < 1.6


@pytest.mark.parametrize("freedom", [3, 60])  # fewer and more than dimensions
def test_chance_is_a_high_quantile_of_simulated_federations(freedom: int) -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(8, 8)) / 3
    w = root @ root.T + np.eye(8)
    leading = []
    for _ in range(1000):
        means = np.linalg.cholesky(w) @ rng.normal(size=(8, freedom))
        b = means @ means.T - freedom * w
        leading.append(np.linalg.eigvals(np.linalg.solve(w + np.eye(8), b)).real.max())
    # The largest of 40 draws leaves 1/41 of all beyond it on average; with one seed it may be anything near.
    beyond = np.mean([np.mean(np.array(leading) > chance(w, freedom, seed=seed)) for seed in range(30)])
    assert beyond == pytest.approx(1 / 41, abs=0.015)


def test_too_little_to_compare_is_no_direction() -> None:
    for counts in (DIFFERENT[:1], np.array([[[1, 0], [0, 1]]] * 3)):  # one client; one sample a cell
        found = find_directions(scatter_of(Clients(counts, gap=4)), 1, seed=0)
        assert found.strength == 0
        assert np.isfinite(found.axes).all()


@pytest.mark.parametrize("deviation", [0, 1e-4])  # answers travel as float32: of 1 ± 1e-4 only noise is left
def test_dead_features_are_left_out(deviation: float) -> None:
    clients = Clients(DIFFERENT, gap=4)
    rng = np.random.default_rng(0)
    for s in clients.samples:
        s.x[:, 3] = 1 + deviation * rng.normal(size=len(s))
    found = find_directions(scatter_of(clients), 1, seed=0)
    assert found.axes[3, 0] == 0
    assert found.strength > 3


@pytest.mark.parametrize("size", [1, 9, 10, 60])
def test_the_largest_eigenvalue_is_numpys(size: int) -> None:
    root = np.random.default_rng(size).standard_normal((size, size))
    matrix = root + root.T
    assert _largest_eigenvalue(matrix) == pytest.approx(np.linalg.eigvalsh(matrix)[-1], rel=1e-9)


def on_grid(x: np.ndarray, y: np.ndarray, bins: int = 200, reach: float = 10) -> tuple[np.ndarray, np.ndarray]:
    edges = np.linspace(-reach, reach, bins + 1)
    points = ((edges[1:] + edges[:-1]) / 2)[:, None]
    return points, np.stack([np.histogram(x[y == c], edges)[0] for c in np.unique(y)]).astype(float)


@pytest.mark.parametrize("num_values", [2, 3, 4])
def test_cells_are_grouped_as_sklearn_groups_them_and_numbered_from_left_to_right(num_values: int) -> None:
    rng = np.random.default_rng(num_values)
    points = np.stack(np.meshgrid(np.linspace(-5, 5, 21), np.linspace(-5, 5, 21)), axis=2).reshape(-1, 2)
    middles = np.array([[-3, -3], [-1, 3], [1, -1], [4, 2]])[:num_values]
    weights = rng.poisson(50 * np.exp(-np.square(points[:, None] - middles).sum(axis=2) / 2).sum(axis=1)).astype(float)
    ours = _by_kmeans(points, weights, num_values, seed=1)
    theirs = KMeans(num_values, n_init=10, random_state=0).fit(points, sample_weight=weights)

    def cost(labels: np.ndarray) -> float:
        means = [np.average(points[labels == k], axis=0, weights=weights[labels == k]) for k in range(num_values)]
        return float(
            sum(weights[labels == k] @ np.square(points[labels == k] - means[k]).sum(1) for k in range(num_values))
        )

    assert cost(ours) <= theirs.inertia_ * (1 + 1e-9)
    assert np.array_equal(ours, _by_kmeans(points, weights, num_values, seed=2))
    assert (np.diff([points[ours == k, 0].mean() for k in range(num_values)]) > 0).all()


def test_one_class_agrees_with_sklearn() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-2, 1, 700), rng.normal(2, 1, 300)])
    found = fit(*on_grid(x, np.zeros(1000)), 2, seed=0)
    theirs = GaussianMixture(2, covariance_type="tied", random_state=0, tol=1e-7, max_iter=500).fit(x[:, None])
    ours, reference = np.sort(found.centres[:, 0]), np.sort(theirs.means_[:, 0])
    np.testing.assert_allclose(ours, reference, atol=0.03)
    assert found.covariance[0, 0] == pytest.approx(theirs.covariances_[0, 0], rel=0.03)
    np.testing.assert_allclose(np.sort(found.shares[0]), np.sort(theirs.weights_), atol=0.01)
    assert found.separation == pytest.approx(abs(np.diff(reference)[0]) / np.sqrt(theirs.covariances_[0, 0]), rel=0.03)


def test_classes_share_values_but_not_how_common_they_are() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(-2, 1, 950), rng.normal(2, 1, 50), rng.normal(-2, 1, 20), rng.normal(2, 1, 180)])
    y = np.repeat([0, 1], [1000, 200])
    found = fit(*on_grid(x, y), 2, seed=0)
    low = found.centres[:, 0].argmin()
    np.testing.assert_allclose(found.shares[:, low], [0.95, 0.1], atol=0.03)
    np.testing.assert_allclose(found.shares.sum(axis=1), 1)


def test_a_class_may_be_shifted_as_a_whole() -> None:
    rng = np.random.default_rng(2)
    means = np.repeat([-2.0, 2.0, -1.0, 3.0], 500)  # the second class lies one to the right
    found = fit(*on_grid(rng.normal(means, 1), np.repeat([0, 1], 1000)), 2, seed=0)
    assert np.diff(found.offsets[:, 0])[0] == pytest.approx(1, abs=0.2)
    np.testing.assert_allclose(found.shares, 0.5, atol=0.05)


def test_more_values_than_filled_cells_stay_finite() -> None:
    found = fit(np.zeros((1, 1)), np.array([[5.0], [0.0]]), 3, seed=0)
    assert np.isfinite(found.centres).all()
    assert (found.shares > 0).all()


def test_separation_is_that_of_the_nearest_two() -> None:
    centres = np.array([[0.0, 0], [3, 0], [0, 8]])
    assert Mixture(centres, np.zeros((1, 2)), np.diag([4.0, 1.0]), np.ones((1, 3)) / 3).separation == pytest.approx(1.5)
