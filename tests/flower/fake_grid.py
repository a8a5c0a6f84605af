"""Flower's grid without Flower's processes: a ClientApp called directly, nodes that vanish, come back, or fail."""

import random
from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class FakeGrid(Grid):
    """Nodes `1000 + partition` run `app`. Replies come in another order than asked.

    `silent`: nodes that never reply. `broken`: nodes whose message fails with this error code.
    """

    def __init__(self, app: ClientApp, num_nodes: int, *, partitions: bool = True) -> None:
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # set by Flower when it starts an app
        self.app = app
        self.partitions = partitions
        self.online = {1000 + k: k for k in range(num_nodes)}  # node → partition
        self.run_config: dict[str, Any] = {}
        self.silent: set[int] = set()
        self.broken: dict[int, int] = {}
        self.sent: list[Message] = []
        self.states: dict[int, RecordDict] = {}  # what each node remembers
        self._replies: dict[str, Message] = {}
        self._shuffle = random.Random(0)

    def get_node_ids(self) -> list[int]:
        return list(self.online)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{len(self.sent)}"
            self.sent.append(message)
            ids.append(message.metadata.message_id)
            node = message.metadata.dst_node_id
            if node not in self.online or node in self.silent:
                continue
            self._replies[ids[-1]] = self._answer(message, node)
        return ids

    def _answer(self, message: Message, node: int) -> Message:
        if code := self.broken.get(node):
            return Message(Error(code, "as the test asked"), reply_to=message)
        config: dict[str, Any] = {"num-partitions": len(self.online)}
        if self.partitions:
            config["partition-id"] = self.online[node]
        try:
            state = self.states.setdefault(node, RecordDict())
            return self.app(message, Context(1, node, config, state, self.run_config))
        except Exception as error:
            return Message(Error(2, str(error)), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        there = [self._replies.pop(i) for i in message_ids if i in self._replies]
        self._shuffle.shuffle(there)
        return there

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(list(messages)))

    def asked(self, message_type: str) -> list[int]:
        """The nodes that were sent this type of message."""
        return [m.metadata.dst_node_id for m in self.sent if m.metadata.message_type == message_type]

    # What the base class asks for and nobody here uses.
    def set_run(self, run: Any) -> None: ...
    def get_nodes(self) -> list[Any]:
        return []

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError
