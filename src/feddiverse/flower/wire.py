"""A `Task` and a `Reply` as Flower records, and back: numbers and arrays only, nothing is ever pickled.

A question is two records of its own, its numbers and its arrays, beside those that carry the model. An answer has the
shape that Flower's own strategies expect: one `ArrayRecord`, one `MetricRecord` with `num-examples`.

What comes from clients may be anything. `decode_reply` makes a `Reply` of it or a failure of that client alone; whether
its numbers make sense is for the server's door to say (`server.replies`). What a node says of itself before it is asked
anything is checked here (`read_introduction`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from feddiverse.errors import as_text
from feddiverse.messages import MOST, Reply, Task, Train, Vector
from feddiverse.server.meter import WITHOUT_THETA

MEMORY = "feddiverse.memory"
TASK, TASK_ARRAYS = "feddiverse.task", "feddiverse.arrays"  # names that no other app's records have
ARRAYS, METRICS, TROUBLE = "arrays", "metrics", "trouble"
THETA, VECTOR, PAYLOAD = "theta", "vector", "payload"
LARGEST = 2**63 - 1  # NumPy's integers
NUM_EXAMPLES, SECONDS, PARTITION, PARTITIONS = "num-examples", "seconds", "partition-id", "num-partitions"

OURS = "feddiverse_"  # before the name of each question: an app may have a query "loss" of its own
HELLO_ACTION = f"{OURS}hello"
HELLO = f"query.{HELLO_ACTION}"
"""Who are you? Asked of every node once, because node ids are random in every run and partition ids are not."""


def action(kind: type[Task]) -> str:
    """A question's name on the wire: its class in snake_case, marked as ours."""
    return OURS + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


def message_type(task: Task) -> str:
    """Flower's `train` for local training, `query.feddiverse_<kind>` for every other question."""
    return "train" if type(task) is Train else f"query.{action(type(task))}"


def model_for(task: Task, theta: Vector) -> RecordDict:
    """θ as a record; nothing for questions about the data alone, which travel without it."""
    return RecordDict({} if isinstance(task, WITHOUT_THETA) else {ARRAYS: ArrayRecord({THETA: Array(theta)})})


def theta_in(content: RecordDict) -> Vector:
    """θ out of a message; empty where it did not travel."""
    arrays = content.array_records.get(ARRAYS)
    return np.empty(0, np.float32) if arrays is None else arrays[THETA].numpy()


def encode_task(task: Task, model: RecordDict) -> RecordDict:
    """The question beside the records that carry the model."""
    numbers: dict[str, Any] = {"kind": type(task).__name__}
    arrays = {}
    for field in fields(task):
        value = getattr(task, field.name)
        if isinstance(value, np.ndarray):
            arrays[field.name] = Array(value)
        elif isinstance(value, Mapping):  # the client's memory
            arrays |= {f"{field.name}.{key}": Array(vector) for key, vector in value.items()}
        else:
            numbers[field.name] = value
    return RecordDict({**model, TASK: ConfigRecord(numbers), TASK_ARRAYS: ArrayRecord(arrays)})


def decode_task(content: RecordDict) -> Task:
    """The question in a message."""
    numbers: dict[str, Any] = dict(content.config_records[TASK])
    arrays: dict[str, Any] = {}
    for name, array in content.array_records[TASK_ARRAYS].items():
        field_name, _, key = name.partition(".")
        if key:
            arrays.setdefault(field_name, {})[int(key)] = array.numpy()
        else:
            arrays[name] = array.numpy()
    kinds = {kind.__name__: kind for kind in _kinds(Task)}
    return kinds[str(numbers.pop("kind"))](**numbers, **arrays)


