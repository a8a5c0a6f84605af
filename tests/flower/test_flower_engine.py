import math

import numpy as np
import pytest
from fake_grid import FakeGrid
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from feddiverse.client.tasks import ANSWERS
from feddiverse.data import open_federation
from feddiverse.engine.local import LocalEngine
from feddiverse.errors import RunError
from feddiverse.experiment.config import Config
from feddiverse.flower import wire
from feddiverse.flower.apps import build_client_app
from feddiverse.flower.engine import FlowerEngine, Timeouts
from feddiverse.messages import (
    AttributeTriplet,
    FeatureHistogram,
    FeatureMoments,
    GroupSums,
    HeadErrors,
    LabelCounts,
    Loss,
    Reply,
    Sketch,
    Task,
    Train,
    TrueMatrix,
)
from feddiverse.models import ModelSpec, initial_theta
from feddiverse.server import meter

CONFIG = Config(federation="digits-gsc", seed=3)
FEDERATION = open_federation(CONFIG.federation, CONFIG.seed)
SPEC = ModelSpec("cnn", 2, FEDERATION.source.shape, FEDERATION.source.mean, FEDERATION.source.std)
THETA = initial_theta(SPEC, 3)
QUICK = Timeouts(train=0.05, query=0.05, hello=0.2)

DIRECTIONS = {"directions": np.eye(4, 1, dtype=np.float32), "origin": np.zeros(1, np.float32)}
READING = DIRECTIONS | {
    "centres": np.array([[[-1.0], [1.0]]] * 2, np.float32),
    "shares": np.full((2, 2), 0.5, np.float32),
}
TASKS: list[Task] = [
    Train(3, 1, lr=0.02),
    Train(3, 1, lr=0.02, flip=True, crop_padding=2, padding="edge", prox_mu=0.1, memories={0: THETA / 9, 4: THETA}),
    Train(3, 1, lr=0.02, moon_mu=1.0, memories={2: THETA / 9}),
    Loss(3, 1),
    Sketch(3, 1, rate=1e-4, lr=0.02),
    LabelCounts(3, 1),
    TrueMatrix(3, 1, 2),
    FeatureMoments(3, 1, 4),
    FeatureHistogram(3, 1, 4, **DIRECTIONS, bins=8),
    AttributeTriplet(3, 1, 4, **READING),
    GroupSums(3, 1, 4, weights=np.ones((2, 2), np.float32), reading_dimensions=4, **READING),
    HeadErrors(3, 1, 4, heads=np.ones((1, 2, 5), np.float32), weights=np.ones((2, 1), np.float32)),
]


@pytest.fixture
def grid() -> FakeGrid:
    return FakeGrid(build_client_app(CONFIG), 5)


@pytest.fixture(scope="module")
def local() -> LocalEngine:
    return LocalEngine(FEDERATION, SPEC, device="cpu", in_process=True)


def without_seconds(reply: Reply) -> tuple[object, ...]:
    vector = None if reply.vector is None else reply.vector.tobytes()
    return reply.client, reply.num_examples, vector, dict(reply.metrics), reply.failure


@pytest.mark.parametrize("task", TASKS, ids=wire.message_type)
def test_the_same_replies_as_the_local_engine_to_the_bit_in_the_order_asked(
    task: Task, grid: FakeGrid, local: LocalEngine
) -> None:
    engine = FlowerEngine(grid, 5)
    assert engine.clients == {k: FEDERATION.sizes[k] for k in range(5)}
    order = [4, 0, 2]
    ours, theirs = list(engine.ask(task, THETA, order)), list(local.ask(task, THETA, order))
    assert [reply.client for reply in ours] == order
    assert [*map(without_seconds, ours)] == [*map(without_seconds, theirs)]
    assert all(reply.failure is None and reply.seconds > 0 for reply in ours)
    assert grid.asked(wire.message_type(task)) == [1004, 1000, 1002]


def test_every_question_has_a_name_on_the_wire_that_the_meter_counts_it_under() -> None:
    assert [wire.action(type(task)) for task in TASKS] == [f"feddiverse_{meter.kind(task)}" for task in TASKS]
    assert len({wire.action(kind) for kind in ANSWERS}) == len(ANSWERS)
    assert wire.message_type(TASKS[0]) == "train"
    assert wire.message_type(TASKS[7]) == "query.feddiverse_feature_moments"


