"""A `Task` and a `Reply` as Flower records, and back: numbers and arrays only, nothing is ever pickled.

A question is a `ConfigRecord` of its numbers and an `ArrayRecord` of θ and its arrays. An answer has the shape that
Flower's own strategies expect: one `ArrayRecord`, one `MetricRecord` with `num-examples`.
"""

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from feddiverse.messages import Reply, Task, Train, Vector
from feddiverse.server.meter import WITHOUT_THETA

ARRAYS, TASK, METRICS, TROUBLE = "arrays", "task", "metrics", "trouble"
THETA, VECTOR = "theta", "vector"
NUM_EXAMPLES, SECONDS, PARTITION, PARTITIONS = "num-examples", "seconds", "partition-id", "num-partitions"

HELLO = "query.hello"
"""Who are you? Asked of every node once, because node ids are random in every run and partition ids are not."""


def action(kind: type[Task]) -> str:
    """A question's name on the wire: its class in snake_case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


def message_type(task: Task) -> str:
    """Flower's `train` for local training, `query.<kind>` for every other question."""
    return "train" if type(task) is Train else f"query.{action(type(task))}"


def encode_task(task: Task, theta: Vector) -> RecordDict:
    """The question with θ, which questions about the data alone travel without."""
    arrays = {} if isinstance(task, WITHOUT_THETA) else {THETA: Array(theta)}
    numbers: dict[str, Any] = {"kind": type(task).__name__}
    for field in fields(task):
        value = getattr(task, field.name)
        if isinstance(value, np.ndarray):
            arrays[field.name] = Array(value)
        else:
            numbers[field.name] = value
    return RecordDict({TASK: ConfigRecord(numbers), ARRAYS: ArrayRecord(arrays)})


def decode_task(content: RecordDict) -> tuple[Task, Vector]:
    """The question and θ; θ is empty where it did not travel."""
    numbers: dict[str, Any] = dict(content.config_records[TASK])
    arrays: dict[str, Any] = {name: array.numpy() for name, array in content.array_records[ARRAYS].items()}
    kinds = {kind.__name__: kind for kind in _kinds(Task)}
    task = kinds[str(numbers.pop("kind"))]
    theta = arrays.pop(THETA, np.empty(0, np.float32))
    return task(**numbers, **arrays), theta


def _kinds(kind: type[Task]) -> Iterator[type[Task]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from _kinds(inner)


def encode_reply(reply: Reply) -> RecordDict:
    """The answer, or the reason there is none."""
    arrays = {} if reply.vector is None else {VECTOR: Array(reply.vector)}
    metrics: dict[str, Any] = {**reply.metrics, NUM_EXAMPLES: reply.num_examples, SECONDS: reply.seconds}
    content = RecordDict({ARRAYS: ArrayRecord(arrays), METRICS: MetricRecord(metrics)})
    if reply.failure is not None:
        content[TROUBLE] = ConfigRecord({"failure": reply.failure})
    return content


def decode_reply(client: int, content: RecordDict) -> Reply:
    """What a client sent, which may be anything: what is no answer to us becomes a failure of that client alone."""
    try:
        metrics = {name: float(value) for name, value in content.metric_records[METRICS].items()}  # type: ignore[arg-type]
        arrays = content.array_records[ARRAYS]
        vector = arrays[VECTOR].numpy() if VECTOR in arrays else None
        if vector is not None and (vector.dtype != np.float32 or vector.ndim != 1):
            raise ValueError(f"a vector of type {vector.dtype} and shape {vector.shape}")
        trouble = content.config_records.get(TROUBLE)
        return Reply(
            client,
            num_examples=int(metrics.pop(NUM_EXAMPLES)),
            vector=vector,
            seconds=metrics.pop(SECONDS),
            metrics=metrics,
            failure=None if trouble is None else str(trouble["failure"]),
        )
    except Exception as error:
        return Reply(client, failure=f"its reply cannot be read ({type(error).__name__}: {error})")
