import logging
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Strategy,
)
from sklearn.linear_model import Ridge

from feddiverse.errors import RunError, UserError
from feddiverse.estimation.balance import PENALTIES
from feddiverse.estimation.base import Oracle
from feddiverse.estimation.consensus import Consensus
from feddiverse.flower import FedDiverse, Selecting, answer_questions, features_of, wire
from feddiverse.flower.answers import ANSWERED, HeadOnly
from feddiverse.flower.heads import find_head
from feddiverse.flower.strategy import _flat, _seen, _with_steps
from feddiverse.heterogeneity import triplet
from feddiverse.messages import Reply
from feddiverse.selection.base import Selector
from feddiverse.selection.feddiverse import FedDiverse as FedDiverseSelector
from feddiverse.selection.hcsfed import HCSFed

# Twelve clients of two classes: eight see the attribute go with the class, two are balanced, two lack a class.
TABLES = np.array([[[30, 2], [2, 30]]] * 8 + [[[16, 16], [16, 16]]] * 2 + [[[31, 31], [1, 1]]] * 2)


def data_of(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Features in which class and attribute are two far-apart directions, and labels."""
    rng = np.random.default_rng(k)
    y, a = (part.ravel() for part in np.indices((2, 2)))
    y, a = np.repeat(y, TABLES[k].ravel()), np.repeat(a, TABLES[k].ravel())
    x = rng.normal(size=(len(y), 6))
    x[:, 0] += 4 * y
    x[:, 1] += 6 * a
    return x, y


def make_app(with_losses: bool = False) -> ClientApp:
    """A user's app: training moves the one weight to the client's number; evaluation says how far it is from 5."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        k = int(context.node_config.get("partition-id", 0))
        assert message.content["config"]["server-round"] > 0
        arrays = ArrayRecord([np.array([float(k), 1.0], np.float32)])
        metrics = MetricRecord({"num-examples": 1, "client": k})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        weight = message.content["arrays"].to_numpy_ndarrays()[0][0]
        metrics = MetricRecord({"num-examples": 1, "distance": abs(float(weight) - 5)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def data(message: Message, context: Context) -> tuple[np.ndarray, ...]:
        assert message.content["arrays"].to_numpy_ndarrays()[0].shape == (2,), "the global model, as in train messages"
        k = int(context.node_config.get("partition-id", 0))
        x, y = data_of(k)
        return (x, y, np.full(len(y), float(k))) if with_losses else (x, y)

    return answer_questions(app, data, num_classes=2)


START = ArrayRecord([np.zeros(2, np.float32)])


def run(strategy: Strategy, grid: FakeGrid, rounds: int = 3) -> np.ndarray:
    result = strategy.start(grid, ArrayRecord([np.zeros(2, np.float32)]), rounds)
    return result.arrays.to_numpy_ndarrays()[0]


@pytest.mark.parametrize("inner", [FedAvg, FedAvgM, FedAdam, FedYogi, lambda **o: FedProx(proximal_mu=0.1, **o)])
def test_feddiverse_chooses_and_the_wrapped_strategy_does_all_else(inner: type[FedAvg]) -> None:
    grid = FakeGrid(make_app(), 12)
    strategy = FedDiverse(inner(fraction_train=0.5, fraction_evaluate=0.25), num_classes=2)
    assert np.isfinite(run(strategy, grid)).all()
    assert strategy.chosen[1] == list(range(12)), "pre-training asks everyone"
    assert [len(set(strategy.chosen[r])) for r in (2, 3)] == [6, 6]
    trained = grid.asked("train")
    assert trained[12:18] == [1000 + k for k in strategy.chosen[2]]
    assert len(grid.asked("evaluate")) == 9, "its own evaluation on a quarter of the nodes"


def test_triplets_are_found_from_features_alone() -> None:
    strategy = FedDiverse(FedAvg(fraction_train=0.25, fraction_evaluate=0), num_classes=2, pretraining_rounds=0)
    run(strategy, FakeGrid(make_app(), 12), 1)
    found = np.array([strategy.triplets[k] for k in range(12)])
    np.testing.assert_allclose(found, triplet(TABLES), atol=0.08)
    assert len(strategy.chosen[1]) == 3
    kinds = {0 if k < 8 else 1 if k < 10 else 2 for k in strategy.chosen[1]}
    assert len(kinds) > 1, "clients that complement each other"


def test_the_papers_estimator_answers_with_a_linear_biased_model() -> None:
    strategy = FedDiverse(
        FedAvg(fraction_train=0.25, fraction_evaluate=0),
        num_classes=2,
        estimator="paper",
        pretraining_rounds=0,
        bias_steps=5,
    )
    run(strategy, FakeGrid(make_app(), 4), 1)
    found = np.array([strategy.triplets[k] for k in range(4)])
    np.testing.assert_allclose(found[:, 0], triplet(TABLES[:4])[:, 0], atol=1e-6)  # CI is exact: labels are known


def test_the_papers_estimator_need_not_be_told_how_many_classes_there_are() -> None:
    strategy = Selecting(FedAvg(fraction_train=0.25, fraction_evaluate=0), "feddiverse", estimator="paper")
    run(strategy, FakeGrid(make_app(), 4), 2)
    assert sorted(strategy.findings()["triplets"]) == ["0", "1", "2", "3"]


def test_the_same_seed_chooses_the_same_clients_whatever_order_replies_come_in() -> None:
    def once(num_messages: int) -> tuple[object, bytes]:
        grid = FakeGrid(make_app(), 12)
        grid._shuffle.seed(num_messages)
        strategy = FedDiverse(FedAvg(fraction_train=0.5, fraction_evaluate=0), num_classes=2, seed=5)
        return strategy.chosen, run(strategy, grid).tobytes()

    assert once(1) == once(2)


def test_pow_d_asks_for_losses_and_takes_the_highest() -> None:
    strategy = Selecting(FedAvg(fraction_train=0.25, fraction_evaluate=0), "pow_d")
    run(strategy, FakeGrid(make_app(with_losses=True), 12), 2)
    assert {frozenset(chosen) for chosen in strategy.chosen.values()} == {frozenset({9, 10, 11})}
    # Without losses there is nothing to go by: any three.
    strategy = Selecting(FedAvg(fraction_train=0.25, fraction_evaluate=0), "pow_d")
    run(strategy, FakeGrid(make_app(), 12), 1)
    assert len(strategy.chosen[1]) == 3


class Watching(Selector):
    wants_updates = True

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[float], list[float]]] = []

    def choose(self, round, k, clients, ask, rng):
        return sorted(clients)[-k:]

    def observe(self, round, theta, replies):
        for reply in replies:
            assert reply.num_examples == 1
            self.seen.append((reply.client, theta.tolist(), reply.vector.tolist()))


def test_a_selector_that_wants_updates_sees_them_and_failed_clients_are_left_out() -> None:
    selector = Watching()
    grid = FakeGrid(make_app(), 6)
    grid_broken_later = Selecting(FedAvg(fraction_train=0.5, fraction_evaluate=0), selector)
    run(grid_broken_later, grid, 1)
    assert selector.seen == [(k, [0.0, 0.0], [float(k), 1.0]) for k in (3, 4, 5)]
    selector.seen.clear()
    grid.broken = {1004: 2}
    run(grid_broken_later, grid, 1)
    assert [client for client, _, _ in selector.seen] == [3, 5]


@pytest.mark.parametrize(
    "name", ["uniform", "round_robin", "everyone", "fedpns", "fed_cbs", "label_entropy", "oort", "group_balance"]
)
def test_every_selector_that_needs_no_training_of_its_own_works(name: str) -> None:
    strategy = Selecting(FedAvg(fraction_train=0.5, fraction_evaluate=0), name, num_classes=2)
    run(strategy, FakeGrid(make_app(with_losses=True), 12), 2)
    assert len(set(strategy.chosen[2])) == (12 if name == "everyone" else 6)


def test_differential_privacy_wraps_inside_where_rounds_have_one_size() -> None:
    private = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_train=0.5, fraction_evaluate=0), noise_multiplier=0.1, clipping_norm=1.0, num_sampled_clients=6
    )
    strategy = FedDiverse(private, num_classes=2, pretraining_rounds=0)
    weights = run(strategy, FakeGrid(make_app(), 12), 1)
    assert np.abs(weights).max() < 2, "clients' numbers up to 11 are clipped"


