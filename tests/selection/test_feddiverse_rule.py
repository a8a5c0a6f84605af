"""FedDiverse's choices against the definitions in the paper, worked out by brute force."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from selection_fakes import FakeClients, KnownTriplets

from feddiverse.heterogeneity import triplet
from feddiverse.seeding import rng
from feddiverse.selection import feddiverse
from feddiverse.selection.feddiverse import FedDiverse
from feddiverse.selection.feddiverse_pool import Pool, arrange
from feddiverse.selection.feddiverse_rule import choose_as_written, normalise

CI, AI, SC = range(3)

# Few different values make ties, zeros and collinear points the rule rather than the exception.
values = st.one_of(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]), st.floats(0, 1, width=32))
triplets_st = arrays(np.float64, st.tuples(st.integers(1, 40), st.just(3)), elements=values)


@given(triplets_st, st.integers(1, 45), st.integers(0, 2**32))
@settings(max_examples=100)
def test_each_step_takes_an_extreme_of_those_left(triplets: np.ndarray, k: int, seed: int) -> None:
    chosen = choose_as_written(triplets, k, np.random.default_rng(seed))
    assert len(chosen) == min(k, len(triplets)) == len(set(chosen))
    shares = [[x / row.sum() if row.sum() else 0.0 for x in row] for row in triplets]
    for pick, client in enumerate(chosen):
        left = [other for other in range(len(triplets)) if other not in chosen[:pick]]
        if pick % 3 == 0:
            leading = [SC, CI, AI][pick // 3 % 3]
            weights = [np.rint(triplets[other, leading] * 2**32) for other in left]
            assert triplets[client, leading] * 2**32 >= 0.5 or not any(weights)
        elif pick % 3 == 1:
            dots = [np.dot(shares[chosen[pick - 1]], shares[other]) for other in left]
            assert np.dot(shares[chosen[pick - 1]], shares[client]) <= min(dots) + 1e-9
        else:
            across = np.cross(shares[chosen[pick - 2]], shares[chosen[pick - 1]])
            dots = [np.dot(across, shares[other]) for other in left]
            assert np.dot(across, shares[client]) >= max(dots) - 1e-9


@given(triplets_st, st.integers(1, 45), st.integers(0, 2**32), st.data())
@settings(max_examples=100)
def test_the_pool_chooses_the_same_bit_for_bit(triplets: np.ndarray, k: int, seed: int, data: st.DataObject) -> None:
    triplets = triplets[arrange(triplets)]
    pool = Pool(triplets)
    for _ in range(2):  # what a round took out is back in the next
        assert pool.choose(k, np.random.default_rng(seed)) == choose_as_written(
            triplets, k, np.random.default_rng(seed)
        )
    without = data.draw(st.sets(st.integers(0, len(triplets) - 1)))
    rest = np.setdiff1d(np.arange(len(triplets)), list(without))
    expected = rest[choose_as_written(triplets[rest], k, np.random.default_rng(seed))] if len(rest) else rest
    assert pool.choose(k, np.random.default_rng(seed), sorted(without)) == expected.tolist()
    assert pool.choose(k, np.random.default_rng(seed)) == choose_as_written(triplets, k, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", ["spread", "rounded", "sparse", "few kinds"])
def test_the_pool_chooses_the_same_among_many_cells(kind: str) -> None:
    dice = np.random.default_rng(1)
    triplets = dice.random((20_000, 3))
    if kind == "rounded":
        triplets = np.round(triplets, 1)
    if kind == "sparse":
        triplets *= dice.random((20_000, 3)) < 0.5
    if kind == "few kinds":
        triplets = triplets[dice.integers(0, 7, 20_000)]
    triplets = triplets[arrange(triplets)]
    expected = choose_as_written(triplets, 200, np.random.default_rng(2))
    assert Pool(triplets).choose(200, np.random.default_rng(2)) == expected


def test_first_pick_of_each_group_is_drawn_in_proportion_to_the_leading_dimension() -> None:
    """Seven clients; the leading values of those left give the probabilities. Bounds: five standard deviations."""
    triplets = np.array([[0.1, 0.2, 0.4], [0.2, 0.1, 0.1], [0.3, 0.3, 0.3], [0.0, 0.4, 0.2], [0.5, 0.0, 0.0]])
    draws = 2000
    first = Counter(choose_as_written(triplets, 1, rng(0, "test", i))[0] for i in range(draws))
    for client, weight in enumerate(triplets[:, SC]):
        p = weight / triplets[:, SC].sum()
        assert abs(first[client] - draws * p) <= 5 * np.sqrt(draws * p * (1 - p))
    fourth: Counter[int] = Counter()
    expected = np.zeros(5)
    for i in range(draws):
        chosen = choose_as_written(triplets, 4, rng(1, "test", i))
        left = np.setdiff1d(np.arange(5), chosen[:3])
        weights = triplets[left, CI]  # the second group is led by CI
        expected[left] += weights / weights.sum() if weights.sum() else 1 / len(left)
        fourth[chosen[3]] += 1
    for client in range(5):
        assert abs(fourth[client] - expected[client]) <= 5 * np.sqrt(draws / 4)


def test_the_three_pure_kinds_complement_each_other() -> None:
    pure = np.array([[0.9, 0.0, 0.0], [0.0, 0.9, 0.0], [0.0, 0.0, 0.9]])
    for seed in range(20):
        assert choose_as_written(pure, 3, np.random.default_rng(seed))[0] == SC
        assert set(choose_as_written(pure, 3, np.random.default_rng(seed))) == {CI, AI, SC}


def test_a_balanced_client_complements_any_other() -> None:
    """Documented in docs/selectors.md: its inner product with every triplet is 0, so step 2 takes it."""
    triplets = np.vstack([np.random.default_rng(0).uniform(0.1, 1, (9, 3)), np.zeros(3)])
    assert all(choose_as_written(triplets, 3, rng(0, "test", t))[1] == 9 for t in range(50))


@pytest.mark.parametrize(
    "triplets", [np.zeros((6, 3)), np.full((6, 3), 0.3), np.array([[0.0, 0.0, 0.5]] * 6)], ids=["zero", "same", "one"]
)
def test_without_any_difference_everyone_is_as_likely(triplets: np.ndarray) -> None:
    rounds = 3000
    times = Counter(i for t in range(rounds) for i in choose_as_written(triplets, 3, rng(2, "test", t)))
    assert all(abs(times[i] - rounds / 2) <= 5 * np.sqrt(rounds / 4) for i in range(6))


def test_normalised_triplets_sum_to_one_or_zero() -> None:
    normalised = normalise(np.array([[0.2, 0.3, 0.5], [0.0, 0.0, 0.0], [0.0, 2.0, 2.0]]))
    np.testing.assert_allclose(normalised, [[0.2, 0.3, 0.5], [0, 0, 0], [0, 0.5, 0.5]])


def gsc_triplets() -> dict[int, np.ndarray]:
    kinds = [[[90, 90], [10, 10]], [[10, 10], [90, 90]], [[90, 10], [90, 10]], [[10, 90], [10, 90]]]
    tables = [table for table in kinds for _ in range(2)] + [[[90, 10], [10, 90]]] * 15 + [[[10, 90], [90, 10]]]
    return {100 + i: triplet(np.array(table)) for i, table in enumerate(tables)}


def choices(selector: FedDiverse, num_rounds: int, clients: dict[int, int], k: int = 9) -> list[list[int]]:
    return [selector.choose(t, k, clients, FakeClients(), rng(4, "select", t)) for t in range(num_rounds)]


def test_a_group_of_gsc_holds_all_three_kinds() -> None:
    """On GSC the first leads by SC, the second has no SC, the third is of the remaining kind, or of either."""
    known = gsc_triplets()
    for chosen in choices(FedDiverse(KnownTriplets(known)), 50, dict.fromkeys(known, 200)):
        assert known[chosen[0]].argmax() == SC
        assert known[chosen[1]].argmax() != SC


def test_triplets_are_asked_for_once_and_for_latecomers() -> None:
    known = gsc_triplets()
    estimator = KnownTriplets(known)
    selector = FedDiverse(estimator)
    early = dict.fromkeys(sorted(known)[:20], 200)
    choices(selector, 3, early)
    choices(selector, 3, dict.fromkeys(known, 200))
    assert estimator.asked == [sorted(early), sorted(set(known) - set(early))]
    assert selector.findings()["triplets"].keys() == {str(i) for i in known}


def test_clients_without_triplet_come_last_and_are_asked_again() -> None:
    known = {i: t for i, t in gsc_triplets().items() if i < 105}
    estimator = KnownTriplets(known)
    everyone = dict.fromkeys(range(100, 110), 200)
    history = choices(FedDiverse(estimator), 4, everyone, k=7)
    assert all(set(known) <= set(chosen) and len(set(chosen)) == 7 for chosen in history)
    assert estimator.asked[1:] == [list(range(105, 110))] * 3


@pytest.mark.parametrize("coverage", [1.0, 1.5])
def test_coverage_caps_how_often_a_client_is_chosen(coverage: float) -> None:
    known = gsc_triplets()
    clients = dict.fromkeys(known, 200)
    free = Counter(i for chosen in choices(FedDiverse(KnownTriplets(known)), 100, clients) for i in chosen)
    guarded = Counter(i for chosen in choices(FedDiverse(KnownTriplets(known), coverage), 100, clients) for i in chosen)
    uniform_share = 100 * 9 / 24
    assert max(free.values()) > 1.8 * uniform_share
    assert max(guarded.values()) <= np.ceil(coverage * uniform_share) + 1
    assert min(guarded[i] for i in known) > min(free[i] for i in known)


def test_many_clients_go_through_the_pool_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are dealt so that arranging them changes nothing, and both ways draw the same tickets."""
    triplets = np.random.default_rng(0).random((300, 3))
    triplets = triplets[arrange(triplets)]
    known = {i: list(row) for i, row in enumerate(triplets) if i != 7}
    clients = dict.fromkeys(range(300), 10)
    expected = choices(FedDiverse(KnownTriplets(known), coverage=1.2), 8, clients, k=50)
    monkeypatch.setattr(feddiverse, "FEW", 10)
    assert choices(FedDiverse(KnownTriplets(known), coverage=1.2), 8, clients, k=50) == expected
