"""Hostile replies to every question: each is left out with its reason, or holds nothing that could do harm."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddiverse.client.tasks import ANSWERS, answer
from feddiverse.data.federation import Samples
from feddiverse.messages import (
    EVALUATION_ONLY,
    MOST,
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
    Reply,
    ShareKeys,
    Sketch,
    Task,
    Train,
    TrueMatrix,
    Unmask,
    Vector,
)
from feddiverse.server.meter import Meter
from feddiverse.server.replies import Door, checked

N, SIZE = 100, 6  # samples of the client, weights of the model


def floats(*numbers: float) -> Vector:
    return np.array(numbers, np.float32)


AXES: dict[str, Any] = {"directions": np.zeros((3, 1), np.float32), "origin": floats(0)}
GROUPS = np.ones((2, 2), np.float32)
NOBODY = np.zeros(0, np.int64)
TRIPLET = {"ci": 0.5, "ai": 0.0, "sc": 1.0}
HONEST: dict[type[Task], tuple[Task, Reply]] = {
    Train: (Train(3, 1), Reply(7, N, floats(*range(SIZE)), {"loss": 0.7, "steps": 4.0})),
    Sketch: (Sketch(3, 1, rate=0.5), Reply(7, N, floats(-1, 0, 2))),
    Loss: (Loss(3, 1), Reply(7, N, metrics={"loss": 0.7, "loss_rms": 0.9})),
    Evaluate: (Evaluate(3, 1, 2), Reply(7, N, floats(20, 20, 20, 0, 30, 30, 30, 10))),
    LabelCounts: (LabelCounts(3, 1), Reply(7, N, floats(60, 40))),
    TrueMatrix: (TrueMatrix(3, 1, 2), Reply(7, N, floats(30, 30, 30, 10))),
    PaperTriplet: (PaperTriplet(3, 1), Reply(7, N, metrics=TRIPLET)),
    FeatureMoments: (FeatureMoments(3, 1, 3), Reply(7, N, floats(*range(22)))),
    FeatureHistogram: (FeatureHistogram(3, 1, 3, **AXES, bins=4), Reply(7, N, floats(1, 2, 3, 4, 40, 30, 10, 10))),
    AttributeTriplet: (
        AttributeTriplet(3, 1, 3, **AXES, centres=np.zeros((2, 2, 1), np.float32), shares=GROUPS, matrix=True),
        Reply(7, N, floats(30, 30, 30, 10), {**TRIPLET, f"{EVALUATION_ONLY}0.1": 20.0}),
    ),
    GroupSums: (GroupSums(3, 1, 3, weights=GROUPS), Reply(7, N, floats(*range(14)))),
    HeadErrors: (
        HeadErrors(3, 1, 3, heads=np.zeros((2, 2, 4), np.float32), weights=GROUPS),
        Reply(7, N, floats(*[1] * 8, 30, 30, 30, 10)),
    ),
    ReadHeldOut: (
        ReadHeldOut(3, 1, 3, **AXES, centres=np.zeros((2, 2, 1), np.float32), shares=GROUPS), Reply(7, N)
    ),
    EvaluateHeldOut: (EvaluateHeldOut(3, 1), Reply(7, N, floats(20, 100, 30, 200))),
    AdvertiseKeys: (AdvertiseKeys(3, 1, 5), Reply(7, N, payload=b"keys")),
    ShareKeys: (
        ShareKeys(3, 1, 5, members=NOBODY, keys=np.zeros((0, 96), np.uint8), neighbours=2, threshold=0.7),
        Reply(7, N, payload=b"letters"),
    ),
    Unmask: (Unmask(3, 1, 5, survivors=NOBODY), Reply(7, N, payload=b"shares")),
}  # fmt: skip


def through(task: Task, reply: Any, size: int = N) -> Reply:
    (out,) = checked(task, [reply], [7], SIZE, {7: size})
    return out


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_honest_answer_comes_through_as_it_is(kind: type[Task]) -> None:
    task, honest = HONEST[kind]
    out = through(task, honest)
    assert out.failure is None
    assert out.vector is honest.vector
    assert vars(out) == vars(honest)


numbers = st.sampled_from(
    [math.nan, math.inf, -math.inf, 1.7e308, 3e38, -1.0, -3, 0, 1e30, 2**62, 10**400, np.float16(2), True, None, "12",
     [1.0], 1j]
) | st.floats() | st.integers()  # fmt: skip
names = st.sampled_from(
    ["loss", "loss_rms", "steps", "ci", "ai", "sc", f"{EVALUATION_ONLY}a.b", f"{EVALUATION_ONLY}1000000.0",
     f"{EVALUATION_ONLY}0.0", f"{EVALUATION_ONLY}-1.0", f"{EVALUATION_ONLY}٣.0", "\x1b[31m", 3, None]
)  # fmt: skip
entries = st.sampled_from([math.nan, math.inf, -math.inf, 3e38, -3e38, 1e30, -1.0, -1e-3, 0.0, 0.5, 1e6, 101.0])


@st.composite
def hostile(draw: st.DrawFn, honest: Reply) -> Any:
    """The honest reply with some of it changed, or something else altogether."""
    changes: dict[str, Any] = {}
    if draw(st.booleans()):
        changes["metrics"] = {**honest.metrics, **draw(st.dictionaries(names, numbers, max_size=3))}
        for name in draw(st.lists(names, max_size=2)):
            changes["metrics"].pop(name, None)
    vector = honest.vector
    if vector is not None and draw(st.booleans()):
        changed = vector.copy()
        changed[draw(st.integers(0, vector.size - 1))] = draw(entries)
        others: list[Any] = [
            changed, changed[:-1], np.append(changed, changed), changed.astype(np.float64), changed[None], None,
            changed.tolist(), np.zeros(0, np.float32), np.zeros((), np.float32), changed.astype(object),
        ]  # fmt: skip
        changes["vector"] = draw(st.sampled_from(others))
    elif vector is None and draw(st.booleans()):
        changes["vector"] = draw(st.sampled_from([floats(1), np.zeros(0, np.float32), "vector", [[1], [1, 2]]]))
    for name in ("num_examples", "seconds"):
        if draw(st.integers(0, 3)) == 0:
            changes[name] = draw(numbers)
    if draw(st.integers(0, 9)) == 0:
        changes["client"] = draw(st.sampled_from([8, -1, "7", None, np.array([7, 7])]))
    if draw(st.integers(0, 9)) == 0:
        changes["payload"] = draw(st.sampled_from([b"", b"bytes", "text", None]))
    if draw(st.integers(0, 9)) == 0:
        changes["failure"] = draw(st.text(max_size=400))
    return draw(st.sampled_from([replace(honest, **changes)] * 9 + [None, "reply", {}]))


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_whatever_comes_is_an_answer_to_its_question_or_a_failure(kind: type[Task], data: st.DataObject) -> None:
    task, honest = HONEST[kind]
    out = through(task, data.draw(hostile(honest)))
    assert out.client == 7
    if out.failure is not None:
        assert out.failure.isprintable()
        assert len(out.failure) <= 300
        assert out == Reply(7, failure=out.failure)
        return
    assert type(out.num_examples) is int
    assert 0 <= out.num_examples <= N
    assert type(out.seconds) is float
    assert 0 <= out.seconds <= MOST
    assert {*honest.metrics} - {f"{EVALUATION_ONLY}0.1"} <= {*out.metrics}
    assert all(type(name) is str and type(n) is float and math.isfinite(n) for name, n in out.metrics.items())
    assert {name for name in out.metrics if name.startswith(EVALUATION_ONLY)} <= {
        f"{EVALUATION_ONLY}0.0", f"{EVALUATION_ONLY}0.1"
    }  # fmt: skip
    assert all(-1e-6 <= out.metrics[name] <= 1 + 1e-6 for name in {"ci", "ai", "sc"} & {*honest.metrics})
    assert 0 <= out.metrics.get("steps", 0) <= N or "steps" not in honest.metrics
    assert bool(out.payload) == bool(honest.payload)
    assert type(out.payload) is bytes
    if honest.vector is None:
        assert out.vector is None
        return
    assert out.vector is not None
    assert out.vector.dtype == np.float32
    assert out.vector.ndim == 1
    assert (np.abs(out.vector) <= 1.001e15).all()
    if kind in (Train, Sketch, AttributeTriplet, HeadErrors):
        assert out.vector.size == honest.vector.size
    if kind in (LabelCounts, TrueMatrix, AttributeTriplet):
        assert out.vector.min(initial=0) >= 0
        assert out.vector.sum() <= out.num_examples * (1 + 1e-5)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [(Train, {"seconds": math.nan}, "its seconds is nan"),
     (Train, {"seconds": math.inf}, "its seconds is inf"),
     (Train, {"num_examples": -4}, "its num_examples is -4"),
     (Train, {"num_examples": 2**62}, "its num_examples is 4611686018427387904"),
     (Train, {"num_examples": N + 1}, "it trained on 101 samples where it said that it has 100"),
     (Train, {"num_examples": 2.5}, "its num_examples is no whole number"),
     (Train, {"metrics": {"loss": 1.0, "steps": math.nan}}, "its steps is nan"),
     (Train, {"metrics": {"loss": 1.0, "steps": -3.0}}, "its steps is -3"),
     (Train, {"metrics": {"loss": 1.0}}, "its answer lacks steps"),
     (Train, {"metrics": {"loss": 1.7e308, "steps": 1.0}}, "its loss is 1.7e+308"),
     (Loss, {"metrics": {"loss": 1.7e308, "loss_rms": 1.0}}, "its loss is 1.7e+308"),
     (FeatureMoments, {"vector": np.full(22, 3e38, np.float32)}, "one of its numbers is 3e+38"),
     (LabelCounts, {"vector": floats(1e30, 1)}, "one of its numbers is 1e+30, not within [0, 100]"),
     (LabelCounts, {"vector": floats(0, 0)}, "its counts add up to 0, not within [1, 100]"),
     (LabelCounts, {"vector": floats(60, 60)}, "its counts add up to 120, not within [1, 100]"),
     (PaperTriplet, {"metrics": {**TRIPLET, "sc": 3.0}}, "its sc is 3, not within [0, 1]"),
     (PaperTriplet, {"client": 8}, "another client's answer came in its place"),
     (PaperTriplet, {"client": np.array([7, 7])}, "its answer cannot be read (ValueError)"),
     (PaperTriplet, {"vector": [[1], [1, 2]]}, "its answer cannot be read (ValueError)"),
     (Train, {"failure": "gone\x1b[2J."}, "gone [2J")],
    ids=str,
)  # fmt: skip
def test_the_reason_is_told(kind: type[Task], changes: dict[str, Any], reason: str) -> None:
    task, honest = HONEST[kind]
    assert str(through(task, replace(honest, **changes)).failure).startswith(reason)


def test_a_number_too_long_to_be_written_is_refused() -> None:
    task, honest = HONEST[Loss]
    long = 10**5000  # Python itself writes 4,300 digits at most
    assert (through(task, replace(honest, num_examples=long)).failure or "").startswith("its num_examples is a very")
    metrics = {"loss": -long, "loss_rms": 1.0}
    assert (through(task, replace(honest, metrics=metrics)).failure or "").startswith("its loss is a very long int")


@pytest.mark.parametrize("kind", [LabelCounts, TrueMatrix])
def test_noise_is_no_excuse_for_counts_beyond_ones_samples(kind: type[Task]) -> None:
    """Clients send the nearest table that so many samples can have: 1e14 is a lie with noise as without."""
    task, honest = HONEST[kind]
    noisy = replace(task, epsilon=0.1)
    samples = Samples(np.zeros((N, 1)), np.arange(N) % 2, np.arange(N) % 4 // 2)
    model = SimpleNamespace(spec=SimpleNamespace(num_classes=2))
    for round in range(20):
        told = answer(replace(noisy, round=round), floats(0), 7, samples, model)
        assert through(noisy, told).failure is None
    assert honest.vector is not None
    assert "not within [0, 100]" in (through(noisy, replace(honest, vector=honest.vector * 1e12)).failure or "")


@dataclass
class Short:
    """An engine that loses the last answer altogether."""

    clients = {1: N, 2: N}  # noqa: RUF012

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        return (Reply(k, N, metrics={"loss": 1.0, "loss_rms": 1.0}) for k in clients[:-1])

    def close(self) -> None: ...


def test_every_client_that_is_asked_has_a_reply() -> None:
    replies = list(Meter(Short()).ask(Loss(3, 1), floats(0), [1, 2]))
    assert [(reply.client, reply.failure) for reply in replies] == [(1, None), (2, "it gave no answer")]


def test_an_engine_is_put_behind_the_door_once() -> None:
    door = Door(Short())
    assert Meter(door)._engine is door