def test_nodes_without_partitions_go_by_their_own_ids() -> None:
    strategy = Selecting(FedAvg(fraction_train=0.5, fraction_evaluate=0))
    run(strategy, FakeGrid(make_app(), 4, partitions=False), 1)
    assert set(strategy.chosen[1]) <= {1000, 1001, 1002, 1003}


@pytest.mark.parametrize("selector", ["uniform", "pow_d"])
def test_node_ids_of_64_bits_are_no_obstacle(selector: str) -> None:
    grid = FakeGrid(make_app(with_losses=True), 4, partitions=False)
    grid.online = {2**63 + 10 + k: k for k in range(4)}
    strategy = Selecting(FedAvg(fraction_train=0.5, fraction_evaluate=0), selector)
    run(strategy, grid, 1)
    assert [2**63 + client for client in strategy.chosen[1]] == grid.asked("train")


class LosingGrid(FakeGrid):
    """Node 1003 says who it is and goes away when it is asked anything else: `how` is silence, or an error code."""

    how: str | int = "silent"

    def push_messages(self, messages):
        ids = []
        for message in messages:
            kind = message.metadata.message_type
            lost = message.metadata.dst_node_id == 1003 and kind.startswith("query.") and kind != wire.HELLO
            self.silent = {1003} if lost and self.how == "silent" else set()
            self.broken = {1003: self.how} if lost and isinstance(self.how, int) else {}
            ids += super().push_messages([message])
        return ids


