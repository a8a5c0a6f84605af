"""Every hidden group counts equally: the algebra against scikit-learn and by hand, the protocol on real digits."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

import feddiverse as fd
from feddiverse.client.draws import ATTRIBUTE, CONFIDENCE, Unread, epoch, is_aside, sample_weights
from feddiverse.data.federation import Samples
from feddiverse.estimation.balance import (
    PENALTIES,
    BalancedSums,
    best_penalty,
    calibrate,
    fold_of,
    length,
    sums_problem,
)
from feddiverse.estimation.balancer import NOT_SEEN, Head
from feddiverse.messages import Reply, Train
from feddiverse.splits import SPLITS


def answer(x: np.ndarray, y: np.ndarray, w: np.ndarray, num_classes: int) -> Reply:
    """What a client would send, written out by hand."""
    parts = [np.array([w[y == c].sum() for c in range(num_classes)])]
    parts += [(w[y == c, None] * x[y == c]).sum(axis=0) for c in range(num_classes)]
    products = sum(wi * np.outer(xi, xi) for wi, xi in zip(w, x, strict=True))
    return Reply(0, vector=np.concatenate([*parts, products[np.triu_indices(x.shape[1])]]).astype(np.float32))


def some(seed: int = 0, n: int = 200, d: int = 6, num_classes: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, num_classes, n)
    return rng.normal(size=(n, d)) * np.arange(1, d + 1) + y[:, None] + 3, y, rng.uniform(0.1, 2, n)


@pytest.mark.parametrize("penalty", [0.1, 1.0, 30.0])
def test_heads_are_those_of_scikit_learn_s_weighted_ridge(penalty: float) -> None:
    x, y, w = some()
    parts = [answer(x[part], y[part], w[part], 3).numbers for part in (slice(80), slice(80, None))]
    sums = BalancedSums.unpacked(np.sum(parts, axis=0, dtype=np.float64), 3, 6)
    [(weight, bias)] = sums.heads([penalty])
    w = w / w.sum()
    mean = w @ x
    deviation = np.sqrt(w @ (x - mean) ** 2)
    z = (x - mean) / deviation
    model = Ridge(alpha=penalty).fit(z, 2.0 * np.eye(3)[y] - 1, sample_weight=w)  # Σ w = 1 and tr S / d = 1
    np.testing.assert_allclose(weight, model.coef_ / deviation, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(bias, model.intercept_ - weight @ mean, rtol=2e-4, atol=1e-4)


def test_sums_of_clients_add_up_and_can_be_taken_away() -> None:
    x, y, w = some()
    answers = [answer(x[i::2], y[i::2], w[i::2], 3) for i in range(2)]
    parts = [BalancedSums.unpacked(reply.numbers.astype(np.float64), 3, 6) for reply in answers]
    whole = parts[0] + parts[1]
    rest = whole - parts[0]
    np.testing.assert_allclose(rest.products, parts[1].products, rtol=1e-5, atol=1e-2)
    np.testing.assert_allclose(whole.weights.sum(), w.sum(), rtol=1e-6)
    assert length(3, 6) == 3 + 18 + 21


@given(st.integers(0, 10_000))
@settings(max_examples=40)
def test_calibrated_draws_pool_to_equal_groups(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrices = rng.integers(1, 100, (8, 2, 2)).astype(float)
    sizes = matrices.sum(axis=(1, 2))
    drawn = matrices * calibrate(matrices, sizes)
    pooled = (sizes[:, None, None] * drawn / drawn.sum(axis=(1, 2), keepdims=True)).sum(axis=0)
    np.testing.assert_allclose(pooled / pooled.sum(), 0.25, atol=1e-6)


def test_calibration_evens_out_what_one_over_n_does_not() -> None:
    """waterbirds-dist: where most clients have next to nothing of two groups, 1/n weights pool to unequal shares."""
    matrices = SPLITS["dist"].counts.astype(float)
    sizes = matrices.sum(axis=(1, 2))

    def shares(weights: np.ndarray) -> np.ndarray:
        drawn = matrices * weights
        pooled = (sizes[:, None, None] * drawn / drawn.sum(axis=(1, 2), keepdims=True)).sum(axis=0)
        return pooled / pooled.sum()

    plain = shares(1 / matrices.sum(axis=0))
    np.testing.assert_allclose(plain, [[0.35, 0.135], [0.22, 0.30]], atol=0.006)  # measured in the trial
    np.testing.assert_allclose(shares(calibrate(matrices, sizes)), 0.25, atol=0.002)


def test_a_group_that_nobody_has_keeps_no_weight() -> None:
    weights = calibrate(np.array([[[5.0, 5.0], [5.0, 0.0]]]), np.array([15.0]))
    assert weights[1, 1] == 0
    np.testing.assert_allclose(weights.ravel()[:3], 1 / 3)


def test_folds_share_every_group() -> None:
    matrices = {k: counts.astype(float) for k, counts in enumerate(SPLITS["dist"].counts)}
    folds = fold_of(matrices)
    assert set(folds) == set(range(30))
    assert set(folds.values()) == set(range(5))
    assert fold_of({3: np.ones((2, 2))}) == {3: 0}
    assert np.bincount(list(folds.values())).tolist() == [6] * 5
    few = {k: matrices[k] for k in range(13)}
    assert sorted(np.bincount(list(fold_of(few).values()))) == [4, 4, 5]  # enough for a secure sum each
    rare = np.zeros(5)
    for client, fold in folds.items():
        rare[fold] += matrices[client][0, 1]
    assert rare.max() / rare.sum() < 0.35


def test_the_penalty_whose_worst_group_is_best_is_taken() -> None:
    errors = np.array([[1.0, 9.0, 0.0], [4.0, 4.5, 0.0]])
    assert best_penalty(errors, np.array([10.0, 10.0, 0.0])) == 1


def read(y: list[int], a: list[int], confidence: list[float]) -> Samples:
    samples = Samples(np.zeros((len(y), 1), np.float32), np.array(y), None)
    samples.memory.update({ATTRIBUTE: np.array(a), CONFIDENCE: np.array(confidence)})
    return samples


def test_epochs_are_drawn_by_group_and_unsure_samples_never() -> None:
    samples = read([0] * 9 + [1], [0] * 8 + [1, 0], [1.0] * 7 + [0.5, 1.0, 1.0])
    weights = np.array([[1 / 7, 1], [1, 0]], np.float32)
    task = Train(0, 1, draw=weights, draw_confidence=0.9)
    drawn = np.concatenate([epoch(task, 0, samples, np.random.default_rng(i)) for i in range(300)])
    counts = np.bincount(drawn, minlength=10)
    assert counts[7] == 0  # not sure enough
    np.testing.assert_allclose(counts[[8, 9]] / len(drawn), 1 / 3, atol=0.02)
    one = np.bincount(epoch(task, 0, samples, np.random.default_rng(0)), minlength=10)
    assert one.sum() == 10
    assert one[8] in (3, 4)  # systematic: ⌊10/3⌋ or ⌈10/3⌉


def test_without_a_sure_sample_an_epoch_is_plain_and_without_a_reading_it_is_refused() -> None:
    samples = read([0, 1], [0, 0], [0.5, 0.5])
    task = Train(0, 1, draw=np.ones((2, 2), np.float32), draw_confidence=0.9)
    assert sorted(epoch(task, 0, samples, np.random.default_rng(0)).tolist()) == [0, 1]
    with pytest.raises(Unread, match="has not read its attributes"):
        sample_weights(Samples(samples.x, samples.y, None), task.draw, 0.9)


def test_a_share_of_each_class_is_set_aside_the_same_in_every_round_and_never_trained_on() -> None:
    samples = read([0] * 40 + [1] * 10, [0] * 50, [1.0] * 50)
    aside = is_aside(samples, 0.2, seed=3, client=4)
    assert (aside[:40].sum(), aside[40:].sum()) == (8, 2)
    np.testing.assert_array_equal(aside, is_aside(samples, 0.2, seed=3, client=4))
    assert (aside != is_aside(samples, 0.2, seed=3, client=5)).any()
    for draw in (np.zeros((0, 0), np.float32), np.ones((2, 1), np.float32)):
        for round in (1, 2):
            task = Train(3, round, draw=draw, set_aside=0.2)
            assert not aside[epoch(task, 4, samples, np.random.default_rng(round))].any()


def test_a_class_with_one_sample_is_set_aside_as_often_as_its_share_says() -> None:
    samples = read([0], [0], [1.0])
    often = np.mean([is_aside(samples, 0.2, seed=0, client=k).all() for k in range(1000)])
    assert abs(often - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 1000)
    task = Train(0, 1, set_aside=0.2)
    assert all(epoch(task, k, samples, np.random.default_rng(0)).tolist() == [0] for k in range(30))


def test_without_setting_aside_an_epoch_is_the_permutation_it_always_was() -> None:
    samples = read([0, 1] * 20, [0] * 40, [1.0] * 40)
    plain = epoch(Train(0, 1), 0, samples, np.random.default_rng(5))
    np.testing.assert_array_equal(plain, np.random.default_rng(5).permutation(40))


def test_a_head_is_written_where_it_belongs() -> None:
    head = Head(slice(1, 5), slice(5, 7), 2, 2)
    changed = head.written_into(np.zeros(8, np.float32), np.arange(4.0).reshape(2, 2), np.array([8.0, 9.0]))
    assert changed.tolist() == [0, 0, 1, 2, 3, 8, 9, 0]


BALANCED = {"draw": "balanced", "rebalance": True, "rebalance_dimensions": 128}


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, fd.Result]:
    path = tmp_path_factory.mktemp("runs") / "run"
    settings = {"rounds": 4, "evaluate_every": 4, "seed": 7, **BALANCED}
    return path, fd.train("dist:digits", out=path, workers=2, **settings)


@pytest.mark.slow
def test_a_run_keeps_both_heads_and_gives_the_rebalanced_model(balanced: tuple[Path, fd.Result]) -> None:
    path, result = balanced
    assert result.rebalanced["worst_group_accuracy"] > result.worst_group_accuracy + 0.1
    assert result.rebalanced["settings"]["penalty"] in PENALTIES
    fed = fd.federation("dist:digits", seed=7)
    test = fed.test()
    accuracy = (result.predict(test.x) == test.y).mean()
    assert accuracy == pytest.approx(result.rebalanced["accuracy"], abs=2 / len(test.y))
    again = fd.load_run(path)
    assert again.rebalanced == result.rebalanced
    assert (again.theta == result.theta).all()
    assert json.loads((path / "result.json").read_text())["theta_sha256"] == result.theta_sha256


@pytest.mark.slow
def test_the_same_bits_for_any_number_of_workers_and_after_an_interruption(
    balanced: tuple[Path, fd.Result], tmp_path: Path
) -> None:
    _, whole = balanced
    settings = {"evaluate_every": 4, "seed": 7, "workers": 1, **BALANCED}
    fd.train("dist:digits", rounds=2, out=tmp_path / "run", **settings)
    further = fd.train("dist:digits", rounds=4, out=tmp_path / "run", resume=True, **settings)
    assert further.theta_sha256 == whole.theta_sha256
    assert further.rebalanced["theta_sha256"] == whole.rebalanced["theta_sha256"]


def test_where_no_attribute_is_seen_nothing_changes_and_it_is_said() -> None:
    settings = {"rounds": 2, "evaluate_every": 2, "num_selected": 3, "workers": 1}
    name = "iid(clients=6,samples=600):digits"
    plain = fd.train(name, **settings)
    result = fd.train(name, draw="balanced", rebalance=True, rebalance_weights="groups", **settings)
    assert result.rebalanced is None
    assert result.theta_sha256 == plain.theta_sha256
    assert NOT_SEEN in result.history[0]["warnings"]


@pytest.mark.parametrize(("n", "scale"), [(5, 1.0), (40, 1e4), (400, 1e-4)])
@pytest.mark.parametrize("dominant", [1.0, 1e6])
def test_honest_sums_pass_whatever_the_scale_of_features(n: int, scale: float, dominant: float) -> None:
    """Of fewer samples than features, their within-class scatter is singular: it must not be taken for a lie."""
    rng = np.random.default_rng(n)
    x, y, w = np.maximum(rng.normal(size=(n, 60)), 0) * scale, rng.integers(0, 3, n), rng.uniform(0.01, 30, n)
    x[:, 7] *= dominant
    x[:, 8] = 0
    expected = np.bincount(y, weights=w, minlength=3)
    vector = answer(x, y, w, 3).vector
    assert sums_problem(vector, 3, 60, expected, slack=0.01) is None
    lie = vector.copy()
    lie[3 + 3 * 60 :] *= 0.1  # less than the class means alone amount to
    assert "not positive semi-definite" in sums_problem(lie, 3, 60, expected, slack=0.01)
    assert "other weights" in sums_problem(vector, 3, 60, 2 * expected, slack=0.01)
