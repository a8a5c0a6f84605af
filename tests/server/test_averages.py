"""Robust averages against SciPy, hand-worked cases and what their papers promise; memory and order."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from feddiverse import registry
from feddiverse.errors import RunError, UserError
from feddiverse.messages import Reply
from feddiverse.server import averages, spool
from feddiverse.server.aggregation import Aggregator
from feddiverse.server.averages import Average, ClippedMean, Median, MultiKrum, TrimmedMean, krum
from feddiverse.server.spool import Spool

THETA = np.array([1.0, -2.0, 0.5], np.float32)
ROBUST = [ClippedMean(), Median(), TrimmedMean(0.2), MultiKrum(0.2)]


def replies(updates: object, theta: np.ndarray = THETA) -> list[Reply]:
    return [
        Reply(client, 10, (theta + np.asarray(update)).astype(np.float32), {"loss": 1.0, "steps": 2.0 + client})
        for client, update in enumerate(np.asarray(updates, np.float32))
    ]


def mean_of(average: Average, updates: object, theta: np.ndarray = THETA) -> np.ndarray:
    return Aggregator().step(theta, average(theta, replies(updates, theta))) - theta


def random_updates(n: int, size: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, size)).astype(np.float32)


def test_the_mean_is_what_it_was_without_averages() -> None:
    given = replies(random_updates(5))
    assert list(Average()(THETA, given)) == given


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_median_and_trimmed_mean_are_those_of_scipy(n: int) -> None:
    updates = random_updates(n)
    np.testing.assert_allclose(mean_of(Median(), updates), np.median(updates, axis=0), atol=1e-6)
    for share in (0.0, 0.25):
        if (share * n).is_integer():
            expected = scipy.stats.trim_mean(updates, share, axis=0)
            np.testing.assert_allclose(mean_of(TrimmedMean(share), updates), expected, atol=1e-6)


def test_trimmed_mean_takes_off_at_least_its_share_and_leaves_one() -> None:
    updates = np.array([[v, 0, 0] for v in (0, 1, 2, 3, 100)])
    assert mean_of(TrimmedMean(0.1), updates)[0] == pytest.approx(2)  # ⌈0.5⌉ = 1 at either end: 1, 2, 3
    assert mean_of(TrimmedMean(0.2), updates)[0] == pytest.approx(2)  # 0.2·5 is 1 whatever its rounding error
    assert mean_of(TrimmedMean(0.45), updates[:2])[0] == pytest.approx(0.5)


def test_clipping_shortens_to_a_fixed_length_or_to_the_median_one() -> None:
    updates = np.array([[3, 4, 0], [0, 1, 0], [0, 0, 2]], np.float32)  # of length 5, 1, 2
    np.testing.assert_allclose(mean_of(ClippedMean(norm=1), updates), np.array([0.6, 1.8, 1]) / 3, atol=1e-6)
    np.testing.assert_allclose(mean_of(ClippedMean(), updates), np.array([1.2, 2.6, 2]) / 3, atol=1e-6)
    np.testing.assert_allclose(mean_of(ClippedMean(times=3), updates), updates.mean(axis=0), atol=1e-6)


def krum_by_definition(updates: np.ndarray, lies: int) -> list[int]:
    """Blanchard et al., Sec. 4, in words: score every vector, keep the n − f best."""
    n = len(updates)
    scores = []
    for i in range(n):
        distances = sorted(float(np.sum((updates[i] - updates[j]) ** 2)) for j in range(n) if j != i)
        scores.append(sum(distances[: n - lies - 2]))
    return sorted(sorted(range(n), key=lambda i: scores[i])[: n - lies])


@pytest.mark.parametrize(("n", "share", "lies"), [(9, 0.2, 2), (9, 0.1, 1), (24, 0.25, 6), (5, 0.4, 1), (3, 0.4, 0)])
def test_multi_krum_keeps_whom_its_definition_keeps(n: int, share: float, lies: int) -> None:
    updates = random_updates(n, seed=n).astype(np.float64)
    kept = [reply.client for reply in MultiKrum(share)(THETA, replies(updates))]
    assert kept == krum_by_definition(updates, lies)
    assert len(kept) == n - lies


def test_krum_of_one_and_two_keeps_them() -> None:
    assert krum(np.zeros((1, 1)), 0.4) == [0]
    assert krum(np.array([[0.0, 4.0], [4.0, 0.0]]), 0.4) == [0, 1]


@pytest.mark.parametrize("average", ROBUST, ids=lambda average: type(average).__name__)
@given(lie=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=3, max_size=3), place=st.integers(0, 8))
def test_one_lie_of_nine_moves_the_average_no_farther_than_honest_updates_reach(
    average: Average, lie: list[float], place: int
) -> None:
    """However it is made. Coordinates stay among the honest ones for median and trimmed mean; for Krum and clipping the
    length is bounded: eight honest lengths and the lie's, which is no longer than the median."""
    honest = random_updates(9, seed=4) + np.array([1, 1, 0], np.float32)
    updates = honest.copy()
    updates[place] = lie
    moved = mean_of(average, updates)
    others = np.delete(honest, place, axis=0)
    if isinstance(average, Median):
        assert (moved >= others.min(axis=0) - 1e-5).all()
        assert (moved <= others.max(axis=0) + 1e-5).all()
    assert np.linalg.norm(moved) <= 3 * np.linalg.norm(others, axis=1).max()