@pytest.mark.parametrize("how", ["silent", 5])
@pytest.mark.parametrize("name", ["feddiverse", "group_balance", "pow_d", "oort", "fed_cbs", "label_entropy"])
def test_a_client_lost_while_being_asked_is_replaced_and_the_run_goes_on(name: str, how: str | int) -> None:
    for fraction, expected in ((1.0, 5), (0.5, 3)):
        grid = LosingGrid(make_app(with_losses=True), 6)
        grid.how = how
        inner = FedAvg(fraction_train=fraction, fraction_evaluate=0)
        strategy = Selecting(inner, name, num_classes=2, query_timeout=0.2, pretraining_rounds=0)
        run(strategy, grid, 1)
        assert len(set(strategy.chosen[1])) == expected
        assert 3 not in strategy.chosen[1]
        assert grid.asked("train") == [1000 + k for k in strategy.chosen[1]]


OTHER_FORM = "it sent other records, or arrays of other shapes, than most clients did"


def test_who_does_not_answer_is_told_once_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "flwr"):
        run(Selecting(FedAvg(fraction_evaluate=0), "pow_d"), FakeGrid(make_app(), 3), 2)
    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if "it gives no losses" in line] == [
        "3 of 3 clients gave no usable answer to loss (0, 1, 2); client 0: it gives no losses: let the function of"
        " answer_questions return them as well."
    ]


def test_a_triplet_that_cannot_be_is_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid(make_app(), 12)
    true_answer = grid._answer

    def answer(message: Message, node: int) -> Message:
        reply = true_answer(message, node)
        if node == 1002 and message.metadata.message_type == "query.feddiverse_attribute_triplet":
            reply.content["metrics"]["sc"] = 3.0
        return reply

    monkeypatch.setattr(grid, "_answer", answer)
    strategy = FedDiverse(FedAvg(fraction_evaluate=0), num_classes=2, pretraining_rounds=0)
    caplog.clear()
    with caplog.at_level("WARNING", "flwr"):
        run(strategy, grid, 1)
    assert sorted(strategy.triplets) == [0, 1, *range(3, 12)]
    assert caplog.messages == [
        "1 of 12 clients gave no usable answer to attribute_triplet (2); client 2: its sc is 3, not within [0, 1]."
    ]


