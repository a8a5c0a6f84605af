"""Each baseline against its own paper's formula, worked out by hand or by another way."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize, nnls
from selection_fakes import SETTINGS, FakeClients, KnownTriplets, build, updates
from sklearn.cluster import KMeans

from feddiverse.errors import UserError
from feddiverse.messages import LabelCounts, Loss, Reply, Sketch, Task
from feddiverse.seeding import rng
from feddiverse.selection.fed_cbs import imbalance
from feddiverse.selection.fedpns import FedPNS, flag, gram
from feddiverse.selection.group_balance import RIDGE, GroupBalance, balancing_weights, least_squares
from feddiverse.selection.hcsfed import HCSFed, allocate, spread
from feddiverse.selection.label_entropy import LabelEntropy
from feddiverse.selection.oort import Oort
from feddiverse.selection.pow_d import PowD
from feddiverse.selection.round_robin import RoundRobin
from feddiverse.splits import SPLITS


def in_five_deviations(times: int, draws: int, p: float) -> bool:
    return abs(times - draws * p) <= 5 * np.sqrt(draws * p * (1 - p))


def test_uniform_is_uniform() -> None:
    selector = build("uniform", {})
    times = Counter(
        i for t in range(3000) for i in selector.choose(t, 2, {4: 1, 8: 9, 9: 1}, FakeClients(), rng(0, "u", t))
    )
    assert all(in_five_deviations(times[i], 3000, 2 / 3) for i in (4, 8, 9))


def test_round_robin_never_asks_again_while_another_was_asked_less_often() -> None:
    selector, times = RoundRobin(), Counter(dict.fromkeys(range(10), 0))
    for t in range(40):
        available = {i: 1 for i in range(10) if (i + t) % 4}
        chosen = selector.choose(t, 3, available, FakeClients(), rng(0, "select", t))
        assert max(times[i] for i in chosen) <= min(times[i] for i in available if i not in chosen)
        times.update(chosen)


def test_pow_d_takes_the_highest_losses_of_candidates_drawn_by_size() -> None:
    clients, sizes = FakeClients(), {i: 1 + 50 * (i == 3) for i in range(12)}
    losses = {i: clients.answer(Loss(3, 1), i).metrics["loss"] for i in sizes}
    highest = sorted(losses, key=losses.__getitem__)[::-1]
    assert PowD(3).choose(1, 4, sizes, clients, rng(0, "select")) == highest[:4]
    asked: Counter[int] = Counter()
    for t in range(200):
        chosen = PowD(3, pow_d_candidates=5).choose(1, 2, sizes, clients, rng(0, "select", t))
        candidates = clients.asked[-1][1]
        assert len(candidates) == 5
        assert chosen == [i for i in highest if i in candidates][:2]
        asked.update(candidates)
    assert asked[3] > 195  # it holds 51 of 62 samples


def test_fedpns_gram_is_of_updates_a_step() -> None:
    theta, replies = updates(1, [4, 5, 9], num_weights=70_000)
    g = np.array([(reply.vector.astype(float) - theta) / s for reply, s in zip(replies, [5, 2, 1], strict=True)])
    np.testing.assert_allclose(gram([r.vector for r in replies], theta, [1 / 5, 1 / 2, 1.0]), g @ g.T, rtol=1e-9)


def flag_by_definition(g: np.ndarray, max_flagged: int) -> list[int]:
    """Wu and Wang's code: average again and sum the inner products again for every client left out."""

    def value(members: list[int]) -> float:
        average = np.mean([g[i] for i in members], axis=0)
        return sum(float(np.dot(g[i], average)) for i in members)

    left, flagged = list(range(len(g))), []
    while len(flagged) < max_flagged and len(left) > 1:
        without = {i: value([j for j in left if j != i]) for i in left}
        worst = max(without, key=without.__getitem__)
        if without[worst] <= value(left):
            break
        flagged.append(worst)
        left.remove(worst)
    return flagged


@given(st.integers(0, 10_000), st.integers(2, 9), st.floats(-1, 2))
def test_fedpns_flags_what_the_definition_flags(seed: int, n: int, shared: float) -> None:
    dice = np.random.default_rng(seed)
    g = dice.normal(size=(n, 12)) + shared * dice.normal(size=12)
    assert flag(g @ g.T, n) == flag_by_definition(g, n)


