"""Directions in which clients differ: found where there are some, not invented where there are none."""

import numpy as np
import pytest
from feddiverse.estimation.directions import Scatter, _largest_eigenvalue, chance, find_directions
from synthetic_features import Clients, without_a_model

from feddiverse.messages import FeatureMoments

DIFFERENT = np.array([[[45, 5], [5, 45]]] * 4 + [[[45, 45], [5, 5]]] * 4 + [[[30, 2], [30, 2]], [[2, 30], [2, 30]]])
ALIKE = np.full((10, 2, 2), 25)


@pytest.fixture(autouse=True)
def _features(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_model(monkeypatch)


def scatter_of(clients: Clients) -> Scatter:
    scatter = Scatter.of(clients.ask(FeatureMoments(0, 1), list(clients.sizes)), 2)
    assert scatter is not None
    return scatter


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


def test_nobody_answered() -> None:
    assert Scatter.of([], 2) is None


@pytest.mark.parametrize("size", [1, 9, 10, 60])
def test_the_largest_eigenvalue_is_numpys(size: int) -> None:
    root = np.random.default_rng(size).standard_normal((size, size))
    matrix = root + root.T
    assert _largest_eigenvalue(matrix) == pytest.approx(np.linalg.eigvalsh(matrix)[-1], rel=1e-9)