@pytest.mark.parametrize(
    ("what", "problem"),
    [("nan", "its 0 is not all finite"), ("negative", "its num-examples is -4"),
     ("absurd", f"its num-examples is {2**62}"), ("unreadable", "its 0 cannot be read"),
     ("longer", OTHER_FORM), ("renamed", OTHER_FORM), ("keyless", OTHER_FORM), ("listed", OTHER_FORM)],
)  # fmt: skip
def test_weights_that_would_spoil_the_average_do_not_reach_the_wrapped_strategy(
    what: str, problem: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = FakeGrid(make_app(), 4)
    true_answer = grid._answer

    def answer(message: Message, node: int) -> Message:
        reply = true_answer(message, node)
        if node == 1003 and message.metadata.message_type == "train":
            content = reply.content
            if what == "nan":
                content["arrays"] = ArrayRecord([np.array([1.0, math.nan], np.float32)])
            elif what == "longer":
                content["arrays"] = ArrayRecord([np.ones(3, np.float32)])
            elif what == "renamed":
                content["arrays"] = ArrayRecord({"weights": Array(np.ones(2, np.float32))})
            elif what == "keyless":
                del content["metrics"]["num-examples"]
            elif what == "listed":
                content["metrics"]["loss"] = [1.0, 2.0]
            elif what == "unreadable":
                content["arrays"]["0"] = Array("float32", (2,), "numpy.ndarray", b"nonsense")
            else:
                content["metrics"]["num-examples"] = -4 if what == "negative" else 2**62
        return reply

    monkeypatch.setattr(grid, "_answer", answer)
    selector = Watching()
    with caplog.at_level("WARNING", "flwr"):
        weights = run(Selecting(FedAvg(fraction_evaluate=0), selector), grid, 1)
    np.testing.assert_allclose(weights, [1.0, 1.0])  # the mean of clients 0, 1 and 2
    assert [client for client, _, _ in selector.seen] == [0, 1, 2]
    assert caplog.messages[1:] == [f"Round 1: client 3 is left out: {problem}."]  # the first is FedAvg's own


def test_who_was_chosen_and_why_is_told_in_one_line_a_round(caplog: pytest.LogCaptureFixture) -> None:
    strategy = FedDiverse(FedAvg(fraction_train=0.25, fraction_evaluate=0), num_classes=2)
    with caplog.at_level("INFO", "flwr"):
        run(strategy, FakeGrid(make_app(), 12), 2)
    assert logging.getLogger("flwr").level <= logging.INFO, "shown unless one asks for silence"
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Round ")]
    named = ", ".join(
        f"{k} ({', '.join(f'{number:.2f}' for number in strategy.triplets[k])})" for k in strategy.chosen[2]
    )
    assert told == [
        "Round 1: all 12 clients train, before the first choice.",
        f"Round 2: FedDiverse chose 3 of 12 clients (CI, AI, SC): {named}.",
    ]
    caplog.clear()
    with caplog.at_level("INFO", "flwr"):
        run(Selecting(FedAvg(fraction_evaluate=0), "everyone"), FakeGrid(make_app(), 12), 1)
    assert "Round 1: Everyone chose 12 of 12 clients: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more." in caplog.messages


def test_what_the_estimator_warns_of_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    selector = Watching()
    selector.warnings = lambda: ["The triplets are weak."]
    with caplog.at_level("WARNING", "flwr"):
        run(Selecting(FedAvg(fraction_evaluate=0), selector), FakeGrid(make_app(), 3), 2)
    assert [record.getMessage() for record in caplog.records].count("The triplets are weak.") == 1


def test_an_app_that_does_not_answer_is_told_with_the_reason() -> None:
    with pytest.raises(RunError, match=r"does their ClientApp answer our questions.*Node 1000: .*feddiverse_hello"):
        run(Selecting(FedAvg()), FakeGrid(ClientApp(), 3), 1)


def test_what_clients_of_another_app_cannot_answer_is_refused_at_once() -> None:
    with pytest.raises(UserError, match="The selector 'hcsfed' does not work inside your own Flower app"):
        Selecting(FedAvg(), "hcsfed")
    with pytest.raises(UserError, match="The selector 'hcsfed' does not work"):
        Selecting(FedAvg(), HCSFed(seed=0))
    with pytest.raises(UserError, match="The estimator 'oracle' does not work"):
        FedDiverse(FedAvg(), num_classes=2, estimator="oracle")
    with pytest.raises(UserError, match="The estimator 'oracle' does not work"):
        Selecting(FedAvg(), FedDiverseSelector(Oracle(0, 2, 2)))


class ByTemperature(Selector):
    """A selector with a parameter of its own, one with a default, and settings of the run."""

    def __init__(self, seed: int, temperature: float, scale: float = 1.0, lr: float = 0.0) -> None:
        self.parameters = (seed, temperature, scale, lr)

    def choose(self, round, k, clients, ask, rng):
        return rng.choice(sorted(clients), size=k, replace=False)  # NumPy's numbers, as users return them

    def findings(self) -> dict[str, object]:
        return {"temperature": self.parameters[1]}


OWN_FILE = """
from feddiverse import Selector

class Mine(Selector):
    def __init__(self, temperature=1.0):
        self.temperature = temperature

    def choose(self, round, k, clients, ask, rng):
        return sorted(clients)[:k]
"""


def test_a_selector_of_ones_own_is_given_as_an_object_a_class_or_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = FedAvg(fraction_train=0.5, fraction_evaluate=0)
    made = ByTemperature(0, 3.0)
    by_object = Selecting(inner, made)
    assert by_object.selector is made
    by_class = Selecting(inner, ByTemperature, seed=5, temperature=2.0, lr=0.5)
    assert isinstance(by_class.selector, ByTemperature)
    assert by_class.selector.parameters == (5, 2.0, 1.0, 0.5)
    for strategy in (by_object, by_class):
        run(strategy, FakeGrid(make_app(), 4), 1)
        assert len(set(strategy.chosen[1])) == 2
        assert all(type(client) is int for client in strategy.chosen[1])
        assert strategy.findings() == strategy.selector.findings()

    (tmp_path / "my_selectors.py").write_text(OWN_FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    by_name = Selecting(inner, "my_selectors:Mine", temperature=4.0)
    assert by_name.selector.temperature == 4.0
    run(by_name, FakeGrid(make_app(), 4), 1)
    assert by_name.chosen[1] == [0, 1]


def test_an_estimator_is_given_as_an_object_too() -> None:
    estimator = Consensus(seed=0, num_classes=2)
    assert FedDiverse(FedAvg(), num_classes=2, estimator=estimator).selector.estimator is estimator
    by_class = FedDiverse(FedAvg(), num_classes=2, estimator=Consensus, consensus_dimensions=5)
    assert by_class.selector.estimator.dimensions == 5


def test_what_is_no_selector_is_refused() -> None:
    for nonsense in (3, FedAvg, FedAvg()):
        with pytest.raises(UserError, match=r"is no subclass of feddiverse\.Selector"):
            Selecting(FedAvg(), nonsense)
    with pytest.raises(UserError, match="needs the parameter 'temperature'"):
        Selecting(FedAvg(), ByTemperature)
    with pytest.raises(UserError, match="must know how many classes there are: give the strategy num_classes="):
        Selecting(FedAvg(), "fed_cbs")
    with pytest.raises(UserError, match="Config key 'lr' must be above 0"):
        Selecting(FedAvg(), ByTemperature, temperature=1.0, lr=-1.0)


def test_settings_that_cannot_reach_a_selector_are_refused() -> None:
    with pytest.raises(UserError, match=r"The setting 'lr' cannot reach a selector that is made already.*Watching"):
        Selecting(FedAvg(), Watching(), lr=3)


def test_an_app_may_have_queries_of_its_own() -> None:
    app = ClientApp()
    app.query("loss")(lambda message, context: message)
    app.query("hello")(lambda message, context: message)
    answer_questions(app, lambda message, context: data_of(0), num_classes=2)


def train_reply(**metrics: float) -> Message:
    FakeGrid(ClientApp(), 0)  # names this process, without which there is no message
    question = Message(RecordDict(), 1000, "train")
    question.metadata.__dict__["_message_id"] = "question"
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=question)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e300])
def test_a_selector_learns_only_numbers_that_it_can_count_with(number: float) -> None:
    seen = _seen(1, train_reply(**{"num-examples": 7, "loss": number, "steps": 3.0}), None)
    assert seen.num_examples == 7
    assert dict(seen.metrics) == {"num-examples": 7.0, "steps": 3.0}


