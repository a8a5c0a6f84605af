"""What every selector promises, whatever its rule."""

import json

import numpy as np
import pytest
from selection_fakes import SETTINGS, FakeClients, build, updates

from feddiverse import registry
from feddiverse.errors import UserError
from feddiverse.seeding import rng
from feddiverse.selection.base import Selector
from feddiverse.selection.uniform import Uniform

CASES = [*registry.SELECTOR.builtin, "feddiverse+coverage", "feddiverse+released", "pow_d+candidates", "haccs+noise"]


def make(case: str) -> Selector:
    name, _, extra = case.partition("+")
    special = {
        "coverage": {"coverage": 1.5},
        "released": {"rule": "released"},
        "candidates": {"pow_d_candidates": 6},
        "noise": {"epsilon": 0.5},
    }
    return build(name, SETTINGS | special.get(extra, {}), "consensus" if extra == "consensus" else "oracle")


def play(
    selector: Selector, sizes: dict[int, int], k: int, rounds: range, clients: FakeClients, seed: int = 5
) -> list[list[int]]:
    """Choices of several rounds, with what came back told to the selector as the loop tells it."""
    history = []
    for t in rounds:
        history.append(selector.choose(t, k, sizes, clients, rng(seed, "select", t)))
        selector.observe(t, *updates(t, history[-1]))
    return history


def sizes_of(num_clients: int) -> dict[int, int]:
    """Ids with gaps, so that positions cannot pass for ids."""
    return {7 * i + 3: 20 + i % 5 for i in range(num_clients)}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("num_clients", "k"), [(24, 9), (5, 9), (9, 9), (1, 1), (1, 3), (300, 7), (12, 11)])
def test_right_number_of_different_available_clients(case: str, num_clients: int, k: int) -> None:
    sizes = sizes_of(num_clients)
    for chosen in play(make(case), sizes, k, range(4), FakeClients()):
        assert len(chosen) == (num_clients if case == "everyone" else min(k, num_clients))
        assert len(set(chosen)) == len(chosen)
        assert set(chosen) <= set(sizes)
        assert all(type(client) is int for client in chosen)


@pytest.mark.parametrize("case", CASES)
def test_same_seed_same_choices_in_any_order_of_arrival(case: str) -> None:
    sizes = sizes_of(30)
    shuffled = dict(sorted(sizes.items(), key=lambda item: item[0] % 11))
    expected = play(make(case), sizes, 7, range(6), FakeClients())
    assert play(make(case), shuffled, 7, range(6), FakeClients()) == expected
    if case not in ("everyone", "pow_d"):  # nothing is left to chance there
        assert play(make(case), sizes, 7, range(6), FakeClients(), seed=6) != expected


@pytest.mark.parametrize("case", CASES)
def test_state_restored_from_json_goes_on_with_the_same_choices(case: str) -> None:
    sizes, whole = sizes_of(24), make(case)
    play(whole, sizes, 9, range(5), FakeClients())
    saved = json.loads(json.dumps(whole.state(), default=np.ndarray.tolist))
    resumed = make(case)
    resumed.restore(saved)
    clients = FakeClients()
    assert play(resumed, sizes, 9, range(5, 12), clients) == play(whole, sizes, 9, range(5, 12), FakeClients())
    once = {"TrueMatrix", "Sketch", "LabelCounts"}
    assert not [task for task, _ in clients.asked if type(task).__name__ in once], "asked again what was known"
    json.dumps(resumed.findings())


@pytest.mark.parametrize("case", CASES)
def test_who_has_heard_of_nobody_has_found_nothing_and_says_so(case: str) -> None:
    """A run in which no client ever sent weights that could be used ends with what it has."""
    selector = make(case)
    json.dumps(selector.findings())
    selector.observe(1, np.zeros(40, np.float32), [])
    json.dumps(selector.findings())


@pytest.mark.parametrize("case", CASES)
def test_clients_vanish_come_back_and_come_late(case: str) -> None:
    everyone, selector, clients = sizes_of(20), make(case), FakeClients()
    early = {client: size for client, size in everyone.items() if client % 2}
    late = {client: size for client, size in everyone.items() if client not in early} | dict(list(early.items())[:2])
    for t, available in enumerate([early, late, everyone, early, everyone]):
        (chosen,) = play(selector, available, 6, range(t, t + 1), clients)
        assert set(chosen) <= set(available)
        assert len(chosen) == (len(available) if case == "everyone" else 6)
    assert all(set(asked) <= set(everyone) for _, asked in clients.asked)


@pytest.mark.parametrize(
    ("case", "num_broken"),
    [
        *((case, num_broken) for case in CASES for num_broken in (3, 20)),
        ("feddiverse+consensus", 20),
        ("group_balance+consensus", 20),
    ],
)
def test_clients_that_do_not_answer_do_not_stop_the_round(case: str, num_broken: int) -> None:
    sizes = sizes_of(20)
    for chosen in play(make(case), sizes, 6, range(3), FakeClients(broken=list(sizes)[:num_broken])):
        assert len(set(chosen)) == (20 if case == "everyone" else 6)


def test_own_selector_by_address() -> None:
    assert type(build("feddiverse.selection.uniform:Uniform", {})) is Uniform


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("unifrom", r"no selector 'unifrom' \(did you mean 'uniform'\?\); choose one of feddiverse, uniform,"),
        ("no.such.module:Selector", "cannot be imported"),
        ("feddiverse.errors:Missing", "cannot be imported"),
        ("feddiverse.errors:UserError", "no subclass of"),
        ("pow_d", "needs the parameter 'seed'"),
    ],
)
def test_mistakes_are_told(name: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        build(name, {})