def test_questions_about_data_alone_travel_without_the_model(grid: FakeGrid) -> None:
    engine = FlowerEngine(grid, 5)
    assert engine.clients
    list(engine.ask(LabelCounts(3, 1), THETA, [0]))
    assert wire.ARRAYS not in grid.sent[-1].content
    list(engine.ask(Loss(3, 1), THETA, [0]))
    assert grid.sent[-1].content[wire.ARRAYS].count_bytes() >= THETA.nbytes


def test_a_lost_client_fails_alone_and_is_taken_back_when_it_says_who_it_is(grid: FakeGrid) -> None:
    engine = FlowerEngine(grid, 5, QUICK)
    assert len(engine.clients) == 5
    grid.silent = {1001}
    replies = list(engine.ask(LabelCounts(3, 1), THETA, [0, 1, 2]))
    assert [reply.failure for reply in replies] == [None, "it did not answer within 0 s", None]
    assert sorted(engine.clients) == [0, 2, 3, 4], "left out until it answers"
    assert [r.failure for r in engine.ask(LabelCounts(3, 1), THETA, [1])] == ["it is not connected"]

    del grid.online[1001]
    assert sorted(engine.clients) == [0, 2, 3, 4]
    grid.online[2001] = 1  # the same partition under a new node id
    assert sorted(engine.clients) == [0, 1, 2, 3, 4]
    assert [reply.failure for reply in engine.ask(LabelCounts(3, 1), THETA, [1])] == [None]
    assert grid.asked("query.feddiverse_label_counts")[-1] == 2001


def test_the_same_node_restarted_is_taken_back(grid: FakeGrid) -> None:
    engine = FlowerEngine(grid, 5, QUICK)
    assert len(engine.clients) == 5
    grid.silent = {1003}
    assert next(engine.ask(LabelCounts(3, 1), THETA, [3])).failure
    assert 3 not in engine.clients  # greeted, but nobody is there to answer
    grid.online.pop(1003)
    assert 3 not in engine.clients
    grid.silent, grid.online[1003] = set(), 3
    assert 3 in engine.clients


@pytest.mark.parametrize(("code", "stays"), [(5, False), (2, True)], ids=["node unavailable", "app failed"])
def test_an_error_of_one_client_is_its_own(grid: FakeGrid, code: int, stays: bool) -> None:
    engine = FlowerEngine(grid, 5, QUICK)
    assert len(engine.clients) == 5
    grid.broken = {1002: code}
    replies = list(engine.ask(LabelCounts(3, 1), THETA, [2, 3]))
    assert replies[0].failure == "its node failed (as the test asked)"
    assert replies[1].failure is None
    grid.broken = {1002: 2}
    assert (2 in engine.clients) is stays


def test_nonsense_from_a_client_is_a_failure_of_that_client() -> None:
    good = wire.encode_reply(Reply(7, 3, np.ones(2, np.float32), {"loss": 1.0}, 0.5))
    assert wire.decode_reply(7, good).failure is None
    del good[wire.METRICS]
    assert "cannot be read" in str(wire.decode_reply(7, good).failure)
    told = wire.encode_reply(Reply(7, failure="no data"))
    assert wire.decode_reply(7, told).failure == "no data"


def test_nobody_there_is_told_and_those_who_are_not_ours_are_not_waited_for(grid: FakeGrid) -> None:
    grid.online = {}
    with pytest.raises(RunError, match="No client said who it is within 0 s: are SuperNodes connected"):
        _ = FlowerEngine(grid, 5, QUICK).clients
    grid.online = {1: 0, 2: 99}  # there is no client 99 in the federation
    assert list(FlowerEngine(grid, 2, Timeouts()).clients) == [0]


