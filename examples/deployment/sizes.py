"""What travels, in bytes, by kind of message, as Flower serialises it; and the server's memory while it averages.

python examples/deployment/sizes.py      (the tables of docs/deployment.md)
"""

import resource
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from feddiverse.flower import wire
from feddiverse.flower.engine import FlowerEngine
from feddiverse.messages import (
    AttributeTriplet,
    FeatureHistogram,
    FeatureMoments,
    Loss,
    PaperTriplet,
    Reply,
    Task,
    Train,
)
from feddiverse.models import ModelSpec, build
from feddiverse.server.aggregation import Aggregator

CLASSES, ATTRIBUTES, DIMENSIONS, BINS = 2, 2, 256, 128
NUM_WEIGHTS = {
    name: build(ModelSpec(name, CLASSES, (3, 28, 28), (0.5,) * 3, (0.5,) * 3)).theta.numel()
    for name in ("cnn", "mobilenet")
}


def num_bytes(content: RecordDict) -> int:
    """All objects that Flower makes of a content, of which it sends each once."""
    return sum(len(item.deflate()) for item in get_all_nested_objects(content).values())


def exchanges(model: str) -> dict[str, tuple[Task, Reply]]:
    """Every question of a FedDiverse run with an answer of the size it has."""
    d = DIMENSIONS  # both models have more features than that
    moments = 2 + CLASSES + CLASSES * d + d * (d + 1)
    axes: dict[str, Any] = {"directions": np.zeros((d, 1), np.float32), "origin": np.zeros(1, np.float32)}
    reading = {"centres": np.zeros((CLASSES, ATTRIBUTES, 1), np.float32), "shares": np.zeros((2, 2), np.float32)}
    three = {"ci": 0.5, "ai": 0.5, "sc": 0.5}
    return {
        "train": (Train(0, 1), Reply(0, 200, np.zeros(NUM_WEIGHTS[model], np.float32), {"loss": 1.0, "steps": 8.0})),
        "loss (pow_d)": (Loss(0, 1), Reply(0, 200, metrics={"loss": 1.0, "loss_rms": 1.0})),
        "feature moments": (FeatureMoments(0, 1), Reply(0, 200, np.zeros(moments, np.float32))),
        "feature histogram": (FeatureHistogram(0, 1, **axes), Reply(0, 200, np.zeros(CLASSES * BINS, np.float32))),
        "attribute triplet": (AttributeTriplet(0, 1, **axes, **reading), Reply(0, 200, metrics=three)),
        "paper's triplet": (PaperTriplet(0, 1), Reply(0, 200, metrics=three)),
    }


class Answering:
    """A grid whose nodes answer at once, each reply made when it is fetched, as a SuperLink would hand it over."""

    def __init__(self, size: int) -> None:
        self._size, self._sent = size, dict[str, Message]()

    def get_node_ids(self) -> list[int]:
        return list(range(1000))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(len(self._sent))
            ids.append(message.metadata.message_id)
            self._sent[ids[-1]] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._answer(self._sent[i]) for i in message_ids]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if message.metadata.message_type == wire.HELLO:
            content = wire.introduction(node, 200, {})
        else:
            content = wire.encode_reply(Reply(node, 200, np.zeros(self._size, np.float32), {"loss": 1.0}))
        reply = Message(content, reply_to=message)
        reply.metadata.__dict__["_message_id"] = f"re-{message.metadata.message_id}"
        return reply


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    print(f"{'bytes':20}" + "".join(f"{model:>14} to{model:>11} back" for model in NUM_WEIGHTS))
    table = {model: exchanges(model) for model in NUM_WEIGHTS}
    for kind in table["cnn"]:
        row = f"{kind:20}"
        for model, rows in table.items():
            task, reply = rows[kind]
            question = wire.encode_task(task, wire.model_for(task, np.zeros(NUM_WEIGHTS[model], np.float32)))
            row += f"{num_bytes(question):>17,}{num_bytes(wire.encode_reply(reply)):>16,}"
        print(row)

    size = NUM_WEIGHTS["mobilenet"]
    engine, theta = FlowerEngine(Answering(size), 1000), np.zeros(size, np.float32)
    clients = list(engine.clients)
    for number in (16, 64, 256):
        before = peak_megabytes()
        Aggregator().step(theta, engine.ask(Train(0, 1), theta, clients[:number]))
        print(f"averaging {number:4} replies of {theta.nbytes / 1e6:.1f} MB: peak {peak_megabytes():.0f} MB "
              f"(before: {before:.0f} MB)")  # fmt: skip


if __name__ == "__main__":
    main()