def test_fedpns_moves_probability_from_the_flagged_to_all_others() -> None:
    selector, clients = FedPNS(), dict.fromkeys(range(10), 1)
    selector.choose(1, 5, clients, FakeClients(), rng(0, "select"))
    theta = np.zeros(3, np.float32)
    replies = [Reply(i, 1, np.array([1, 0, i / 10], np.float32), {"steps": 1.0}) for i in range(4)]
    opposed = Reply(4, 1, np.array([-5, 0, 0], np.float32), {"steps": 1.0})
    selector.observe(1, theta, [*replies, opposed])
    chances = {row[0]: row[1] for row in selector.state()["clients"]}
    assert chances[4] == 0.0  # flagged in its only round: min((1 + 0.7)², 1) of its probability is lost
    assert all(chances[i] == pytest.approx(1 + 1 / 9) for i in range(10) if i != 4)
    selector._times_seen[4] = 19  # flagged once in twenty rounds: (1/10 + 0.7)² would be 2 flags of 20
    selector._chances[4] = 1.0
    selector.observe(2, theta, [*replies, opposed])
    chances = {row[0]: row[1] for row in selector.state()["clients"]}
    assert chances[4] == pytest.approx(1 - (2 / 20 + 0.7) ** 2)
    assert sum(chances.values()) == pytest.approx(11.0)


@pytest.mark.parametrize(("steps", "flagged"), [(1.0, 4), (10.0, 3)])
def test_fedpns_flags_by_updates_a_step(steps: float, flagged: int) -> None:
    """Three clients agree; 3 and 4 oppose them, 4 by 10 in `steps` steps, 3 by 2 in one: who opposes more a step?"""
    selector, theta = FedPNS(), np.zeros(2, np.float32)
    replies = [Reply(i, 1, np.array([5, 0], np.float32), {"steps": 1.0}) for i in range(3)]
    replies.append(Reply(3, 1, np.array([-2, 0], np.float32), {"steps": 1.0}))
    replies.append(Reply(4, 1, np.array([-10, 0], np.float32), {"steps": steps}))
    selector.observe(1, theta, replies)
    assert selector.findings() == {"times_flagged": {str(flagged): 1}}


@pytest.mark.parametrize(
    ("sizes", "spreads", "k", "places"),
    [
        ([10, 10, 10], [1, 2, 3], 6, [1, 2, 3]),
        ([20, 5, 5], [1, 1, 1], 6, [4, 1, 1]),
        ([15, 5, 4], [0, 1, 1], 9, [0, 5, 4]),  # without spread nobody is heard, as released
        ([15, 5, 4], [0, 1, 1], 12, [3, 5, 4]),  # unless all others are
        ([2, 20, 2], [9, 1, 9], 9, [2, 5, 2]),  # more than there are cannot be taken
        ([3, 3, 3], [0, 0, 0], 6, [2, 2, 2]),
        ([5, 5, 5], [1, 3, 1], 1, [0, 1, 0]),
        ([1, 1, 1], [0, 0, 5], 3, [1, 1, 1]),
    ],
)
def test_hcsfed_allocates_by_size_and_spread(sizes: list, spreads: list, k: int, places: list) -> None:
    assert allocate(np.array(sizes, float), np.array(spreads, float), k) == places


def test_hcsfed_spread_is_the_released_sum_over_pairs() -> None:
    sketches = np.random.default_rng(0).normal(size=(6, 4))
    pairs = sum(float(np.sum((a - b) ** 2)) for a in sketches for b in sketches)
    assert spread(sketches) == pytest.approx(pairs / 5)
    assert spread(sketches[:1]) == 0.0


class TwoSizes(FakeClients):
    """Three clusters far apart; in the last one client's update is four times as long as its neighbour's."""

    def answer(self, task: Task, client: int) -> Reply:
        assert isinstance(task, Sketch)
        assert (task.rate, task.epochs, task.lr) == (1e-5, 2, 0.5)
        along = {8: [0, 0, 2.0], 9: [0, 0, 8.0]}.get(
            client, [40.0 + 3 * (client % 2), 0, 0] if client < 4 else [0, 60 + 3.0 * (client % 2), 0]
        )
        return Reply(client, 1, np.array(along, np.float32))


