"""The loop over a fake engine: who is asked, what is left out, what is counted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from feddiverse import registry
from feddiverse.errors import RunError
from feddiverse.estimation.base import Estimator, Oracle
from feddiverse.messages import LabelCounts, Loss, Reply, Task, Train, TrueMatrix, Vector
from feddiverse.selection.base import Selector
from feddiverse.selection.feddiverse import FedDiverse
from feddiverse.selection.group_balance import GroupBalance
from feddiverse.server.aggregation import Aggregator, FedAvgM
from feddiverse.server.rounds import Plan, Round, rounds

SIZE = 4
CLIENTS = {7: 100, 3: 300, 5: 200, 1: 300}
TRAINED = {"loss": 1.0, "steps": 1.0}


@dataclass
class FakeEngine:
    """Clients that add their id to θ; `answers` replaces a client's reply."""

    clients: Mapping[int, int] = field(default_factory=lambda: dict(CLIENTS))
    answers: dict[int, Reply] = field(default_factory=dict)
    asked: list[tuple[Task, list[int]]] = field(default_factory=list)

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        self.asked.append((task, list(clients)))
        for k in clients:
            usual = Reply(k, self.clients[k], theta + np.float32(k), {"loss": float(k), "steps": 2.0}, seconds=0.5)
            if isinstance(task, Loss):
                usual = replace(usual, vector=None, metrics={"loss": 0.1, "loss_rms": 0.2})
            yield self.answers.get(k, usual)

    def close(self) -> None: ...


class Fixed(Selector):
    """Chooses the same clients always and remembers what it is shown."""

    def __init__(self, chosen: list[int], question: Task | None = None):
        self.chosen, self.question = chosen, question
        self.seen: list[tuple[int, Vector, list[Reply]]] = []

    def choose(self, round, k, clients, ask, rng) -> list[int]:
        if self.question:
            list(ask(self.question, sorted(clients)))
        return self.chosen

    def observe(self, round, theta, replies) -> None:
        self.seen.append((round, theta, list(replies)))


class Keeping(Fixed):
    wants_updates = True


def run(
    engine: FakeEngine, selector: Selector, total: int = 3, aggregator: Aggregator | None = None, **kw
) -> list[Round]:
    plan = Plan(Train(seed=1, round=0, prox_mu=0.5), total, 2, 2, kw.pop("pretraining_rounds", 0))
    table = np.array([[[5, 9], [8, 10]], [[10, 10], [10, 10]]])
    theta = kw.pop("theta", np.zeros(SIZE, np.float32))
    return list(rounds(engine, selector, aggregator or Aggregator(), lambda theta: table, plan, theta, **kw))


def test_each_round_asks_the_chosen_largest_first_and_moves_theta() -> None:
    engine = FakeEngine()
    done = run(engine, Fixed([7, 5, 1, 3]))
    assert [record.round for record in done] == [1, 2, 3]
    assert all(order == [1, 3, 5, 7] for _, order in engine.asked)  # 30 30 20 10 samples, ties by id
    assert [task.round for task, _ in engine.asked] == [1, 2, 3]
    assert done[0].selected == [7, 5, 1, 3]
    np.testing.assert_allclose(done[-1].theta, 3 * 4.0)  # three times the mean id
    assert done[0].train_loss == 4.0


def test_evaluates_every_n_rounds_and_at_the_end() -> None:
    done = run(FakeEngine(), Fixed([1]), total=5)
    assert [record.test is not None for record in done] == [False, True, False, True, True]
    assert done[-1].test.worst_group_accuracy == 0.5


def test_pretraining_is_plain_fedavg_with_everyone_and_counts_as_rounds() -> None:
    engine, selector, momentum = FakeEngine(), Fixed([1]), FedAvgM(server_lr=1.0)
    done = run(engine, selector, total=3, aggregator=momentum, pretraining_rounds=2)
    assert [record.phase for record in done] == ["pretraining", "pretraining", "selected"]
    assert [sorted(order) for _, order in engine.asked] == [[1, 3, 5, 7], [1, 3, 5, 7], [1]]
    assert [task.prox_mu for task, _ in engine.asked] == [0.0, 0.0, 0.5]
    np.testing.assert_allclose(done[1].theta, 8.0)  # equal weights, no momentum
    np.testing.assert_allclose(done[2].theta, 9.0)  # momentum starts empty after it
    assert [number for number, _, _ in selector.seen] == [3]


