"""Counts what a run costs, by kind of question: messages, bytes each way, seconds on clients (paper, Table II)."""

import re
import time
from collections.abc import Iterator, Sequence

from feddiverse.messages import Ask, Engine, LabelCounts, Reply, Task, TrueMatrix, Vector

Traffic = dict[str, dict[str, float]]

WITHOUT_THETA = (LabelCounts, TrueMatrix)
"""Questions about the data alone: a client answers them without having been sent the model."""


def kind(task: Task) -> str:
    """The name under which a question is counted: its class in snake_case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(task).__name__).lower()


class Meter:
    """Stands between the loop and the engine and counts; `take` gives the counts since it was last called."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._traffic: Traffic = {}
        self.waited = 0.0  # wall-clock seconds spent waiting for replies since the last `take`

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        """The engine's `ask`, counted."""
        row = self._traffic.setdefault(
            kind(task), {"messages": 0, "bytes_down": 0, "bytes_up": 0, "client_seconds": 0.0}
        )
        down = task.num_bytes + (0 if isinstance(task, WITHOUT_THETA) else theta.nbytes)
        row["messages"] += len(clients)
        row["bytes_down"] += down * len(clients)
        replies = iter(self._engine.ask(task, theta, clients))
        while True:
            start = time.perf_counter()
            reply = next(replies, None)
            self.waited += time.perf_counter() - start
            if reply is None:
                return
            row["bytes_up"] += reply.num_bytes
            row["client_seconds"] += reply.seconds
            yield reply

    def with_theta(self, theta: Vector) -> Ask:
        """`ask` as selectors and estimators know it: about the current θ."""
        return lambda task, clients: self.ask(task, theta, clients)

    def take(self) -> Traffic:
        """What was counted since the last call."""
        traffic, self._traffic, self.waited = self._traffic, {}, 0.0
        return traffic
