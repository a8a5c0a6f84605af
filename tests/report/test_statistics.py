"""Means, intervals and rounds, held against SciPy and numbers worked by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from feddiverse.report.statistics import Difference, paired_difference, spread, stay_sure, time_to_reach

ACCURACIES = st.lists(st.floats(0, 1), min_size=2, max_size=8)


def test_spread_uses_n_minus_one() -> None:
    found = spread([0.891, 0.896, 0.833])
    assert found.mean == pytest.approx(0.873333, abs=1e-6)
    assert found.sd == pytest.approx(math.sqrt((0.017667**2 + 0.022667**2 + 0.040333**2) / 2), abs=1e-5)
    assert spread([0.5]).sd is None


@given(ours=ACCURACIES, theirs=ACCURACIES)
def test_interval_is_scipys_paired_t_interval(ours: list[float], theirs: list[float]) -> None:
    n = min(len(ours), len(theirs))
    found = paired_difference(dict(enumerate(ours[:n])), dict(enumerate(theirs[:n])))
    assert found is not None
    pairs = [a - b for a, b in zip(ours[:n], theirs[:n], strict=True)]
    if max(pairs) - min(pairs) < 1e-9:  # SciPy's own test is not defined without spread
        assert found.low == pytest.approx(found.high, abs=1e-7)
        return
    expected = stats.ttest_rel(ours[:n], theirs[:n]).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    if min(abs(expected.low), abs(expected.high)) > 1e-9:  # else rounding decides on which side of zero it lies
        assert found.is_sure == (expected.low > 0 or expected.high < 0)


def test_difference_pairs_by_seed_and_needs_two_for_an_interval() -> None:
    found = paired_difference({0: 0.9, 1: 0.8, 7: 0.1}, {1: 0.7, 0: 0.6, 9: 0.9})
    assert found is not None
    assert (found.mean, found.n) == (pytest.approx(0.2), 2)
    single = paired_difference({3: 0.9}, {3: 0.8})
    assert single is not None
    assert (single.low, single.high, single.is_sure) == (None, None, False)
    assert paired_difference({0: 0.9}, {1: 0.9}) is None


def test_time_to_reach_is_the_first_evaluated_round_over_seeds_that_reach_it() -> None:
    curves = [([5, 10, 15], [0.7, 0.9, 0.85]), ([5, 10, 15], [0.5, 0.6, 0.9]), ([5, 10, 15], [0.1, 0.2, 0.3])]
    found = time_to_reach(curves, 0.9)
    assert (found.mean, found.reached, found.n) == (12.5, 2, 3)
    assert time_to_reach(curves, 0.95).mean is None


def test_p_is_that_of_a_paired_t_test():
    ours, theirs = {0: 0.91, 1: 0.94, 2: 0.88, 3: 0.97}, {0: 0.90, 1: 0.91, 2: 0.89, 3: 0.93}
    found = paired_difference(ours, theirs)
    assert found.p == pytest.approx(stats.ttest_rel(list(ours.values()), list(theirs.values())).pvalue)
    assert found.is_sure == (found.p < 0.05)


def test_p_where_all_differences_are_the_same():
    assert paired_difference({0: 0.75, 1: 0.5, 2: 0.25}, {0: 0.5, 1: 0.25, 2: 0.0}).p == 0.0
    assert paired_difference({0: 0.5, 1: 0.25, 2: 0.75}, {0: 0.5, 1: 0.25, 2: 0.75}).p == 1.0


def test_many_comparisons_are_corrected_for_by_holm():
    """By hand: 0.005 ≤ 0.05/4, 0.01 ≤ 0.05/3, 0.03 > 0.05/2, and what comes after the first that fails fails too."""

    def of(p: float, n: int = 3) -> Difference:
        return Difference(0.1, 0.0, 0.2, n, p)

    assert stay_sure([of(0.01), of(0.04), None, of(0.03), of(0.005)]) == {0, 4}
    assert stay_sure([of(0.03), of(0.03)]) == set()  # each alone would be sure
    assert stay_sure([of(0.001, n=2), of(0.04)]) == {1}  # two seeds say nothing, and count for nothing
    assert stay_sure([]) == set()