@pytest.mark.parametrize("average", ROBUST, ids=lambda average: type(average).__name__)
def test_blocks_of_coordinates_change_nothing(average: Average, monkeypatch: pytest.MonkeyPatch) -> None:
    theta = np.zeros(101, np.float32)
    updates = random_updates(7, 101, seed=2)
    whole = mean_of(average, updates, theta)
    monkeypatch.setattr(spool, "CELLS", 7 * 10)
    monkeypatch.setattr(averages, "BLOCK", 10)
    np.testing.assert_array_equal(mean_of(average, updates, theta), whole)


def test_a_spool_reads_back_what_it_was_given_in_blocks_no_larger_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "CELLS", 20)
    vectors = random_updates(6, 11)
    with Spool(11) as kept:
        for vector in vectors:
            kept.append(vector)
        np.testing.assert_array_equal(kept.row(4), vectors[4])
        blocks = list(kept.blocks())
    assert max(block.size for _, block in blocks) <= 20
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks], axis=1), vectors)
    assert [place.start for place, _ in blocks] == [0, 3, 6, 9]


def test_a_full_disk_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def seek(self, place: int) -> None: ...

        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

    kept = Spool(2)
    kept._file.close()
    kept._file = Full()
    with pytest.raises(RunError, match=r"do not fit into .*: No space left on device; make room"):
        kept.append(np.zeros(2, np.float32))


@pytest.mark.parametrize("aggregator", ["fedavg", "fedavgm", "fednova", "fedadam", "feddyn"])
@pytest.mark.parametrize("name", sorted(registry.AVERAGE.builtin.keys() - {"multi_krum"}))
def test_every_average_goes_with_every_aggregator(name: str, aggregator: str) -> None:
    """Where all say the same, every average says that: so the aggregator does what it does with the mean."""
    settings = {"num_clients": 10, "server_lr": 0.5}
    same = replies(np.tile([0.5, -1.0, 2.0], (5, 1)))
    same = [Reply(r.client, 10, r.vector, {"steps": 3.0}) for r in same]
    results = []
    for average in (Average(), registry.make(registry.AVERAGE, name, {})):
        made = registry.make(registry.AGGREGATOR, aggregator, settings)
        one = made.step(THETA, average(THETA, same))
        results.append(made.step(one, average(one, same)))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)


def test_under_multi_krum_only_those_who_stay_reach_the_aggregator() -> None:
    feddyn = registry.make(registry.AGGREGATOR, "feddyn", {"num_clients": 10})
    updates = np.concatenate([np.full((4, 3), 1.0), np.full((1, 3), -9.0)])
    moved = feddyn.step(THETA, MultiKrum(0.2)(THETA, replies(updates))) - THETA
    np.testing.assert_allclose(moved, np.full(3, 1 + 0.4), rtol=1e-6)  # θ̄ of four, and s = 4/10 of it


def test_no_reply_leaves_theta_where_it_was() -> None:
    for average in ROBUST:
        assert Aggregator().step(THETA, average(THETA, iter([]))) is THETA


def test_a_claimed_number_of_steps_does_not_count_under_the_median() -> None:
    """FedNova divides an update by its steps: a client that claims one would count for more."""
    nova = registry.make(registry.AGGREGATOR, "fednova", {"server_lr": 1.0, "server_momentum": 0.0, "momentum": 0.0})
    honest = [Reply(k, 10, THETA + np.float32(1), {"steps": 40.0}) for k in range(4)]
    liar = Reply(4, 10, THETA - np.float32(1), {"steps": 1.0})
    np.testing.assert_allclose(nova.step(THETA, Median()(THETA, [*honest, liar])), THETA + 1, rtol=1e-6)


def test_who_sends_a_much_longer_update_is_named() -> None:
    average = Average()
    updates = random_updates(5)
    updates[3] *= 20
    mean_of(average, updates)
    assert len(average.warnings()) == 1
    assert average.warnings()[0].startswith("Client 3 sent an update more than 10 times as long as the median")
    mean_of(average, random_updates(5))
    assert average.warnings() == []
    assert Average().warnings() == []


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("trimmed_mean", {"share": 0.5}, "average.share must be at least 0 and below 0.5"),
        ("multi_krum", {"share": -0.1}, "average.share must be at least 0 and below 0.5"),
        ("clipped_mean", {"times": 0.0}, "average.times above 0"),
        ("clipped_mean", {"norm": math.nan}, "average.norm must be at least 0"),
        ("median", {"share": 0.1}, "The average 'median' has no parameter 'share'"),
    ],
)
def test_wrong_parameters_are_refused(name: str, options: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        registry.make(registry.AVERAGE, name, {}, options)
