"""Counts what a run costs, by kind of question: messages, bytes each way, seconds on clients (paper, Table II).

It also remembers whose answers to a selector's questions were of no use, so that a run can say so.
"""

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from feddiverse.messages import (
    AdvertiseKeys,
    Counted,
    Engine,
    LabelCounts,
    Reply,
    Summed,
    Task,
    Train,
    TrueMatrix,
    Vector,
)
from feddiverse.server.privacy import Privacy
from feddiverse.server.replies import CheckedAsk, Door

Traffic = dict[str, dict[str, float]]

WITHOUT_THETA = (LabelCounts, TrueMatrix, AdvertiseKeys)
"""Questions about the data alone, or the keys of a secure sum: a client need not be sent the model to answer them."""
MEMORY = "memory"
"""Counted apart, on messages counted already: what is sent because clients here remember nothing."""
EVALUATION = "evaluation"
"""All that is asked to know how good θ is: no part of what a method costs."""
MAX_NAMED = 10  # clients named in one warning


def kind(task: Task) -> str:
    """The name under which a question is counted: its class in snake_case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(task).__name__).lower()


class Meter:
    """Stands between the loop and the engine and counts; `take` gives the counts since it was last called.

    An engine that is not behind the door yet is put there: every reply is checked before it is counted.
    """

    def __init__(self, engine: Engine, privacy: Privacy | None = None):
        self._engine = engine if isinstance(engine, Door) else Door(engine)
        self.privacy = privacy or Privacy()
        self.tables: Counter[int] = Counter()  # client → tables of counts that left it with noise
        self.updates: Counter[int] = Counter()  # client → updates that left it with noise, whole or compressed
        self._traffic: Traffic = {}
        self._useless: dict[str, dict[int, str]] = {}  # kind of question → client → why its answer is none
        self.lost: set[int] = set()  # clients that were asked something and whose answer was lost on its way
        self.waited = 0.0  # wall-clock seconds spent waiting for replies since the last `take`

    @property
    def clients(self) -> Mapping[int, int]:
        """The engine's."""
        return self._engine.clients

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        """The engine's `ask`, counted; with the privacy that was agreed upon."""
        task = self.privacy.applied(task)
        if isinstance(task, Counted) and task.epsilon:
            self.tables.update(clients)
        if isinstance(task, Train) and task.noise:
            self.updates.update(clients)
        row = self._row(kind(task))
        down = task.num_bytes + (0 if isinstance(task, WITHOUT_THETA) else theta.nbytes)
        row["messages"] += len(clients)
        row["bytes_down"] += down * len(clients)
        if own := [task.own[client].nbytes for client in clients if client in task.own]:
            if isinstance(task, Train):
                memory = self._row(MEMORY)
                memory["messages"] += len(own)
                memory["bytes_down"] += sum(own)
            else:
                row["bytes_down"] += sum(own)
        replies = iter(self._engine.ask(task, theta, clients))
        while True:
            start = time.perf_counter()
            reply = next(replies, None)
            self.waited += time.perf_counter() - start
            if reply is None:
                return
            row["bytes_up"] += reply.num_bytes
            row["client_seconds"] += reply.seconds
            if reply.lost:
                self.lost.add(reply.client)
            yield reply

    def _row(self, name: str) -> dict[str, float]:
        return self._traffic.setdefault(name, {"messages": 0, "bytes_down": 0, "bytes_up": 0, "client_seconds": 0.0})

    def with_theta(self, theta: Vector) -> "Asking":
        """`ask` as selectors and estimators know it: about the current θ."""
        return Asking(self, theta)

    def leave_out(self, task: Task, client: int, why: str) -> None:
        """Remember that a client gave no answer that can be used."""
        self._useless.setdefault(kind(task), {})[client] = why

    def warnings(self) -> list[str]:
        """One sentence for each kind of question that some clients left without a usable answer."""
        sentences = []
        for name, reasons in self._useless.items():
            clients = sorted(reasons)
            named = ", ".join(map(str, clients[:MAX_NAMED])) + (", …" if len(clients) > MAX_NAMED else "")
            # A secure sum may have failed before the question itself was asked.
            asked = int(self._traffic[name]["messages"]) if name in self._traffic else len(clients)
            sentences.append(
                f"{len(clients)} of {asked} clients gave no usable answer to {name} ({named});"
                f" client {clients[0]}: {reasons[clients[0]].rstrip('.')}."
            )
        return sentences

    def take_as(self, name: str) -> Traffic:
        """What was counted since the last call, all kinds of questions together, under one name."""
        rows = list(self.take().values())
        return {name: {key: sum(row[key] for row in rows) for key in rows[0]}} if rows else {}

    def take(self) -> Traffic:
        """What was counted since the last call."""
        traffic, self._traffic, self._useless, self.lost, self.waited = self._traffic, {}, {}, set(), 0.0
        self.tables, self.updates = Counter(), Counter()
        return traffic


class Asking(CheckedAsk):
    """An `Ask` about one θ that is counted, and remembers failures."""

    def __init__(self, meter: Meter, theta: Vector):
        self._meter, self._theta = meter, theta

    def leave_out(self, task: Task, client: int, why: str) -> None:
        self._meter.leave_out(task, client, why)

    def __call__(self, task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        sums = self._meter.privacy.sums
        if sums is not None and isinstance(task, Summed):
            replies = sums.ask(task, clients, self._plainly)
        else:
            replies = self._plainly(task, clients)
        for reply in replies:
            if reply.failure is not None:
                self.leave_out(task, reply.client, reply.failure)
            yield reply

    def _plainly(self, task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        return self._meter.ask(task, self._theta, clients)
