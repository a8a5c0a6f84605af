"""What a liar gains by what it claims: bounded by `coverage` for every selector, by `smoothing` for triplets and by
`loss_quantile` for losses; the papers' rules stay as they are without them."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from selection_fakes import SETTINGS, FakeClients, KnownTriplets, build, updates

from feddiverse import registry
from feddiverse.messages import Loss, Reply, Task
from feddiverse.seeding import rng
from feddiverse.selection.base import Selector
from feddiverse.selection.draws import clipped
from feddiverse.selection.feddiverse import FedDiverse
from feddiverse.selection.feddiverse_pool import Pool, arrange
from feddiverse.selection.feddiverse_rule import choose_as_written, normalise
from feddiverse.selection.limited import Limited, limited
from feddiverse.selection.oort import Oort
from feddiverse.selection.pow_d import PowD

CLIENTS = dict.fromkeys(range(24), 100)


class Liars(FakeClients):
    """Client 5 claims the highest loss there is."""

    def answer(self, task: Task, client: int) -> Reply:
        if client == 5 and isinstance(task, Loss):
            return Reply(client, 10, metrics={"loss": 1e6, "loss_rms": 1e6})
        return super().answer(task, client)


def choices(selector: Selector, rounds: int = 40, k: int = 9) -> list[list[int]]:
    chosen = []
    for t in range(1, rounds + 1):
        chosen.append(selector.choose(t, k, CLIENTS, Liars(), rng(0, "select", t)))
        selector.observe(t, *updates(t, chosen[-1]))
    return chosen


@pytest.mark.parametrize("name", sorted(set(registry.SELECTOR.builtin) - {"everyone"}))
def test_nobody_is_chosen_more_often_than_coverage_allows(name: str) -> None:
    selector = limited(build(name, {**SETTINGS, "coverage": 1.5, "rounds": 16}), 1.5)
    times: Counter[int] = Counter()
    for t, chosen in enumerate(choices(selector, 16), 1):
        assert len(set(chosen)) == 9
        times.update(chosen)
        assert max(times.values()) <= math.ceil(1.5 * t * 9 / 24)


def test_without_the_bound_a_false_loss_is_asked_every_round() -> None:
    assert all(5 in chosen for chosen in choices(PowD(seed=0)))
    assert sum(5 in chosen for chosen in choices(Limited(PowD(seed=0), 1.5))) <= math.ceil(1.5 * 40 * 9 / 24)


def test_the_bound_survives_a_restart() -> None:
    whole = choices(Limited(PowD(seed=0), 1.2), 12)
    first, second = Limited(PowD(seed=0), 1.2), Limited(PowD(seed=0), 1.2)
    start = choices(first, 6)
    second.restore(json.loads(json.dumps(first.state())))
    rest = [second.choose(t, 9, CLIENTS, Liars(), rng(0, "select", t)) for t in range(7, 13)]
    assert start + rest == whole


def test_where_too_few_are_left_those_who_rest_come_back() -> None:
    selector = Limited(PowD(seed=0), 1.0)
    for t in range(1, 8):
        assert len(selector.choose(t, 9, dict.fromkeys(range(9 + t % 2), 10), Liars(), rng(0, "select", t))) == 9


def test_a_selector_that_knows_coverage_is_left_to_itself() -> None:
    own = FedDiverse(KnownTriplets({}), coverage=1.5)
    assert limited(own, 1.5) is own
    plain = PowD(seed=0)
    assert limited(plain, 0.0) is plain
    inside = limited(build("fedpns"), 1.5)
    assert inside.wants_updates
    assert inside.findings() == build("fedpns").findings()


@pytest.mark.parametrize("claim", [(0.0, 0.0, 0.0), (1e-9, 0.0, 0.0)])
def test_smoothing_takes_from_zeros_what_makes_them_complement_everyone(claim: tuple[float, ...]) -> None:
    """By the paper's rule zeros are least aligned with all, and a breath of CI is the purest CI there is: such a client
    is in nearly every round. Smoothed it is an average one."""
    honest = np.random.default_rng(0).uniform(0.1, 0.6, (23, 3))
    triplets = np.vstack([honest, claim])
    by_the_paper = sum(23 in choose_as_written(triplets, 9, rng(0, "t", t)) for t in range(200))
    smoothed = sum(23 in choose_as_written(triplets, 9, rng(0, "t", t), 0.02) for t in range(200))
    assert by_the_paper > 170
    assert smoothed < 2 * 200 * 9 / 24


def test_smoothed_triplets_sum_to_one_and_zeros_lean_to_no_side() -> None:
    found = normalise(np.array([[0.0, 0.0, 0.0], [0.4, 0.1, 0.0]]), 0.02)
    np.testing.assert_allclose(found, [[1 / 3, 1 / 3, 1 / 3], [0.42 / 0.56, 0.12 / 0.56, 0.02 / 0.56]])


def test_the_pool_smooths_as_the_rule_does() -> None:
    triplets = np.round(np.random.default_rng(1).random((3000, 3)), 1)
    triplets = triplets[arrange(triplets, 0.02)]
    expected = choose_as_written(triplets, 100, np.random.default_rng(2), 0.02)
    assert Pool(triplets, 0.02).choose(100, np.random.default_rng(2)) == expected


def test_clipping_takes_the_quantile_of_the_values_themselves() -> None:
    values = np.array([3.0, 1.0, 1e6, 2.0])
    np.testing.assert_array_equal(clipped(values, 0.75), [3, 1, 3, 2])
    np.testing.assert_array_equal(clipped(values, 0.5), [2, 1, 2, 2])
    assert clipped(values, 1.0) is values
    assert clipped(np.empty(0), 0.5).size == 0


def test_pow_d_draws_lots_among_the_highest_claims() -> None:
    """Half of 24 losses count as the median: 9 places for 12 clients (and one more), where the liar had one."""
    times = sum(5 in chosen for chosen in choices(PowD(seed=0, loss_quantile=0.5), 60))
    assert times < 60
    assert abs(times / 60 - 9 / 12.5) < 5 * math.sqrt(0.72 * 0.28 / 60)


def test_one_false_loss_does_not_flatten_oorts_scores() -> None:
    """By hand: utilities 1 … 9 and a million, all learnt in round 1, in round 2; the score's other part is equal."""
    scores = {}
    for quantile in (1.0, 0.9):
        oort = Oort(seed=0, loss_quantile=quantile)
        oort._utility = {i: (float(i), 1) for i in range(1, 10)} | {10: (1e6, 1)}
        oort._num_rounds = 2
        scores[quantile] = oort._scores(np.arange(1, 11), np.empty(0))
    assert np.ptp(scores[1.0][:9]) < 1e-4
    np.testing.assert_allclose(np.diff(scores[0.9][:9]), 1 / (9 - 0.999), rtol=1e-9)
    assert scores[0.9][9] == scores[0.9][8]


def silent(task: Task, clients: Sequence[int]) -> Iterator[Reply]:
    raise AssertionError("nobody is asked here")


def test_feddiverse_hands_smoothing_to_its_rule() -> None:
    triplets = dict(enumerate(np.vstack([np.random.default_rng(0).uniform(0.1, 0.6, (23, 3)), np.zeros(3)]).tolist()))
    chosen = {}
    for smoothing in (0.0, 0.02):
        selector = FedDiverse(KnownTriplets(triplets), smoothing=smoothing)
        rounds = [selector.choose(t, 9, CLIENTS, silent, rng(0, "select", t)) for t in range(40)]
        chosen[smoothing] = sum(23 in some for some in rounds)
    assert chosen[0.0] == 40
    assert chosen[0.02] < 30