def test_hcsfed_hears_every_cluster_and_there_the_larger_updates() -> None:
    selector, clients, ids = HCSFed(seed=1, epochs=2, lr=0.5), TwoSizes(), dict.fromkeys(range(10), 5)
    times: Counter[int] = Counter()
    for t in range(1, 1001):
        chosen = selector.choose(t, 3, ids, clients, rng(0, "select", t))
        assert sorted(min(i // 4, 2) for i in chosen) == [0, 1, 2]
        times.update(chosen)
    assert len(clients.asked) == 1
    assert in_five_deviations(times[9], 1000, 0.8)
    sketches = np.array([clients.answer(clients.asked[0][0], i).vector for i in ids])
    theirs = KMeans(3, n_init=10, random_state=0).fit(sketches).cluster_centers_
    np.testing.assert_allclose(sorted(selector.findings()["centres"]), sorted(theirs.tolist()), atol=1e-6)


def variance(weights: np.ndarray, matrices: np.ndarray) -> float:
    return float(np.tensordot(weights, matrices, axes=1).var())


matrices_st = arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 3), st.integers(2, 3)),
                     elements=st.integers(0, 120).map(float))  # fmt: skip


@given(matrices_st)
@settings(max_examples=25)
def test_group_balance_is_as_good_as_a_general_solver(matrices: np.ndarray) -> None:
    weights = balancing_weights(matrices)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    start = np.full(len(matrices), 1 / len(matrices))
    other = minimize(
        variance, start, (matrices / 120,), "SLSQP", bounds=[(0, 1)] * len(matrices), tol=1e-12,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
    )  # fmt: skip
    assert variance(weights, matrices / 120) <= variance(np.clip(other.x, 0, 1) / other.x.sum(), matrices / 120) + 1e-6


@given(matrices_st)
@example(np.array([[[3.0, 110.0, 0.0], [54.0, 110.0, 110.0]]]))
@settings(max_examples=60)
def test_group_balance_solves_its_least_squares_like_scipy(matrices: np.ndarray) -> None:
    """As near as the arithmetic allows. M is −A over a row of ones, with n rows; u is the unit of rounding.

    x = max(0, Mᵀz), and εz is the residual of x, of length at most 1 since x = 0 has one of length 1. So ‖z‖ ≤ 1/ε, and
    rounding n products and their sum errs by at most e = n u ‖M‖/ε in Mᵀz. Newton's steps end where M x computed with
    this error fits z: of e, only (I − Mᵀ(εI + MMᵀ)⁻¹M)e ≤ e stays in x. At its minimum the objective, half of whose
    second derivative is MᵀM + εI, is flat: it errs by at most (‖M‖² + ε)e², and the same rounding in writing it down.
    """
    columns = matrices.reshape(len(matrices), -1).T / 120
    columns = columns - columns.mean(axis=0)
    system = np.vstack([columns, np.sqrt(RIDGE) * np.eye(len(matrices)), np.ones(len(matrices))])
    expected, _ = nnls(system, np.append(np.zeros(len(system) - 1), 1.0))
    found = least_squares(columns)

    def objective(x: np.ndarray) -> float:
        return float(np.square(columns @ x).sum() + RIDGE * np.square(x).sum() + (x.sum() - 1) ** 2)

    n, norm = len(columns) + 1, np.sqrt(np.square(columns).sum() + len(matrices))
    error = n * 2**-53 * norm / RIDGE
    np.testing.assert_allclose(found, expected, rtol=0, atol=error)
    assert objective(found) <= objective(expected) + (norm**2 + RIDGE) * error**2 + (n + len(matrices)) * 2**-53


def test_group_balance_of_many_clients_is_quick() -> None:
    matrices = np.random.default_rng(0).integers(0, 100, (20_000, 2, 2)).astype(float)
    weights = balancing_weights(matrices)
    assert variance(weights, matrices) < 1e-6
    assert weights.min() > 0  # so many can balance each other with nobody left out


def test_group_balance_of_gsc_is_perfect_and_treats_equal_clients_alike() -> None:
    kinds = np.array([[[90, 10], [10, 90]], [[10, 90], [90, 10]], [[90, 90], [10, 10]], [[10, 10], [90, 90]]], float)
    matrices = kinds[[0] * 15 + [1] + [2] * 2 + [3] * 2]
    weights = balancing_weights(matrices)
    assert variance(weights, matrices) < 1e-6
    for start, stop in [(0, 15), (16, 18), (18, 20)]:
        np.testing.assert_allclose(weights[start:stop], weights[start], rtol=1e-6)
    assert weights[15] == pytest.approx(15 * weights[0], rel=1e-3)  # the one that outweighs fifteen


