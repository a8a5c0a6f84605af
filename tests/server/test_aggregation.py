"""Aggregators against hand-worked formulas, torch's optimisers, and the definition of FedNova's steps."""

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddiverse import registry
from feddiverse.messages import Reply
from feddiverse.server.aggregation import Aggregator, effective_steps

AGGREGATORS = registry.AGGREGATOR.builtin
THETA = np.array([1.0, -2.0, 0.5], np.float32)
SETTINGS = {
    "weighting": "equal",
    "server_lr": 0.1,
    "server_momentum": 0.95,
    "momentum": 0.9,
    "server_beta1": 0.9,
    "server_beta2": 0.99,
    "server_tau": 0.001,
}


def build(name: str, settings: dict[str, object]) -> Aggregator:
    made: Aggregator = registry.make(registry.AGGREGATOR, name, settings)
    return made


def reply(client: int, change: list[float], num_examples: int = 10, steps: int = 2) -> Reply:
    vector = THETA + np.array(change, np.float32)
    return Reply(client, num_examples, vector, {"loss": 1.0, "steps": float(steps)})


def test_fedavg_is_the_mean_of_clients() -> None:
    replies = [reply(0, [1, 0, 0], 30), reply(1, [0, 4, 0], 10)]
    np.testing.assert_allclose(Aggregator("equal").step(THETA, replies), THETA + np.array([0.5, 2, 0]))
    np.testing.assert_allclose(Aggregator("samples").step(THETA, replies), THETA + np.array([0.75, 1, 0]))