def test_pretraining_may_be_all_there_is() -> None:
    done = run(FakeEngine(), Fixed([1]), total=2, pretraining_rounds=5)
    assert [record.phase for record in done] == ["pretraining"] * 2


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Reply(5, failure="the loss is NaN."), "client 5 is left out: the loss is NaN."),
        (
            Reply(5, 1, np.zeros(3, np.float32), TRAINED),
            "client 5 is left out: it sent 3 numbers where 4 are expected.",
        ),
        (Reply(5, 1, None, TRAINED), "client 5 is left out: it sent no vector."),
        (
            Reply(5, 1, np.array([0, np.nan, 0, 0], np.float32), TRAINED),
            "client 5 is left out: its numbers are not all finite.",
        ),
        (
            Reply(5, 1, np.array([0, np.inf, 0, 0], np.float32), TRAINED),
            "client 5 is left out: its numbers are not all finite.",
        ),
    ],
)
def test_unusable_replies_are_left_out_with_a_warning(bad: Reply, reason: str) -> None:
    selector = Fixed([1, 5, 3])
    record = run(FakeEngine(answers={5: bad}), selector, total=1)[0]
    np.testing.assert_allclose(record.theta, 2.0)
    assert record.failed == [5]
    assert record.warnings == [f"Round 1: {reason}"]
    assert [r.client for r in selector.seen[0][2]] == [1, 3]


def oracle_run(engine: FakeEngine, selector: str, total: int = 2) -> list[Round]:
    """Clients send θ plus their id whatever they are asked, which passes for a matrix of two by two."""
    made = registry.make(registry.SELECTOR, selector, {"estimator": Oracle(seed=1, num_classes=2, num_attributes=2)})
    return run(engine, made, total, theta=np.ones(SIZE, np.float32))


@pytest.mark.parametrize("selector", ["feddiverse", "group_balance"])
def test_answers_that_a_selector_could_not_use_are_warned_about_by_kind(selector: str) -> None:
    bad = {
        3: Reply(3, failure="IndexError: no such attribute."),
        5: Reply(5, 100, np.ones(3, np.float32)),
        7: Reply(7, 100, -np.ones(SIZE, np.float32)),
    }
    first, second = oracle_run(FakeEngine(answers=dict(bad)), selector)
    told = "Round 1: 3 of 4 clients gave no usable answer to true_matrix (3, 5, 7); client 3: IndexError: no such"
    assert first.warnings[0] == f"{told} attribute."
    assert second.warnings[0].startswith("Round 2: 3 of 3 clients gave no usable answer")  # known ones are not asked
    del bad[3]
    assert "client 5: it sent 3 numbers where 4" in oracle_run(FakeEngine(answers=dict(bad)), selector)[0].warnings[0]
    del bad[5]
    assert (
        "client 7: one of its numbers is -1, not within [0, 100]"
        in oracle_run(FakeEngine(answers=dict(bad)), selector)[0].warnings[0]
    )
    assert oracle_run(FakeEngine(), selector)[0].warnings == []


@pytest.mark.parametrize("selector", ["feddiverse", "group_balance"])
def test_a_choice_without_any_triplet_is_warned_about(selector: str) -> None:
    class NoMatrix(FakeEngine):
        def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
            if isinstance(task, TrueMatrix):
                return (Reply(k, failure="gone") for k in clients)
            return super().ask(task, theta, clients)

    engine = NoMatrix(clients=dict.fromkeys(range(12), 5))
    for record in oracle_run(engine, selector):
        silent, unknown = record.warnings
        assert "12 of 12 clients gave no usable answer to true_matrix (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …)" in silent
        assert "is known: " in unknown
        assert record.failed == []


def test_a_round_without_usable_replies_leaves_theta_and_three_end_the_run() -> None:
    engine = FakeEngine(answers={k: Reply(k, failure="gone") for k in CLIENTS})
    plan = Plan(Train(1, 0), 9, 1, 5)
    loop = rounds(engine, Fixed([3]), FedAvgM(), lambda theta: np.ones((2, 1, 1)), plan, np.ones(SIZE, np.float32))
    seen = [next(loop), next(loop), next(loop)]
    with pytest.raises(RunError, match=r"3 rounds in a row.*client 3"):
        next(loop)
    np.testing.assert_array_equal(seen[-1].theta, 1.0)
    assert "the model stays as it was" in seen[0].warnings[-1]
    assert [record.lost_in_a_row for record in seen] == [1, 2, 3]
    assert seen[0].train_loss is None


def test_one_good_round_forgives_the_lost_ones() -> None:
    engine = FakeEngine(answers={3: Reply(3, failure="gone")})

    class Alternating(Fixed):
        def choose(self, round, k, clients, ask, rng) -> list[int]:
            return [1] if round == 3 else [3]

    done = run(engine, Alternating([]), total=5)
    assert [record.lost_in_a_row for record in done] == [1, 2, 0, 1, 2]