def test_group_balance_draws_by_its_weights_and_needs_matrices() -> None:
    selector = build("group_balance", SETTINGS)
    selector.choose(1, 3, dict.fromkeys(range(8), 1), FakeClients(), rng(0, "select"))
    weights = selector.findings()["weights"]
    times = Counter(
        selector.choose(t, 1, dict.fromkeys(range(8), 1), FakeClients(), rng(0, "select", t))[0] for t in range(2000)
    )
    assert all(in_five_deviations(times[int(i)], 2000, w) for i, w in weights.items())
    with pytest.raises(UserError, match="set estimator to 'consensus'"):
        GroupBalance(KnownTriplets({0: [0, 0, 0]}))


SIX_CLASSES = SETTINGS | {"num_classes": 6}


class Labels(FakeClients):
    """The clients of Fed-CBS' Fig. 3."""

    COUNTS = ([5, 5, 5, 5, 5, 5], [6, 6, 6, 6, 6, 0], [0, 0, 0, 10, 10, 10], [10, 10, 10, 0, 0, 0])

    def answer(self, task: Task, client: int) -> Reply:
        assert isinstance(task, LabelCounts)
        return Reply(client, 30, np.array(self.COUNTS[client], np.float32))


def test_fed_cbs_draws_by_inverse_powers_of_the_imbalance() -> None:
    """QCID by hand: 0, 1/30, 1/6, 1/6, of which the inverse counts as 10 at most: the first is drawn 10 : 10 : 6 : 6.
    Of 0 with 1, 2, 3: 1/120, 1/24, 1/24; the second is drawn by its inverse square, 25 : 1 : 1. Of 2 with 0, 1, 3:
    1/24, 17/600, 0; the last counts as 0.001, and is taken nearly always."""
    np.testing.assert_allclose(imbalance(np.array([[3.0, 1.0], [1.0, 1.0], [4.0, 0.0]])), [1 / 8, 0, 1 / 2])
    draws = 2000
    histories = [
        build("fed_cbs", SIX_CLASSES).choose(1, 2, dict.fromkeys(range(4), 30), Labels(), rng(0, "select", t))
        for t in range(draws)
    ]
    first = Counter(chosen[0] for chosen in histories)
    assert all(in_five_deviations(first[i], draws, p / 32) for i, p in enumerate((10, 10, 6, 6)))
    second = Counter(chosen[1] for chosen in histories if chosen[0] == 0)
    assert all(in_five_deviations(second[i], first[0], p / 27) for i, p in {1: 25, 2: 1, 3: 1}.items())
    after_two = Counter(chosen[1] for chosen in histories if chosen[0] == 2)
    weights = {0: 24.0**2, 1: (600 / 17) ** 2, 3: 1000.0**2}
    assert all(in_five_deviations(after_two[i], first[2], w / sum(weights.values())) for i, w in weights.items())