def _kinds(kind: type[Task]) -> Iterator[type[Task]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from _kinds(inner)


def introduction(client: int, num_examples: int, node_config: Mapping[str, Any]) -> RecordDict:
    """The answer to `HELLO`."""
    about: dict[str, Any] = {PARTITION: client, NUM_EXAMPLES: num_examples}
    if PARTITIONS in node_config:
        about[PARTITIONS] = int(node_config[PARTITIONS])
    return RecordDict({METRICS: MetricRecord(about)})


def read_introduction(content: RecordDict, num_clients: int | None = None) -> tuple[int, int, int]:
    """Client, number of samples, and number of partitions (0: not told), or a `ValueError` that says what is wrong.

    `num_clients`: how many clients the federation has; None: not known, any id will do.
    """
    try:
        about: Mapping[str, Any] = content.metric_records[METRICS]
        client = natural(PARTITION, about[PARTITION])
        size = natural(NUM_EXAMPLES, about[NUM_EXAMPLES], MOST)
        num_partitions = natural(PARTITIONS, about.get(PARTITIONS, 0))
    except Exception as error:
        raise ValueError(f"what it says of itself cannot be read ({_described(error)})") from error
    if num_clients is not None and client >= num_clients:
        raise ValueError(
            f"its {PARTITION} is {client}, but the federation has {num_clients} clients, numbered from 0:"
            " correct its node config"
        )
    return client, size, num_partitions


def natural(name: str, value: Any, most: int = LARGEST) -> int:
    """A number that a client sent, if it is one to count with: whole, not negative, at most `most`."""
    if not (0 <= value <= most and value == int(value)):  # NaN is not above 0
        raise ValueError(f"{name} is {value}")
    return int(value)


def _described(error: Exception) -> str:
    return as_text(f"{type(error).__name__}: {error}")


def encode_reply(reply: Reply) -> RecordDict:
    """The answer, or the reason there is none."""
    arrays = {} if reply.vector is None else {VECTOR: Array(reply.vector)}
    if reply.payload:
        arrays[PAYLOAD] = Array(np.frombuffer(reply.payload, np.uint8))
    metrics: dict[str, Any] = {**reply.metrics, NUM_EXAMPLES: reply.num_examples, SECONDS: reply.seconds}
    content = RecordDict({ARRAYS: ArrayRecord(arrays), METRICS: MetricRecord(metrics)})
    if reply.failure is not None:
        content[TROUBLE] = ConfigRecord({"failure": reply.failure})
    return content


def decode_reply(client: int, content: RecordDict) -> Reply:
    """What a client sent, which may be anything: what is no answer to us becomes a failure of that client alone."""
    try:
        metrics: dict[str, Any] = dict(content.metric_records[METRICS])
        num_examples, seconds = metrics.pop(NUM_EXAMPLES), metrics.pop(SECONDS)
        arrays = content.array_records[ARRAYS]
        vector = _vector(arrays[VECTOR]) if VECTOR in arrays else None
        trouble = content.config_records.get(TROUBLE)
        return Reply(
            client,
            num_examples=num_examples,
            vector=vector,
            seconds=seconds,
            metrics=metrics,
            failure=None if trouble is None else as_text(trouble["failure"]),
            payload=_payload(arrays[PAYLOAD]) if PAYLOAD in arrays else b"",
        )
    except Exception as error:
        return Reply(client, failure=f"its reply cannot be read ({_described(error)})")


def _vector(array: Array) -> Vector:
    try:
        vector = array.numpy()
    except Exception:  # what it says would advise to unpickle
        raise ValueError("its vector is no array") from None
    return vector


def _payload(array: Array) -> bytes:
    try:
        values = array.numpy()
    except Exception:
        raise ValueError("its payload is no array") from None
    if values.dtype != np.uint8 or values.ndim != 1:
        raise ValueError(f"a payload of type {values.dtype} and shape {values.shape}")
    return values.tobytes()


def read_memory(state: RecordDict) -> dict[str, Any]:
    """What this node remembers between questions (`Samples.memory`): Flower keeps it where the node is."""
    arrays = state.array_records.get(MEMORY)
    return {} if arrays is None else {name: array.numpy() for name, array in arrays.items()}


def write_memory(state: RecordDict, memory: Mapping[str, Any]) -> None:
    """Keep it for the next question, and nothing that was forgotten."""
    if memory or MEMORY in state:
        state[MEMORY] = ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in memory.items()})