def test_updates_are_weights_only_whatever_order_they_are_sent_in() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    state = model.state_dict()
    assert _flat(ArrayRecord(state)).size == sum(p.numel() for p in model.parameters())
    model[1](torch.randn(8, 4))  # moves statistics and the counter
    there, back = ArrayRecord(model.state_dict()), ArrayRecord(dict(reversed(model.state_dict().items())))
    assert _flat(there).tobytes() == _flat(back).tobytes() == _flat(ArrayRecord(state)).tobytes()
    assert _flat(ArrayRecord({"counter": Array(np.ones(3, np.int64))})).size == 0


def test_steps_are_numbers_of_samples_unless_every_client_tells_them() -> None:
    told, silent = Reply(0, 30, metrics={"steps": 2.0}), Reply(1, 60)
    assert [reply.metrics["steps"] for reply in _with_steps([told, silent])] == [30.0, 60.0]
    assert _with_steps([told]) == [told]
    liar = Reply(2, 40, metrics={"steps": -3.0})
    assert [reply.metrics["steps"] for reply in _with_steps([told, liar])] == [30.0, 40.0]


def test_unknown_settings_and_selectors_are_told() -> None:
    with pytest.raises(UserError, match=r"The selector 'pow_d' has no parameter 'pow_d_candidate' \(did you mean"):
        Selecting(FedAvg(), "pow_d", pow_d_candidate=3)
    with pytest.raises(UserError, match="There is no selector 'best'"):
        Selecting(FedAvg(), "best")


