"""The estimators' seam: names, settings, failures, late clients, and the oracle and paper estimators on the server."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from feddiverse import registry
from feddiverse.errors import UserError
from feddiverse.estimation.base import Estimator
from feddiverse.estimation.paper import Paper
from feddiverse.heterogeneity import triplet
from feddiverse.messages import PaperTriplet, Reply, Task, Train, TrueMatrix
from feddiverse.server.replies import answers

COUNTS = np.array([[[90, 10], [10, 90]], [[90, 90], [10, 10]], [[5, 0], [0, 0]]])
SIZES = {k: int(n.sum()) for k, n in enumerate(COUNTS)}


class FakeClients:
    """Answers from tables; client ids in `dead` fail."""

    def __init__(self, dead: set[int] | None = None) -> None:
        self.dead = dead or set()
        self.asked: list[tuple[Task, list[int]]] = []

    def __call__(self, task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        self.asked.append((task, list(clients)))
        for k in clients:
            if k in self.dead:
                yield Reply(k, failure="gone")
            elif isinstance(task, TrueMatrix):
                yield Reply(k, SIZES[k], COUNTS[k].ravel().astype(np.float32))
            else:
                assert isinstance(task, PaperTriplet)
                yield Reply(k, SIZES[k], metrics={"ci": 0.1 * k, "ai": 0.2, "sc": 0.3})


def build(name: str, settings: dict[str, object]) -> Estimator:
    made: Estimator = registry.make(registry.ESTIMATOR, name, settings)
    return made


def test_oracle_gives_true_triplets_and_matrices() -> None:
    ask = FakeClients()
    oracle = build("oracle", {"seed": 0, "num_classes": 2, "num_attributes": 2, "unrelated": 1})
    found = oracle.estimate(1, SIZES, ask)
    assert found.keys() == SIZES.keys()
    for k in SIZES:
        np.testing.assert_allclose(found[k], triplet(COUNTS[k]))
        assert oracle.matrices is not None
        np.testing.assert_array_equal(oracle.matrices[k], COUNTS[k])
    assert ask.asked[0][1] == [0, 1, 2]  # largest first, ties by id


def test_failed_clients_are_left_out_and_asked_again_later() -> None:
    oracle = build("oracle", {"seed": 0, "num_classes": 2, "num_attributes": 2})
    assert oracle.estimate(1, SIZES, FakeClients(dead={1})).keys() == {0, 2}
    resumed = build("oracle", {"seed": 0, "num_classes": 2, "num_attributes": 2})
    resumed.restore(oracle.state())
    assert resumed.estimate(2, {1: 200}, FakeClients()).keys() == {1}
    assert resumed.matrices is not None
    assert sorted(resumed.matrices) == [0, 1, 2]


def test_paper_takes_three_numbers_and_shares_no_matrices() -> None:
    paper = build("paper", {"seed": 3, "bias_steps": 7, "lr": 0.5})
    ask = FakeClients()
    found = paper.estimate(4, SIZES, ask)
    np.testing.assert_allclose(found[2], [0.2, 0.2, 0.3])
    assert ask.asked[0][0] == PaperTriplet(3, 4, bias_steps=7, lr=0.5)
    assert paper.matrices is None


def test_what_compares_with_the_truth_is_not_counted_as_traffic() -> None:
    assert Reply(0, metrics={"ci": 0.0, "ai": 0.0, "sc": 0.0, "evaluation_only.0.0": 3.0}).num_bytes == 24


@pytest.mark.parametrize(
    "name", ["guess", "feddiverse.estimation.nowhere:X", "feddiverse.experiment.truth:compare", "json:"]
)
def test_wrong_names_are_told_in_a_sentence(name: str) -> None:
    with pytest.raises(UserError, match="stimator"):
        build(name, {})


def test_missing_setting_is_named() -> None:
    with pytest.raises(UserError, match="num_classes"):
        build("oracle", {"seed": 0})


def test_your_own_class_works() -> None:
    assert isinstance(build("feddiverse.estimation.paper:Paper", {"seed": 0}), Paper)


def test_answers_that_cannot_be_right_are_left_out() -> None:
    sound = np.ones(4, np.float32)
    trained = {"loss": 1.0, "steps": 1.0}
    sent = {
        0: Reply(0, 10, sound, trained),
        1: Reply(1, 10, sound[:3], trained),  # another length
        2: Reply(2, 10, sound * np.nan, trained),
        3: Reply(3, 10, sound, {**trained, "loss": np.inf}),
        4: Reply(4, 10, sound, {"loss": 1.0}),  # a number asked for is missing
        5: Reply(5, failure="gone"),
    }

    def ask(task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        return (sent[k] for k in clients)

    clients = dict.fromkeys(sent, 10)
    assert [r.client for r in answers(Train(0, 1), clients, ask)] == [0, 1]
    assert [r.client for r in answers(Train(0, 1), clients, ask, length=4)] == [0]
    assert [r.client for r in answers(Train(0, 1), clients, ask, length=3)] == [1]


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        ((0.0, 1.0, 0.5), (0.0, 1.0, 0.5)),
        ((-1e-7, 1 + 1e-7, 0.5), (0.0, 1.0, 0.5)),  # rounding on the way
        ((0.1, 1e6, 0.5), None),  # would be chosen every round
        ((0.1, 0.2, -0.5), None),  # would end the lottery
    ],
)
def test_triplets_are_within_zero_and_one(sent: tuple[float, ...], taken: tuple[float, ...] | None) -> None:
    def ask(task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        return (Reply(k, metrics=dict(zip(("ci", "ai", "sc"), sent, strict=True))) for k in clients)

    found = build("paper", {"seed": 0}).estimate(1, {4: 10}, ask)
    assert {k: tuple(t) for k, t in found.items()} == ({} if taken is None else {4: taken})


@pytest.mark.parametrize(
    ("sent", "plausible"),
    [
        ((0.0, 0.0, 0.5), True),
        ((1.0, 0.0, 0.0), True),
        ((0.5, 0.5, 0.9), True),
        ((0.9, 0.0, 0.0), False),  # between one odd sample of ten and none
        ((1.0, 0.0, 0.5), False),  # one class correlates with nothing
    ],
)
def test_paper_takes_no_triplet_that_so_many_samples_cannot_have(sent: tuple[float, ...], plausible: bool) -> None:
    def ask(task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        return (Reply(k, metrics=dict(zip(("ci", "ai", "sc"), sent, strict=True))) for k in clients)

    found = build("paper", {"seed": 0, "num_classes": 2}).estimate(1, {4: 10}, ask)
    assert (4 in found) is plausible


@pytest.mark.parametrize("counts", [[0, 0, 0, 0], [-1, 5, 5, 5]])
def test_a_matrix_that_counts_nothing_or_less_is_no_answer(counts: list[int]) -> None:
    def ask(task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        return (Reply(k, 20, np.array(counts if k == 4 else [1, 2, 3, 4], np.float32)) for k in clients)

    oracle = build("oracle", {"seed": 0, "num_classes": 2, "num_attributes": 2})
    assert oracle.estimate(1, {4: 10, 5: 10}, ask).keys() == {5}