def test_a_partition_that_the_federation_does_not_have_is_refused_with_the_reason() -> None:
    """Clients that take any number, as those with a partition file do."""
    app = ClientApp()

    @app.query(wire.HELLO_ACTION)
    def hello(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        return Message(wire.introduction(client, 10, {}), reply_to=message)

    grid = FakeGrid(app, 2)
    grid.online |= {1005: 5, 1099: 99}
    engine = FlowerEngine(grid, 4, QUICK, num_clients=5)
    for _ in range(2):
        assert list(engine.clients) == [0, 1]
        assert engine._refused == {
            node: f"its partition-id is {client}, but the federation has 5 clients, numbered from 0: correct its node"
            " config"
            for node, client in ((1005, 5), (1099, 99))
        }
    grid.online[1005] = 4  # started again, with the right number
    assert list(engine.clients) == [0, 1, 4]


def test_of_two_nodes_with_one_partition_the_newer_is_asked(grid: FakeGrid) -> None:
    engine = FlowerEngine(grid, 5, QUICK)
    assert len(engine.clients) == 5
    grid.online[2003] = 3
    for _ in range(3):
        assert len(engine.clients) == 5
        assert next(engine.ask(LabelCounts(3, 1), THETA, [3])).failure is None
    assert grid.asked("query.feddiverse_label_counts") == [2003] * 3
    assert grid.asked(wire.HELLO).count(1003) == 1, "the older one is not greeted again and again"


def test_a_node_that_talks_nonsense_is_no_client() -> None:
    app = ClientApp()
    app.query(wire.HELLO_ACTION)(lambda message, context: Message(RecordDict(), reply_to=message))
    with pytest.raises(
        RunError, match=r"2 nodes failed to.* Node 1000: what it says of itself cannot be read \(KeyError"
    ):
        _ = FlowerEngine(FakeGrid(app, 2), 2, QUICK).clients


@pytest.mark.parametrize("name", ["partition-id", "num-examples", "num-partitions"])
@pytest.mark.parametrize("value", [math.inf, math.nan, -5, 2**63], ids=str)
def test_a_node_whose_numbers_are_none_to_count_with_is_refused_alone(
    grid: FakeGrid, name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_answer = grid._answer

    def answer(message: Message, node: int) -> Message:
        reply = true_answer(message, node)
        if node == 1002:
            reply.content.metric_records["metrics"][name] = value
        return reply

    monkeypatch.setattr(grid, "_answer", answer)
    engine = FlowerEngine(grid, 5, QUICK)
    assert sorted(engine.clients) == [0, 1, 3, 4]
    assert f"{name} is {value}" in engine._refused[1002]


def test_a_refused_node_is_told_once_and_greeted_again(grid: FakeGrid, caplog: pytest.LogCaptureFixture) -> None:
    grid.broken = {1002: 2, 1003: 2}
    engine = FlowerEngine(grid, 5, QUICK)
    with caplog.at_level("WARNING", "flwr"):
        assert sorted(engine.clients) == [0, 1, 4]
        assert sorted(engine.clients) == [0, 1, 4]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert told[0].startswith("node 1002, 1003: left out")
    assert told[0].endswith("it failed to say who it is (as the test asked)")
    grid.broken = {}
    assert sorted(engine.clients) == [0, 1, 2, 3, 4], "a failure that is over excludes nobody"


def test_waiting_ends_when_it_is_known_to_be_in_vain(grid: FakeGrid) -> None:
    class Doomed(FlowerEngine):
        doomed = False

        def check(self) -> None:
            if self.doomed:
                raise RunError("the grid is dead")

    engine = Doomed(grid, 5)
    assert engine.clients
    engine.doomed = True
    grid.silent = {1000}
    with pytest.raises(RunError, match="the grid is dead"):
        next(engine.ask(LabelCounts(3, 1), THETA, [0]))
    with pytest.raises(RunError, match="the grid is dead"):
        _ = engine.clients


def test_replies_wait_at_the_superlink_until_nearly_their_turn(grid: FakeGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddiverse.flower.engine.PULLED_AHEAD", 2)
    monkeypatch.setattr("feddiverse.flower.engine.PUSHED_AT_ONCE", 2)
    engine = FlowerEngine(grid, 5)
    assert len(engine.clients) == 5
    replies = engine.ask(LabelCounts(3, 1), THETA, [0, 1, 2, 3, 4])
    next(replies)
    assert len(grid._replies) == 3
    assert [reply.client for reply in replies] == [1, 2, 3, 4]