def test_goes_on_where_it_was_with_the_same_bits() -> None:
    class Random(Fixed):
        def choose(self, round, k, clients, ask, rng) -> list[int]:
            return rng.choice(sorted(clients), k, replace=False).tolist()

    whole_aggregator = FedAvgM()
    whole = run(FakeEngine(), Random([]), total=6, aggregator=whole_aggregator)
    first = FedAvgM()
    half = run(FakeEngine(), Random([]), total=3, aggregator=first)
    second = FedAvgM()
    second.restore(first.state())
    rest = run(FakeEngine(), Random([]), total=6, aggregator=second, theta=half[-1].theta, done=3)
    np.testing.assert_array_equal(rest[-1].theta, whole[-1].theta)
    assert [r.selected for r in half + rest] == [r.selected for r in whole]
    assert len({tuple(r.selected) for r in whole}) > 1


@pytest.mark.parametrize("choice", [[1, 1], [99]])
def test_a_selector_that_repeats_or_invents_clients_is_refused(choice: list[int]) -> None:
    with pytest.raises(RunError, match="not different clients"):
        run(FakeEngine(), Fixed(choice))


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        (np.zeros(SIZE - 1, np.float32), r"gave float32 of shape \(3,\), where float32 of shape \(4,\)"),
        (None, "gave object"),
        (np.full(SIZE, 1j), "gave complex128"),
        (np.array([0, np.nan, 0, 0]), "not all finite; a smaller step may help"),
    ],
)
def test_weights_that_no_client_can_go_on_from_are_the_aggregators_fault(weights: Vector, told: str) -> None:
    class Own(Aggregator):
        def step(self, theta, replies):
            list(replies)
            return weights

    with pytest.raises(RunError, match=f"Round 1: the aggregator.*{told}"):
        run(FakeEngine(), Fixed([3]), aggregator=Own())


def test_weights_of_an_own_aggregator_are_kept_as_all_others_are() -> None:
    class Own(Aggregator):
        def step(self, theta, replies):
            return [float(reply.client) for reply in replies] * SIZE

    done = run(FakeEngine(), Fixed([3]), aggregator=Own())[-1]
    assert (done.theta.dtype, done.theta.tolist()) == (np.float32, [3.0] * SIZE)


@pytest.mark.parametrize("told", [[1.0, 2.0], None, [0.1, 0.2, float("nan")], "abc", np.zeros((3, 1))])
@pytest.mark.parametrize("selector", [FedDiverse, GroupBalance])
def test_an_estimator_that_finds_no_triplet_is_refused(selector: type[Selector], told: object) -> None:
    class Own(Estimator):
        gives_matrices = True

        def estimate(self, round, clients, ask):
            return dict.fromkeys(clients, told)

    with pytest.raises(RunError, match=r"The estimator Own found .* of client 7, where three numbers are expected"):
        run(FakeEngine(), selector(Own()))


def test_vectors_are_kept_only_for_selectors_that_want_them() -> None:
    for selector, kept in ((Fixed([1]), False), (Keeping([1]), True)):
        run(FakeEngine(), selector, total=2)
        _, theta, replies = selector.seen[1]
        assert (replies[0].vector is not None) is kept
        np.testing.assert_allclose(theta, 1.0)  # what clients trained from, not what came of it


def test_traffic_is_counted_by_kind_of_question() -> None:
    engine = FakeEngine(answers={5: Reply(5, failure="gone")})
    loss = Loss(seed=1, round=1)
    record = run(engine, Fixed([1, 5], question=loss), total=1)[0]
    train = engine.asked[1][0]
    assert record.traffic["loss"] == {
        "messages": 4,
        "bytes_down": 4 * (SIZE * 4 + loss.num_bytes),
        "bytes_up": 3 * 16,
        "client_seconds": 1.5,
    }
    assert record.traffic["train"] == {
        "messages": 2,
        "bytes_down": 2 * (SIZE * 4 + train.num_bytes),
        "bytes_up": SIZE * 4 + 16,
        "client_seconds": 0.5,
    }


def test_questions_about_the_data_alone_do_not_carry_the_model() -> None:
    question = LabelCounts(seed=1, round=1)
    record = run(FakeEngine(), Fixed([1], question=question), total=1)[0]
    assert record.traffic["label_counts"]["bytes_down"] == 4 * question.num_bytes
    assert set(run(FakeEngine(), Fixed([1]), total=2)[1].traffic) == {"train"}  # each round counts its own
