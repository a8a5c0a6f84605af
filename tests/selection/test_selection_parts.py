"""The parts selectors are made of: draws, draws, extremes, statistics."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddiverse.experiment.truth import statistics
from feddiverse.seeding import rng
from feddiverse.selection.draws import by_weight, lowest
from feddiverse.selection.feddiverse_pool import Extremes, WeightedDraws
from feddiverse.selection.feddiverse_rule import draw, farthest


def test_by_weight_is_successive_sampling() -> None:
    """Two draws from weights 1, 2, 5: P(first = i, second = j) = w_i/8 · w_j/(8 − w_i)."""
    weights, draws = np.array([1.0, 2.0, 5.0]), 6000
    pairs = Counter(tuple(by_weight(np.arange(3), weights, 2, rng(0, "draw", t))) for t in range(draws))
    for i in range(3):
        for j in set(range(3)) - {i}:
            p = weights[i] / 8 * weights[j] / (8 - weights[i])
            assert abs(pairs[i, j] - draws * p) <= 5 * np.sqrt(draws * p * (1 - p))


def test_by_weight_takes_zeros_only_when_nothing_else_is_left() -> None:
    for t in range(50):
        chosen = by_weight(np.array([5, 6, 7, 8]), np.array([0.0, 1.0, 0.0, 1e-9]), 3, rng(0, "draw", t))
        assert set(chosen[:2]) == {6, 8}


def test_lowest_breaks_ties_at_random() -> None:
    firsts = Counter(
        lowest(np.array([3, 4, 5]), np.array([1.0, 0.0, 0.0]), 1, rng(0, "draw", t))[0] for t in range(400)
    )
    assert firsts.keys() == {4, 5}
    assert abs(firsts[4] - 200) < 50


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40).filter(any), st.integers(0, 1000))
def test_draws_draws_what_a_full_scan_draws(counts: list[int], seed: int) -> None:
    tickets, draws = np.array(counts), WeightedDraws(np.array(counts))
    one, other = np.random.default_rng(seed), np.random.default_rng(seed)
    while tickets.any():
        winner = draws.draw(one)
        assert winner == draw(tickets, other)
        assert draws.before(winner) == tickets[:winner].sum()
        assert draws.holder(draws.before(winner)) == winner
        draws.remove(winner)
        tickets[winner] = 0
    assert draws.total == 0
    draws.put_back()
    assert draws.total == sum(counts)


@pytest.mark.parametrize("num_points", [1, 5, 9000])
def test_extremes_are_those_of_a_full_scan(num_points: int) -> None:
    dice = np.random.default_rng(num_points)
    points = np.round(dice.dirichlet([0.5, 0.5, 0.5], num_points), 2)
    extremes, left = Extremes(points), np.ones(num_points, bool)
    for _ in range(min(num_points, 60)):
        direction = np.round(dice.normal(size=3), 1)
        found = extremes.farthest(direction)
        np.testing.assert_array_equal(found, farthest(points, direction, left))
        extremes.remove(int(found[0]))
        left[found[0]] = False
    extremes.put_back()
    direction = np.array([0.0, 0.0, -1.0])
    np.testing.assert_array_equal(extremes.farthest(direction), farthest(points, direction, np.ones(num_points, bool)))


def test_statistics_by_hand() -> None:
    counts = np.array([[[9, 1], [1, 9]], [[5, 5], [5, 5]], [[0, 2], [2, 0]], [[1, 1], [1, 1]]])
    found = statistics([[0, 1], [0, 2], [0, 1]], counts)
    assert found.times_chosen.tolist() == [3, 2, 1, 0]
    assert found.effective_clients == pytest.approx(np.exp(0.5 * np.log(2) + np.log(3) / 3 + np.log(6) / 6))
    assert found.pooled[1].tolist() == [[9, 3], [3, 9]]
    np.testing.assert_allclose(found.smallest_share, [6 / 40, 3 / 24, 6 / 40])
    assert found.summary()["clients_chosen"] == 3


def test_statistics_of_nothing_and_of_everyone() -> None:
    counts = np.ones((4, 2, 2), np.int64)
    assert statistics([], counts).summary() == {
        "clients_chosen": 0, "effective_clients": 0, "most_often": 0, "smallest_share_mean": 0
    }  # fmt: skip
    assert statistics([[0, 1, 2, 3]] * 3, counts).effective_clients == pytest.approx(4)
