"""Secure sums over both engines: the same bits, also where nodes go away."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from feddiverse.data import open_federation
from feddiverse.engine.local import LocalEngine
from feddiverse.experiment.config import Config
from feddiverse.flower import FedDiverse, answer_questions, wire
from feddiverse.flower.apps import build_client_app
from feddiverse.flower.engine import FlowerEngine, Timeouts
from feddiverse.flower.partition_file import write_partition
from feddiverse.messages import TOTAL, Engine, FeatureMoments, LabelCounts, Loss, Reply, Summed
from feddiverse.models import ModelSpec, initial_theta
from feddiverse.server.meter import Meter
from feddiverse.server.privacy import Privacy
from feddiverse.server.secagg import SecureSums

CONFIG = Config(federation="digits-gsc", seed=3)
FEDERATION = open_federation(CONFIG.federation, CONFIG.seed)
SPEC = ModelSpec("cnn", 2, FEDERATION.source.shape, FEDERATION.source.mean, FEDERATION.source.std)
THETA = initial_theta(SPEC, 3)
TASK = FeatureMoments(3, 1, 8)
CLIENTS = [0, 1, 2, 3, 4]


@pytest.fixture
def local() -> Iterator[LocalEngine]:
    with LocalEngine(FEDERATION, SPEC, workers=2, device="cpu") as engine:
        yield engine


def total(engine: Engine, clients: list[int]) -> Reply:
    *_, last = Meter(engine, Privacy(sums=SecureSums())).with_theta(THETA)(TASK, clients)
    return last


def test_both_engines_give_the_same_total(local: LocalEngine) -> None:
    """Secrets are drawn anew each time; the bits of the total do not depend on them."""
    grid = FakeGrid(build_client_app(CONFIG), len(CLIENTS))
    flower = FlowerEngine(grid)
    assert sorted(flower.clients) == CLIENTS
    found = [total(local, CLIENTS), total(flower, CLIENTS), total(local, CLIENTS[::-1])]
    plain = [reply.vector for reply in local.ask(TASK, THETA, CLIENTS)]
    for reply in found:
        assert reply.client == TOTAL
        assert reply.vector is not None
        assert reply.vector.tobytes() == found[0].vector.tobytes()
        assert np.allclose(reply.vector, np.sum(plain, axis=0, dtype=np.float64), rtol=1e-6, atol=5 * 2.0**-33)
    assert not any(dict(state.array_records.get(wire.MEMORY, {})) for state in grid.states.values()), "all forgotten"


def test_a_node_that_goes_away_in_the_middle_costs_its_part_only(local: LocalEngine) -> None:
    class Leaving(FakeGrid):
        def push_messages(self, messages: Any) -> list[str]:
            queue = list(messages)
            if queue and queue[0].metadata.message_type == wire.message_type(TASK):
                self.silent = {1002}  # it has shared its keys, and is not heard of again
            return super().push_messages(queue)

    grid = Leaving(build_client_app(CONFIG), len(CLIENTS))
    engine = FlowerEngine(grid, timeouts=Timeouts(query=0.5, hello=5))
    assert len(engine.clients) == len(CLIENTS)
    left = total(engine, CLIENTS)
    stayed = total(local, [0, 1, 3, 4])
    assert set(left.members) == {0, 1, 3, 4}
    assert left.vector is not None
    assert stayed.vector is not None
    assert left.vector.tobytes() == stayed.vector.tobytes()


def test_the_drop_in_strategy_has_secure_sums_too() -> None:
    """Triplets as without, and every answer that is summed leaves its client masked."""

    def data(message: Message, context: Context) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(int(context.node_config["partition-id"]))
        y, a = rng.integers(0, 2, 60), rng.random(60) < 0.1 + 0.8 * (int(context.node_config["partition-id"]) % 2)
        return rng.normal(size=(60, 4)) + np.outer(y, [2, 0, 0, 0]) + np.outer(a, [0, 6, 0, 0]), y

    found = {}
    for secure in (False, True):
        grid = FakeGrid(answer_questions(ClientApp(), data, num_classes=2), 8)
        strategy = FedDiverse(FedAvg(fraction_train=0.5), num_classes=2, pretraining_rounds=0, secure_sums=secure)
        engine = strategy._connect(grid)
        strategy._choose(1, 3, engine.clients, engine, wire.RecordDict())
        asked = [m for m in grid.sent if m.metadata.message_type == wire.message_type(TASK)]
        questions = [wire.decode_task(m.content) for m in asked]
        assert len(questions) == 8
        assert all(isinstance(task, Summed) and bool(task.bits) is secure for task in questions)
        found[secure] = strategy.findings()["triplets"]
    assert found[True].keys() == found[False].keys()
    for client, triplet in found[True].items():
        assert triplet == pytest.approx(found[False][client], abs=1e-6)


@pytest.mark.parametrize("kind", ["file", "own app"])
def test_a_node_can_insist_on_masks_and_noise(kind: str, tmp_path: Path) -> None:
    """Whatever the server asks: else a server that asks plainly would get plain answers."""
    config: dict[str, Any] = {"secure-sums": True, "privacy-epsilon": 0.2}
    if kind == "file":
        write_partition(tmp_path / "data", FEDERATION, 0)
        app, config = build_client_app(CONFIG, "cpu"), {**config, "partition-file": str(tmp_path / "data")}
        exact = FEDERATION.counts[0].sum(axis=1).tolist()
    else:
        y = np.repeat([0, 1], [700, 300])
        app = answer_questions(ClientApp(), lambda m, c: (np.zeros((1000, 2)), y, np.ones(1000)), num_classes=2)
        exact = [700, 300]

    class Strict(FakeGrid):
        def _answer(self, message: Message, node: int) -> Message:
            about = {"partition-id": 0, "num-partitions": 1, **config}
            return self.app(message, Context(1, node, about, wire.RecordDict(), {}))

    engine = FlowerEngine(Strict(app, 1))
    assert list(engine.clients) == [0]
    (refused,) = engine.ask(TASK, THETA, [0])
    assert "only as part of a secure sum" in (refused.failure or "")
    (refused,) = engine.ask(Loss(3, 1), THETA, [0])
    assert "insists on noise" in (refused.failure or "")
    for epsilon in (0.0, -1e9, 1e9, math.nan):  # a server that asks for no noise, in any way
        asked = LabelCounts(3, 1, epsilon=epsilon)
        told = [next(iter(engine.ask(asked, THETA, [0]))).vector for _ in range(8)]
        assert all(counts is not None and counts.sum() == sum(exact) for counts in told)
        assert len({tuple(counts.tolist()) for counts in told if counts is not None}) > 1, "secret noise, each time"
