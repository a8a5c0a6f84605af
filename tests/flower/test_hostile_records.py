"""Records that no client of ours would send: each is a failure of its sender, and never of the run."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from feddiverse.experiment.config import Config
from feddiverse.experiment.opening import open_run
from feddiverse.experiment.train import carry_out
from feddiverse.flower import wire
from feddiverse.flower.apps import ServerEngine, build_client_app
from feddiverse.flower.engine import FlowerEngine, Timeouts
from feddiverse.messages import EVALUATION_ONLY, MOST, Reply, Task
from feddiverse.server.replies import checked

QUICK = Timeouts(train=5.0, query=5.0, hello=5.0)
NUM_CLIENTS = 8

floats = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1.7e308, 5e-324, 3e38])
integers = st.integers() | st.sampled_from([-1, 0, 23, 24, 2**40, 2**40 + 1, 2**62, 2**63, 10**400])
values = floats | integers | st.lists(floats, max_size=3) | st.lists(integers, max_size=3)
names = st.sampled_from(
    [wire.PARTITION, wire.PARTITIONS, wire.NUM_EXAMPLES, wire.SECONDS, "loss", "steps", "ci", "a\x1b[31mb",
     f"{EVALUATION_ONLY}0.1", f"{EVALUATION_ONLY}a.b", f"{EVALUATION_ONLY}1000000.0", f"{EVALUATION_ONLY}-1.0"]
) | st.text(max_size=5)  # fmt: skip
metrics = st.dictionaries(names, values, max_size=6)
vectors = st.sampled_from(
    [np.ones(3, np.float32), np.full(2, np.nan, np.float32), np.ones(3), np.ones((1, 2), np.float32), np.array(1.0),
     np.zeros(0, np.float32), np.array(["a"]), np.ones(2, np.complex64)]
).map(Array) | st.builds(
    Array, dtype=st.text(max_size=3), shape=st.just((10**12,)), stype=st.sampled_from(["numpy.ndarray", "pickle"]),
    data=st.binary(max_size=40),
)  # fmt: skip
arrays = st.dictionaries(st.sampled_from([wire.VECTOR, "θ", ""]), vectors, max_size=2)
texts = st.dictionaries(st.sampled_from(["failure", "other"]), st.text() | st.integers(-5, 5), max_size=2)


def behind_the_door(content: RecordDict) -> Reply:
    (reply,) = checked(Task(3, 1), [wire.decode_reply(7, content)], [7])
    return reply


def records(
    numbers: dict[str, Any], arrays: dict[str, Array], texts: dict[str, Any] | None, *left_out: str
) -> RecordDict:
    content = RecordDict({wire.METRICS: MetricRecord(numbers), wire.ARRAYS: ArrayRecord(arrays)})
    if texts is not None:
        content[wire.TROUBLE] = ConfigRecord(texts)
    for name in left_out:
        del content[name]
    return content


@settings(derandomize=True, max_examples=200)
@given(
    metrics, arrays, st.none() | texts, st.sampled_from([(), (), (), (wire.METRICS,), (wire.ARRAYS,)]), st.booleans()
)
def test_whatever_a_reply_holds_it_is_an_answer_or_a_failure(
    numbers: dict[str, Any], vectors: dict[str, Array], texts: dict[str, Any] | None, left_out: tuple[str, ...],
    is_complete: bool,
) -> None:  # fmt: skip
    if is_complete:  # nearly right, so that the rest is looked at
        numbers = {wire.NUM_EXAMPLES: 3, wire.SECONDS: 0.5, **numbers}
    reply = behind_the_door(records(numbers, vectors, texts, *left_out))
    assert reply.client == 7
    assert 0 <= reply.num_examples <= MOST
    assert 0 <= reply.seconds <= MOST
    assert all(type(value) is float and math.isfinite(value) for value in reply.metrics.values())
    assert not any(name.startswith(EVALUATION_ONLY) and name[-3:] != "0.1" for name in reply.metrics)
    assert reply.vector is None or (reply.vector.dtype == np.float32 and reply.vector.ndim == 1)
    assert reply.failure is None or (reply.failure.isprintable() and len(reply.failure) < 400)
    if not {wire.NUM_EXAMPLES, wire.SECONDS} <= numbers.keys() or left_out or texts is not None:
        assert reply.failure is not None


@settings(derandomize=True, max_examples=200)
@given(metrics, st.booleans(), st.none() | st.integers(1, 30))
def test_whatever_a_node_says_of_itself_it_is_a_client_or_refused(
    numbers: dict[str, Any], is_complete: bool, num_clients: int | None
) -> None:
    if is_complete:
        numbers = {wire.PARTITION: 3, wire.NUM_EXAMPLES: 10, **numbers}
    content = records(numbers, {}, None)
    try:
        client, size, num_partitions = wire.read_introduction(content, num_clients)
    except ValueError as error:
        told = str(error)
    else:
        told = ""
    if told:
        assert told.isprintable()
        return
    assert client == numbers[wire.PARTITION]
    assert size == numbers[wire.NUM_EXAMPLES]
    assert 0 <= client < (num_clients or 2**63)
    assert 0 <= size <= MOST
    assert 0 <= num_partitions < 2**63


@pytest.mark.parametrize(
    ("name", "value"),
    [(wire.SECONDS, math.nan), (wire.SECONDS, math.inf), (wire.SECONDS, -1.0), (wire.SECONDS, 1e300),
     (wire.NUM_EXAMPLES, -1), (wire.NUM_EXAMPLES, 2**62), (wire.NUM_EXAMPLES, 2.5), ("loss", math.nan)],
    ids=str,
)  # fmt: skip
def test_the_number_that_is_wrong_is_named(name: str, value: float) -> None:
    content = wire.encode_reply(Reply(7, 3, np.ones(2, np.float32), {"loss": 1.0}, 0.5))
    assert behind_the_door(content).failure is None
    content[wire.METRICS][name] = value
    assert str(behind_the_door(content).failure).startswith(f"its {name.replace('-', '_')} is ")


class LyingGrid(FakeGrid):
    """Node 1002 answers, and `lie` then changes what it sent."""

    lie: Callable[[RecordDict], None]
    about = ""

    def _answer(self, message: Message, node: int) -> Message:
        reply = super()._answer(message, node)
        if node == 1002 and message.metadata.message_type.startswith(self.about) and reply.has_content():
            self.lie(reply.content)
        return reply


def lying(about: str, name: str, value: Any) -> LyingGrid:
    grid = LyingGrid(build_client_app(CONFIG, "cpu"), NUM_CLIENTS)
    grid.about = about
    grid.lie = lambda content: content[wire.METRICS].update({name: value})
    return grid


CONFIG = Config(
    federation="dirichlet(alpha=0.3,clients=8,samples=400):digits", seed=3, selector="feddiverse", rounds=2,
    num_selected=3, evaluate_every=2, consensus_dimensions=16,
)  # fmt: skip
LIES = [
    (wire.HELLO, wire.PARTITION, 99),
    (wire.HELLO, wire.NUM_EXAMPLES, 2**62),
    ("query.feddiverse_attribute", wire.SECONDS, math.nan),
    ("query.feddiverse_attribute", f"{EVALUATION_ONLY}1000000.0", 1.0),
    ("query.feddiverse_attribute", f"{EVALUATION_ONLY}a.b", 1.0),
    ("query.feddiverse_feature", wire.NUM_EXAMPLES, -3),
    ("train", wire.SECONDS, math.inf),
    ("train", "steps", math.nan),
    ("train", wire.NUM_EXAMPLES, 2**62),
]


@pytest.mark.parametrize(("about", "name", "value"), LIES, ids=lambda part: str(part).rpartition(".")[2])
def test_one_bad_number_does_not_end_a_run(
    about: str, name: str, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    grid = lying(about, name, value)
    with caplog.at_level("WARNING", "flwr"):
        result = carry_out(
            CONFIG,
            engine=lambda run, workers, device: ServerEngine(grid, run.federation, run.spec, NUM_CLIENTS, QUICK, "cpu"),
        )
    assert result.summary["rounds"] == 2
    assert result.worst_group_accuracy is not None
    told = [record.getMessage() for record in caplog.records] + [
        warning for record in result.history for warning in record["warnings"]
    ]
    if EVALUATION_ONLY in name:
        assert not told, "it decides nothing, and is not even counted"
        assert result.triplets["evaluation_only"]["attribute_accuracy"] > 0.5
    elif about == wire.HELLO:
        assert any("node 1002: left out until the next round" in line for line in told)
        assert all(2 not in record["selected"] for record in result.history)
    else:
        assert any("client 2" in line and f"{name.replace('-', '_')} is" in line for line in told)
        assert (2 in result.history[0]["failed"]) is (about == "train")


def test_a_liar_that_comes_back_honest_is_taken_back() -> None:
    grid = lying(wire.HELLO, wire.PARTITION, 99)
    engine = FlowerEngine(grid, NUM_CLIENTS, QUICK, NUM_CLIENTS)
    assert 2 not in engine.clients
    grid.about = "nothing"
    assert 2 in engine.clients
    assert len(open_run(CONFIG).federation.sizes) == NUM_CLIENTS