class OfSplit(FakeClients):
    """The class counts of one of the paper's splits."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.counts = SPLITS[name].counts.sum(axis=2)

    def answer(self, task: Task, client: int) -> Reply:
        return Reply(client, int(self.counts[client].sum()), self.counts[client].astype(np.float32))


def of_100_rounds(name: str, selector: str) -> list[list[int]]:
    clients, chooses = OfSplit(name), build(selector)
    sizes = {k: int(n) for k, n in enumerate(clients.counts.sum(axis=1))}
    return [chooses.choose(t, 9, sizes, clients, rng(0, "select", t)) for t in range(1, 101)]


@pytest.mark.parametrize(("name", "part"), [("gsc", 0.01), ("gci", 0.05), ("gai", 0.1)])
def test_fed_cbs_chooses_balanced_sets(name: str, part: float) -> None:
    """What it is for: the classes of a whole round are far more even than with uniform selection."""
    counts = OfSplit(name).counts.astype(float)
    mean = {
        selector: np.mean(imbalance(np.array([counts[chosen].sum(axis=0) for chosen in of_100_rounds(name, selector)])))
        for selector in ("fed_cbs", "uniform")
    }
    assert mean["fed_cbs"] < part * mean["uniform"]


def test_fed_cbs_can_choose_hundreds() -> None:
    """QCID^400 is no number any more."""
    sizes = dict.fromkeys(range(500), 360)
    assert len(set(build("fed_cbs").choose(1, 400, sizes, FakeClients(), rng(0, "select")))) == 400


def test_fed_cbs_takes_imbalanced_clients_too() -> None:
    """GSC has four class-imbalanced clients of 24. Were 1/QCID not bounded, they would never be asked."""
    counts = SPLITS["gsc"].counts
    imbalanced = set(np.flatnonzero(np.ptp(counts.sum(axis=2), axis=1) > 0).tolist())
    assert len(imbalanced) == 4
    times = Counter(i for chosen in of_100_rounds("gsc", "fed_cbs") for i in chosen)
    assert all(times[i] > 1 for i in imbalanced)
    assert sum(times[i] for i in imbalanced) > 12
    mean = {kind: np.mean([times[i] for i in range(24) if (i in imbalanced) is kind]) for kind in (True, False)}
    assert mean[True] < 0.5 * mean[False]  # balanced ones are asked more often, not alone


def test_fed_cbs_explores_first_picks_that_were_rare() -> None:
    """Two equally imbalanced clients: after many rounds the bonus λ√(3 ln t / 2T) has made both first as often."""
    selector = build("fed_cbs", SIX_CLASSES)
    clients = Labels()
    selector.choose(1, 1, {2: 30, 3: 30}, clients, rng(0, "select"))
    selector._times_chosen[2] = 400
    selector._num_rounds = 400
    times = Counter()
    for t in range(400):
        selector._times_chosen[3] = 1
        times.update(selector.choose(t, 1, {2: 30, 3: 30}, clients, rng(0, "select", t)))
    assert times[3] > 3 * times[2]


class OtherLength(FakeClients):
    """Two clients send vectors of other lengths than the rest: one that is largest and first, one that comes late."""

    def answer(self, task: Task, client: int) -> Reply:
        reply = super().answer(task, client)
        lengths = {0: reply.vector[:-1], 1: np.ones(9, np.float32), 2: reply.vector[:0]}
        return Reply(client, reply.num_examples, lengths.get(client, reply.vector))


@pytest.mark.parametrize("name", ["fed_cbs", "label_entropy", "hcsfed"])
@pytest.mark.parametrize("odd", [0, 1, 2], ids=["shorter", "longer", "empty"])
@pytest.mark.parametrize("late", [False, True])
def test_an_answer_of_another_length_does_not_speak_for_the_others(name: str, odd: int, late: bool) -> None:
    sound = dict.fromkeys(range(3, 12), 10)
    everyone = {odd: 99} | sound
    selector, clients = build(name, SETTINGS), OtherLength()
    for t, available in enumerate([sound if late else everyone, everyone, everyone], 1):
        chosen = selector.choose(t, 5, available, clients, rng(0, "select", t))
        assert len(set(chosen)) == 5
        assert odd not in chosen  # who gave no answer comes last
    assert clients.asked[-1][1] == [odd]  # only it is asked again


def test_label_entropy_is_greedy() -> None:
    for seed in range(20):
        first, second = LabelEntropy(3, 6).choose(1, 2, dict.fromkeys(range(4), 30), Labels(), rng(seed, "select"))
        pools = {i: np.array(Labels.COUNTS[first]) + np.array(Labels.COUNTS[i]) for i in range(4) if i != first}
        shares = {i: pool[pool > 0] / pool.sum() for i, pool in pools.items()}
        entropies = {i: -(share * np.log(share)).sum() for i, share in shares.items()}
        assert entropies[second] == pytest.approx(max(entropies.values()))


def test_oort_prefers_high_utility_and_explores_until_all_are_known() -> None:
    """Utility is size × root mean squared loss; the exploring share is 0.9·0.98^t, then nothing is left to explore."""
    selector, clients, sizes = Oort(3), FakeClients(), dict.fromkeys(range(30), 10)
    seen: set[int] = set()
    for t in range(1, 12):
        new = len(set(selector.choose(t, 10, sizes, clients, rng(0, "select", t))) - seen)
        expected = 10 - min(int(10 * (1 - 0.9 * 0.98**t)), len(seen))
        assert new == min(expected, 30 - len(seen))
        seen |= set(clients.asked[-1][1])
    assert seen == set(sizes)
    utility = {i: value for i, value, _ in selector.state()["utility"]}
    last = clients.asked[-1]
    assert all(utility[i] == 10 * clients.answer(last[0], i).metrics["loss_rms"] for i in last[1])


def test_oort_exploits_within_the_cut_off() -> None:
    """The cut is at the score after the last place: of six that score alike five are drawn; with five, others too."""
    for num_good, lowest in ((6, 14), (5, 0)):
        state = {
            "utility": [[i, 1.0 + (i >= 20 - num_good), 5] for i in range(20)],
            "exploration": 0.2,
            "num_rounds": 9,
        }
        chosen = set()
        for t in range(60):
            selector = Oort(3)
            selector.restore(state)
            chosen |= set(selector.choose(t, 5, dict.fromkeys(range(20), 1), FakeClients(), rng(0, "select", t)))
        assert min(chosen) == lowest


def test_oort_scores_by_hand() -> None:
    """Utilities 1 … 40, learnt in rounds 1 … 40, at round 50: the largest counts as the 0.95 quantile, 39."""
    selector = Oort(3)
    selector.restore({"utility": [[i, float(i), i] for i in range(1, 41)], "exploration": 0.2, "num_rounds": 50})
    ids = np.array([1, 20, 39, 40] + [i for i in range(2, 39) if i != 20])
    scores = selector._scores(ids, np.empty(0))
    width = 40 - 0.999
    bonus = [np.sqrt(0.1 * np.log(50) / last) for last in (1, 20, 39, 40)]
    by_hand = [
        0.001 / width + bonus[0],
        19.001 / width + bonus[1],
        38.001 / width + bonus[2],
        38.001 / width + bonus[3],
    ]
    np.testing.assert_allclose(scores[:4], by_hand)
    assert scores[0] == pytest.approx(0.6255, abs=1e-4)  # nearly all of it for having waited so long
    # Ten new clients of 80 samples: the quantile is 80, so nothing is clipped, and the scale twice as wide.
    with_new = selector._scores(ids, np.full(10, 80.0))
    np.testing.assert_allclose(with_new[3], (40 - 0.999) / (80 - 0.999) + bonus[3])
    # Ten without samples have no reward: neither quantile nor scale is theirs.
    np.testing.assert_array_equal(selector._scores(ids, np.zeros(10)), scores)
    nothing = Oort(3)
    nothing.restore({"utility": [[1, 0.0, 1], [2, 0.0, 2]], "exploration": 0.2, "num_rounds": 4})
    assert np.isfinite(nothing._scores(np.array([1, 2]), np.zeros(1))).all()


def test_oort_draws_nobody_below_the_cut_off() -> None:
    """Ten clients score 1.21; 0.95 of that is 1.15. Client 10 scores 1.18 and has a chance, client 11 1.06 and none."""
    state = {
        "utility": [*([i, 2.0, 5] for i in range(10)), [10, 1.97, 5], [11, 1.85, 5], [12, 1.0, 5]],
        "exploration": 0.2,
        "num_rounds": 9,
    }
    times: Counter[int] = Counter()
    for t in range(60):
        selector = Oort(3)
        selector.restore(state)
        times.update(selector.choose(t, 5, dict.fromkeys(range(13), 1), FakeClients(), rng(0, "select", t)))
    assert times[10] > 10
    assert times[11] == times[12] == 0


@pytest.mark.parametrize("dies_in", [1, 20], ids=["dead from the start", "dies after it was tried"])
def test_oort_does_not_try_dead_clients_more_often_than_uniform_selection(dies_in: int) -> None:
    selector, sizes, dead = Oort(3), dict.fromkeys(range(24), 10), {3, 9, 15}
    times: Counter[int] = Counter()
    for t in range(1, 61):
        clients = FakeClients(broken=dead if t >= dies_in else ())
        chosen = selector.choose(t, 9, sizes, clients, rng(0, "select", t))
        if t >= dies_in:
            times.update(chosen)
    assert 0 < sum(times[i] for i in dead) <= times.total() * len(dead) / 24 / 2


def test_oort_tries_a_client_again_that_failed_once() -> None:
    selector, sizes = Oort(3), {3: 99} | dict.fromkeys(range(10, 20), 1)
    selector.choose(1, 4, sizes, FakeClients(broken=[3]), rng(0, "select", 1))
    resting = Oort(3)
    resting.restore(selector.state())
    history = [3 in resting.choose(t, 4, sizes, FakeClients(), rng(0, "select", t)) for t in (2, 3, 4)]
    assert history == [False, False, True]
    assert resting.state()["failed"] == []
