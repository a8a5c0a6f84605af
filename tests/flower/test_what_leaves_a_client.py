"""Every key that a client sends, question by question: what is not in these tables does not leave it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from test_flower_engine import READING

from feddiverse.client.tasks import ANSWERS
from feddiverse.data import open_federation
from feddiverse.experiment.config import Config
from feddiverse.flower import answer_questions, wire
from feddiverse.flower.answers import ANSWERED
from feddiverse.flower.apps import build_client_app
from feddiverse.flower.engine import FlowerEngine
from feddiverse.flower.partition_file import write_partition
from feddiverse.messages import (
    EVALUATION_ONLY,
    AdvertiseKeys,
    AttributeTriplet,
    Evaluate,
    EvaluateHeldOut,
    FeatureHistogram,
    FeatureMoments,
    GroupSums,
    HeadErrors,
    LabelCounts,
    Loss,
    PaperTriplet,
    ReadHeldOut,
    ShareKeys,
    Sketch,
    Task,
    Train,
    TrueMatrix,
    Unmask,
)
from feddiverse.models import ModelSpec, initial_theta

ALWAYS = {"metrics.num-examples", "metrics.seconds"}
TRIPLET = {"metrics.ci", "metrics.ai", "metrics.sc"}
VECTOR = {"arrays.vector"}
PAYLOAD = {"arrays.payload"}
REFUSED = {"trouble.failure"}
HELLO = {"metrics.partition-id", "metrics.num-partitions", "metrics.num-examples"}
SENT: dict[type[Task], set[str]] = {
    Train: VECTOR | {"metrics.loss", "metrics.steps"},
    Sketch: VECTOR,
    Loss: {"metrics.loss", "metrics.loss_rms"},
    Evaluate: VECTOR,
    LabelCounts: VECTOR,
    TrueMatrix: REFUSED,
    PaperTriplet: TRIPLET,
    FeatureMoments: VECTOR,
    FeatureHistogram: VECTOR,
    GroupSums: VECTOR,
    HeadErrors: VECTOR,
    AdvertiseKeys: PAYLOAD,
    ShareKeys: REFUSED,  # nobody but itself would be in the sum
    Unmask: REFUSED,
    AttributeTriplet: TRIPLET,
    ReadHeldOut: set(),
    EvaluateHeldOut: VECTOR,
}
NOBODY = np.zeros(0, np.int64)
AXES = {name: READING[name] for name in ("directions", "origin")}
QUESTIONS: dict[type[Task], Task] = {
    Train: Train(3, 1, lr=0.02),
    Sketch: Sketch(3, 1, rate=1e-4),
    Loss: Loss(3, 1),
    Evaluate: Evaluate(3, 1, 2),
    LabelCounts: LabelCounts(3, 1),
    TrueMatrix: TrueMatrix(3, 1, 2),
    PaperTriplet: PaperTriplet(3, 1, bias_steps=2, attribute_steps=2),
    FeatureMoments: FeatureMoments(3, 1, 4),
    FeatureHistogram: FeatureHistogram(3, 1, 4, **AXES, bins=8),
    GroupSums: GroupSums(3, 1, 4, weights=np.ones((2, 2), np.float32)),
    HeadErrors: HeadErrors(3, 1, 4, heads=np.ones((1, 2, 5), np.float32), weights=np.ones((2, 2), np.float32)),
    AttributeTriplet: AttributeTriplet(3, 1, 4, remember=True, **READING),
    ReadHeldOut: ReadHeldOut(3, 1, 4, **READING),
    EvaluateHeldOut: EvaluateHeldOut(3, 1),
    AdvertiseKeys: AdvertiseKeys(3, 1, 7),
    ShareKeys: ShareKeys(3, 1, 7, members=NOBODY, keys=np.zeros((0, 96), np.uint8), neighbours=2, threshold=0.7),
    Unmask: Unmask(3, 1, 7, survivors=NOBODY),
}

FEDERATION = open_federation("digits-gsc", 3)
SPEC = ModelSpec("cnn", 2, FEDERATION.source.shape, FEDERATION.source.mean, FEDERATION.source.std)
CONFIG = Config(federation="digits-gsc", seed=3)


class Spy(FakeGrid):
    """Writes down what nodes send: message type → `record.key`."""

    def __init__(self, app: ClientApp, node_config: dict[str, Any] | None = None) -> None:
        super().__init__(app, 1)
        self.node_config = node_config or {}
        self.keys: dict[str, set[str]] = {}
        self.memory = RecordDict()  # of the one node

    def _answer(self, message: Message, node: int) -> Message:
        config = {"partition-id": 0, "num-partitions": 1, **self.node_config}
        reply = self.app(message, Context(1, node, config, self.memory, {}))
        sent = {f"{record}.{key}" for record, keys in reply.content.items() for key in keys}
        self.keys.setdefault(message.metadata.message_type, set()).update(sent)
        return reply


def listed(grid: Spy, kinds: list[type[Task]]) -> dict[str, set[str]]:
    """All that a client sends when it is asked everything."""
    engine = FlowerEngine(grid)
    theta = initial_theta(SPEC, 3)
    clients = list(engine.clients)
    for kind in kinds:
        list(engine.ask(QUESTIONS[kind], theta, clients))
    return grid.keys


def expected(kinds: list[type[Task]]) -> dict[str, set[str]]:
    answers = {wire.message_type(QUESTIONS[kind]): SENT[kind] | ALWAYS for kind in kinds}
    return {wire.HELLO: HELLO} | answers


def test_a_deployed_client_sends_these_keys_and_no_others(tmp_path: Path) -> None:
    write_partition(tmp_path / "data", FEDERATION, 0)
    grid = Spy(build_client_app(CONFIG, "cpu"), {"partition-file": str(tmp_path / "data")})
    assert set(QUESTIONS) == set(ANSWERS), "every question"
    assert listed(grid, list(ANSWERS)) == expected(list(ANSWERS))


def test_a_client_of_another_app_sends_these_keys_and_no_others() -> None:
    def data(message: Message, context: Context) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        return rng.normal(size=(20, 4)), np.arange(20) % 2, np.ones(20)

    grid = Spy(answer_questions(ClientApp(), data, num_classes=2))
    assert listed(grid, list(ANSWERED)) == expected(list(ANSWERED))


@pytest.mark.parametrize("kind", [PaperTriplet, AttributeTriplet])
def test_only_a_simulation_compares_with_the_truth(kind: type[Task]) -> None:
    sent = listed(Spy(build_client_app(CONFIG, "cpu")), [kind])[wire.message_type(QUESTIONS[kind])]
    truth = {key for key in sent if key.startswith(f"metrics.{EVALUATION_ONLY}")}
    assert truth
    assert sent - truth == SENT[kind] | ALWAYS


def test_what_is_counted_per_group_by_a_deployed_client_has_one_attribute(tmp_path: Path) -> None:
    """The answer to Evaluate has room for attributes: a deployed client puts all samples under the first."""
    write_partition(tmp_path / "data", FEDERATION, 0)
    engine: FlowerEngine = FlowerEngine(
        Spy(build_client_app(CONFIG, "cpu"), {"partition-file": str(tmp_path / "data")})
    )
    assert engine.clients
    ask: Callable[..., Any] = engine.ask
    (reply,) = ask(QUESTIONS[Evaluate], initial_theta(SPEC, 3), [0])
    totals = reply.vector.reshape(2, 2, 2)[1]
    assert totals[:, 0].tolist() == FEDERATION.counts[0].sum(axis=1).tolist()
    assert not totals[:, 1].any()
