"""The mixture on a grid, against scikit-learn's on the samples themselves."""

import numpy as np
import pytest
from feddiverse.estimation.directions import Mixture, fit
from sklearn.mixture import GaussianMixture


def on_grid(x: np.ndarray, y: np.ndarray, bins: int = 200, reach: float = 10) -> tuple[np.ndarray, np.ndarray]:
    edges = np.linspace(-reach, reach, bins + 1)
    points = ((edges[1:] + edges[:-1]) / 2)[:, None]
    return points, np.stack([np.histogram(x[y == c], edges)[0] for c in np.unique(y)]).astype(float)


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