def test_no_training_this_round_stays_no_training() -> None:
    strategy = Selecting(FedAvg(fraction_train=0))
    grid = FakeGrid(make_app(), 3)
    assert strategy.configure_train(1, START, ConfigRecord(), grid) == []
    assert grid.sent == []


def test_features_of_are_what_the_last_layer_sees() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(5, 2))
    x, y = torch.randn(7, 3), torch.randint(0, 2, (7,))
    batches = [{"left": x[:4], "right": y[:4]}, {"left": x[4:], "right": y[4:]}]
    features, labels, losses = features_of(model, batches, inputs=lambda batch: (batch["left"], batch["right"]))
    np.testing.assert_allclose(features, torch.relu(model[0](x)).detach().numpy(), rtol=1e-6)
    np.testing.assert_array_equal(labels, y)
    expected = torch.nn.functional.cross_entropy(model(x), y, reduction="none").detach().numpy()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "batch",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        lambda x, y: {"img": x, "label": y},
        lambda x, y: {"label": y, "image": x},
        lambda x, y: {"pixel_values": x, "labels": y, "file": ["a"] * len(y)},
        lambda x, y: {"img": x.numpy(), "fine_label": y.tolist(), "coarse_label": y * 0},
    ],
    ids=["pair", "list", "CIFAR-10", "MNIST", "transformers", "CIFAR-100"],
)
def test_batches_of_flower_datasets_are_understood(batch) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])
    features, labels, losses = features_of(model, [batch(x[:4], y[:4]), batch(x[4:], y[4:])])
    np.testing.assert_allclose(features, model[0](x).detach().numpy(), rtol=1e-6)
    assert labels.tolist() == y.tolist()
    assert losses.shape == (6,)


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (
            {"audio": 1, "label": 2},
            r"None of a batch's keys \('audio', 'label'\) is known to hold the samples; say how",
        ),
        (
            {"img": 1, "speaker": 2},
            r"None of a batch's keys \('img', 'speaker'\) is known to hold the labels; .*inputs=",
        ),
        ((1, 2, 3), r"A batch of the loader is a tuple of 3, no pair \(x, y\)"),
        (torch.zeros(2, 3), r"A batch of the loader is a Tensor, no pair"),
        ({"img": [object()], "label": [1]}, r"A batch's samples \(list\) or labels \(list\) are no tensors"),
    ],
)
def test_a_batch_that_is_not_understood_is_told(batch: object, told: str) -> None:
    with pytest.raises(UserError, match=told):
        features_of(torch.nn.Sequential(torch.nn.Linear(3, 2)), [batch])


