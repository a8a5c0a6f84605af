"""Vectors beside a simulation's messages: the same replies to the bit, in messages that carry none."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_grid import FakeGrid

from feddiverse.data import open_federation
from feddiverse.engine import shared
from feddiverse.engine.local import LocalEngine
from feddiverse.experiment.config import Config
from feddiverse.flower.apps import build_client_app
from feddiverse.flower.beside import BESIDE, Beside, BesideEngine, Place, _opened
from feddiverse.flower.engine import FlowerEngine
from feddiverse.messages import FeatureMoments, LabelCounts, Loss, Reply, Task, Train
from feddiverse.models import ModelSpec, initial_theta

CONFIG = Config(federation="digits-gsc", seed=3)
FEDERATION = open_federation(CONFIG.federation, CONFIG.seed)
SPEC = ModelSpec("cnn", 2, FEDERATION.source.shape, FEDERATION.source.mean, FEDERATION.source.std)
THETA = initial_theta(SPEC, 3)
ORDER = [4, 0, 2]

pytestmark = pytest.mark.skipif(not Beside.is_possible(), reason="files without a name are Linux's")


@pytest.fixture
def beside() -> Iterator[Beside]:
    made = Beside(2)
    yield made
    made.close()
    _opened.cache_clear()


@pytest.fixture
def grid(beside: Beside) -> FakeGrid:
    return FakeGrid(build_client_app(CONFIG, "cpu", place=beside.place), 5)


def engine_on(grid: FakeGrid, beside: Beside | None) -> FlowerEngine:
    engine = BesideEngine(grid, 5)
    engine.beside = beside
    assert len(engine.clients) == 5
    return engine


def told(reply: Reply) -> tuple[object, ...]:
    vector = None if reply.vector is None else reply.vector.tobytes()
    return reply.client, reply.num_examples, vector, dict(reply.metrics), reply.failure


@pytest.fixture(scope="module")
def local() -> LocalEngine:
    return LocalEngine(FEDERATION, SPEC, device="cpu", in_process=True)


def num_bytes(grid: FakeGrid) -> list[int]:
    return [sum(r.count_bytes() for r in m.content.array_records.values()) for m in grid.sent if m.has_content()]


@pytest.mark.parametrize("task", [Train(3, 1, lr=0.02), Loss(3, 1), FeatureMoments(3, 1, 4), LabelCounts(3, 1)])
def test_the_same_replies_to_the_bit_though_no_message_carries_the_model(
    task: Task, grid: FakeGrid, beside: Beside, local: LocalEngine
) -> None:
    engine = engine_on(grid, beside)
    for theta in (THETA, THETA / 2):  # one after the other, in the same memory
        ours, theirs = list(engine.ask(task, theta, ORDER)), list(local.ask(task, theta, ORDER))
        assert [*map(told, ours)] == [*map(told, theirs)]
    assert max(num_bytes(grid)) < THETA.nbytes / 10


def test_an_update_stays_what_it_was_when_the_next_one_is_made(grid: FakeGrid, beside: Beside) -> None:
    engine = engine_on(grid, beside)
    first = list(engine.ask(Train(3, 1, lr=0.02), THETA, ORDER))
    kept = [reply.vector.copy() for reply in first if reply.vector is not None]
    list(engine.ask(Train(3, 2, lr=0.02), THETA / 2, ORDER))
    assert len(kept) == 3
    assert all(np.array_equal(reply.vector, vector) for reply, vector in zip(first, kept, strict=True))


def test_more_clients_than_slots(grid: FakeGrid, local: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those without a slot send their vectors as always."""
    monkeypatch.setattr(shared, "MAX_SLOTS", 1)
    small, order = Beside(1), [4, 0, 2, 1, 3]  # with one worker there are three slots
    grid.app = build_client_app(CONFIG, "cpu", place=small.place)
    task = Train(3, 1, lr=0.02)
    ours = list(engine_on(grid, small).ask(task, THETA, order))
    assert [*map(told, ours)] == [*map(told, local.ask(task, THETA, order))]
    assert grid.sent[-1].content.config_records[BESIDE]["clients"] == order[:3]
    small.close()


def test_a_question_while_another_is_unanswered_has_a_model_of_its_own(
    grid: FakeGrid, beside: Beside, local: LocalEngine
) -> None:
    engine, task = engine_on(grid, beside), Loss(3, 1)
    one, other = engine.ask(task, THETA, ORDER), engine.ask(task, THETA / 2, ORDER)
    assert BESIDE not in grid.sent[-1].content
    assert [*map(told, other)] == [*map(told, local.ask(task, THETA / 2, ORDER))]
    assert [*map(told, one)] == [*map(told, local.ask(task, THETA, ORDER))]
    for _ in range(2):
        replies = engine.ask(task, THETA, ORDER)
        assert BESIDE in grid.sent[-1].content, "as soon as all have answered"
        assert [next(replies).client for _ in ORDER] == ORDER, "though nobody asks whether there are more"


def test_a_client_that_was_given_no_place_opens_none(grid: FakeGrid, beside: Beside) -> None:
    """A deployed client: whatever a server says lies anywhere, it looks nowhere, and fails alone."""
    grid.app = build_client_app(CONFIG, "cpu")
    (reply,) = engine_on(grid, beside).ask(Loss(3, 1), THETA, [2])
    assert reply.failure is not None
    assert _opened.cache_info().currsize == 0


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    named, descriptors = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    beside = Beside(2)
    beside.put(Loss(3, 1), THETA, ORDER)
    vectors = _opened(Place(*beside.place), THETA.size)
    assert np.array_equal(vectors.theta, THETA)
    assert set(os.listdir("/dev/shm")) == named
    beside.close()
    _opened.cache_clear()
    del vectors, beside
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == descriptors