def test_fedavgm_accumulates_updates_with_momentum() -> None:
    aggregator = build("fedavgm", SETTINGS)
    after_one = aggregator.step(THETA, [reply(0, [1, 0, 0]), reply(1, [0, 2, 0])])
    np.testing.assert_allclose(after_one, THETA + 0.1 * np.array([0.5, 1, 0]), rtol=1e-6)
    still = Reply(0, 10, after_one)
    after_two = aggregator.step(after_one, [still])  # nothing new: only momentum moves θ
    np.testing.assert_allclose(after_two, after_one + 0.1 * 0.95 * np.array([0.5, 1, 0]), rtol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_effective_steps_are_how_far_sgd_walks_under_a_constant_gradient(steps: int, momentum: float) -> None:
    weight = torch.zeros(1, requires_grad=True)
    sgd = torch.optim.SGD([weight], lr=1.0, momentum=momentum)
    for _ in range(steps):
        sgd.zero_grad()
        weight.sum().backward()
        sgd.step()
    assert effective_steps(steps, momentum) == pytest.approx(-weight.item(), rel=1e-5)


def test_fednova_undoes_that_some_clients_walk_further() -> None:
    """Clients whose gradients weigh the same: one walks 2 steps, one 6. FedAvg follows the second; FedNova neither."""
    short, long = effective_steps(2, 0.9), effective_steps(6, 0.9)
    replies = [reply(0, [-short, 0, 0], steps=2), reply(1, [0, -long, 0], steps=6)]
    aggregator = build("fednova", {**SETTINGS, "server_lr": 1.0, "server_momentum": 0.0})
    moved = aggregator.step(THETA, replies) - THETA
    effective = (short + long) / 2  # τ_eff
    np.testing.assert_allclose(moved, [-effective / 2, -effective / 2, 0], rtol=1e-5)


def test_fednova_weighs_clients_by_their_samples() -> None:
    """p = 3/4, 1/4 and, without local momentum, τ = 2, 6: τ_eff = 3, d = 3 (3/4 · [4, 0] / 2 + 1/4 · [0, 12] / 6)."""
    replies = [reply(0, [4, 0, 0], 30, steps=2), reply(1, [0, 12, 0], 10, steps=6)]
    plain = {"weighting": "samples", "server_lr": 1.0, "server_momentum": 0.0, "momentum": 0.0}
    moved = build("fednova", {**SETTINGS, **plain}).step(THETA, replies) - THETA
    np.testing.assert_allclose(moved, [4.5, 1.5, 0], rtol=1e-6)


def test_fednova_equals_fedavgm_when_all_walk_the_same() -> None:
    replies = [reply(0, [1, 0, 2], 30), reply(1, [0, 4, 1], 10)]
    nova, avgm = build("fednova", SETTINGS), build("fedavgm", SETTINGS)
    a = b = THETA
    for _ in range(3):
        a, b = nova.step(a, replies), avgm.step(b, replies)
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_fednova_ignores_clients_that_took_no_step() -> None:
    aggregator = build("fednova", SETTINGS)
    assert aggregator.step(THETA, [Reply(0, 0, THETA, {"steps": 0.0})]) is THETA


def test_fedadam_follows_its_paper_for_two_rounds() -> None:
    """Reddi et al., algorithm 2, written out: no bias correction."""
    aggregator = build("fedadam", SETTINGS)
    d1, d2 = np.array([1.0, 0.0, -2.0]), np.array([0.5, 1.0, 0.0])
    one = aggregator.step(THETA, [Reply(0, 1, (THETA + d1).astype(np.float32))])
    m, v = 0.1 * d1, 0.99 * 1e-6 + 0.01 * d1**2
    np.testing.assert_allclose(one, THETA + 0.1 * m / (np.sqrt(v) + 1e-3), rtol=1e-6)
    two = aggregator.step(one, [Reply(0, 1, (one + d2).astype(np.float32))])
    m, v = 0.9 * m + 0.1 * d2, 0.99 * v + 0.01 * d2**2
    np.testing.assert_allclose(two, one + 0.1 * m / (np.sqrt(v) + 1e-3), rtol=1e-5)


def test_fedyogi_moves_its_second_moment_by_a_bounded_amount() -> None:
    aggregator = build("fedyogi", {**SETTINGS, "server_beta1": 0.0})
    big = np.array([1.0, 0.0, -2.0])
    one = aggregator.step(THETA, [Reply(0, 1, (THETA + big).astype(np.float32))])
    v = 1e-6 + 0.01 * big**2  # v < d², so it grows by (1 − β₂) d²
    np.testing.assert_allclose(one, THETA + 0.1 * big / (np.sqrt(v) + 1e-3), rtol=1e-6)
    small = np.array([0.01, 0.01, 0.01])
    two = aggregator.step(one, [Reply(0, 1, (one + small).astype(np.float32))])
    v = v + 0.01 * small**2 * np.array([-1, 1, -1])  # shrinks where v > d²
    np.testing.assert_allclose(two, one + 0.1 * small / (np.sqrt(v) + 1e-3), rtol=1e-4)


def test_fedadagrad_follows_torch_adagrad() -> None:
    aggregator = build("fedadagrad", SETTINGS)
    weight = torch.tensor(THETA, requires_grad=True)
    adagrad = torch.optim.Adagrad([weight], lr=0.1, eps=1e-3, initial_accumulator_value=1e-6)
    theta = THETA
    for change in ([1.0, 0.0, -2.0], [0.5, 1.0, 0.0], [0.1, 0.1, 0.1]):
        theta = aggregator.step(theta, [Reply(0, 1, (theta + np.array(change)).astype(np.float32))])
        weight.grad = -torch.tensor(change)
        adagrad.step()
    np.testing.assert_allclose(theta, weight.detach().numpy(), rtol=1e-4)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_state_restored_goes_on_with_the_same_bits(name: str) -> None:
    rng = np.random.default_rng(0)

    def replies(theta: np.ndarray) -> list[Reply]:
        return [Reply(k, 5 + k, (theta + rng.normal(size=3)).astype(np.float32), {"steps": 3.0 + k}) for k in range(4)]

    one, two = build(name, SETTINGS), build(name, SETTINGS)
    theta = one.step(THETA, replies(THETA))
    state = one.state()
    copied = {key: value.copy() for key, value in state.items()}
    news = replies(theta)
    expected = one.step(theta, news)
    two.restore(state)  # taken before that step, as a checkpoint written during it would be
    np.testing.assert_array_equal(two.step(theta, news), expected)
    for key, value in state.items():
        np.testing.assert_array_equal(value, copied[key])


@pytest.mark.parametrize("name", AGGREGATORS)
def test_without_replies_nothing_moves(name: str) -> None:
    aggregator = build(name, SETTINGS)
    assert aggregator.step(THETA, []) is THETA
    assert aggregator.state() == {}


@pytest.mark.parametrize("name", AGGREGATORS)
def test_one_pass_and_at_most_one_reply_alive(name: str) -> None:
    """Streaming: each reply can be gone before the next one comes."""
    alive: list[weakref.ref] = []

    def stream():
        for k in range(5):
            vector = np.full(3, float(k), np.float32)
            alive.append(weakref.ref(vector))
            yield Reply(k, 1, vector, {"steps": 1.0})
            del vector
            assert sum(ref() is not None for ref in alive) <= 1

    build(name, SETTINGS).step(THETA, stream())
    assert len(alive) == 5


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=1, max_size=8))
def test_the_mean_lies_between_the_clients(vectors: list[list[float]]) -> None:
    stack = np.array(vectors, np.float32)
    mean = Aggregator().step(THETA, [Reply(k, 1, v) for k, v in enumerate(stack)])
    # Ten roundings in double precision of numbers up to 1,000 (eight sums, θ taken off and added), then one to single.
    double, single = 10 * 1e3 * 2.0**-53, 2.0**-24
    slack = double + single * np.abs(stack).max()
    assert np.all(mean >= stack.min(axis=0) - slack)
    assert np.all(mean <= stack.max(axis=0) + slack)
    np.testing.assert_allclose(mean, stack.astype(np.float64).mean(axis=0), rtol=single, atol=2 * double)