def test_labels_that_are_no_classes_are_told() -> None:
    app = answer_questions(ClientApp(), lambda message, context: (np.zeros((3, 2)), [0, 1, 2]), num_classes=2)
    with pytest.raises(RunError, match=r"labels must be within 0 … 1, not 0 … 2"):
        run(Selecting(FedAvg()), FakeGrid(app, 2), 1)


def test_a_loader_without_data_is_told() -> None:
    with pytest.raises(UserError, match="The loader gave no batch"):
        features_of(torch.nn.Sequential(torch.nn.Linear(3, 2)), [])


def test_a_head_without_a_body_starts_from_zero_every_time() -> None:
    head = HeadOnly(4, 3)
    head.theta += 1
    head.load(np.empty(0, np.float32))
    assert not head.vector().any()
    assert len(ANSWERED) == 11


def shuffling_app() -> ClientApp:
    """A user's app whose loader gives samples in another order each time; its model sees features as they are."""
    app = ClientApp()
    times = iter(range(10_000))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    def data(message: Message, context: Context) -> tuple[np.ndarray, ...]:
        assert message.content["arrays"]["fc.weight"].numpy().shape == (2, 6)
        x, y = data_of(int(context.node_config["partition-id"]))
        order = np.random.default_rng(next(times)).permutation(len(y))
        return x[order], y[order]

    return answer_questions(app, data, num_classes=2)


def linear_model() -> ArrayRecord:
    parts = {"body.weight": np.eye(6), "fc.weight": np.zeros((2, 6)), "fc.bias": np.ones(2)}
    return ArrayRecord({name: Array(part.astype(np.float32)) for name, part in parts.items()})


@pytest.mark.parametrize("secure", [False, True])
def test_a_users_own_model_gets_the_head_that_scikit_learn_finds_for_equal_hidden_groups(secure: bool) -> None:
    grid = FakeGrid(shuffling_app(), 12)
    strategy = Selecting(FedAvg(fraction_train=0.5, fraction_evaluate=0), secure_sums=secure)
    trained = strategy.start(grid, linear_model(), 1).arrays
    solved = strategy.rebalance(grid, trained)
    assert list(solved) == list(trained)
    assert (solved["body.weight"].numpy() == trained["body.weight"].numpy()).all()
    x, y = (np.concatenate(part) for part in zip(*(data_of(k) for k in range(12)), strict=True))
    a = np.concatenate([np.repeat([0, 1, 0, 1], table.ravel()) for table in TABLES])
    w = 1 / TABLES.sum(axis=0)[y, a]
    w /= w.sum()
    mean, z = w @ x, x - w @ x
    deviation = np.sqrt(w @ z**2)
    weight = solved["fc.weight"].numpy()
    fits = [
        Ridge(alpha=penalty).fit(z / deviation, 2.0 * np.eye(2)[y] - 1, sample_weight=w).coef_ / deviation
        for penalty in PENALTIES
    ]
    assert min(np.abs(weight - fit).max() for fit in fits) < 0.01  # a few samples are not read surely
    np.testing.assert_allclose(weight @ mean + solved["fc.bias"].numpy(), 0, atol=0.02)  # classes weigh alike


def test_a_model_whose_groups_nobody_sees_comes_back_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    grid = FakeGrid(shuffling_app(), 12)
    grid.online = dict(list(grid.online.items())[:2])
    strategy = Selecting(FedAvg(fraction_train=1.0, fraction_evaluate=0))
    arrays = linear_model()
    with caplog.at_level(logging.WARNING):
        assert strategy.rebalance(grid, arrays) is arrays
    assert "the head stay" in caplog.text or "No hidden attribute is seen" in caplog.text


def test_the_last_layer_is_found_or_named() -> None:
    model = linear_model()
    assert find_head(model) == ("fc.weight", "fc.bias")
    assert find_head(ArrayRecord([np.zeros((3, 4)), np.zeros(3), np.zeros((2, 3)), np.zeros(2)])) == ("2", "3")
    assert find_head(model, "fc") == ("fc.weight", "fc.bias")
    with pytest.raises(UserError, match=r"no array 'body.bias'; it has: body.weight, fc.weight, fc.bias"):
        find_head(model, "body")
    with pytest.raises(UserError, match="name it with head="):
        find_head(ArrayRecord([np.zeros((3, 4))]))
