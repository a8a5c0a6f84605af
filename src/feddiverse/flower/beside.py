"""θ and its updates beside a simulation's messages, in memory that the server and Ray's processes share.

Ray copies what a large message carries into its object store and out again, by a process of its own: 8 to 15 ms of a
processor for every answer. So here a message only says that θ lies there, and in which slot the answer's vector goes.
The processes of a simulation are this program's own, on one machine. A deployed client is given no place, and looks for
none.
"""

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict

from feddiverse.engine.shared import SharedVectors
from feddiverse.flower.engine import FlowerEngine
from feddiverse.messages import Reply, Task, Vector
from feddiverse.server.meter import WITHOUT_THETA

BESIDE = "feddiverse.beside"
NUM_WEIGHTS, CLIENTS, SLOT, SIZE = "num-weights", "clients", "slot", "size"


class Place(NamedTuple):
    """Where worker processes, of which there are so many, find the server's memory."""

    file: str
    num_workers: int


class Beside:
    """The server's side: θ, and as many slots for answers as `SharedVectors` has."""

    def __init__(self, num_workers: int) -> None:
        self._file = os.fdopen(os.memfd_create("feddiverse"), "r+b")  # gone with the last process that has it open
        self.place = Place(f"/proc/{os.getpid()}/fd/{self._file.fileno()}", num_workers)
        self._vectors: SharedVectors | None = None
        self._is_in_use = False

    @staticmethod
    def is_possible() -> bool:
        """Linux has files without a name; elsewhere messages carry their vectors."""
        return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")

    def put(self, task: Task, theta: Vector, clients: Sequence[int]) -> RecordDict | None:
        """θ there, and the record that says so. None where messages must carry it: the last question is still being
        answered, and who answers it may still read its θ; or it is a vector of another kind."""
        if isinstance(task, WITHOUT_THETA) or self._is_in_use:
            return None
        if self._vectors is None:
            self._vectors = SharedVectors(theta.size, self.place.num_workers, self._file.fileno())
        if theta.shape != self._vectors.theta.shape or theta.dtype != self._vectors.theta.dtype:
            return None
        self._vectors.theta[:] = theta
        with_slots = list(clients[: self._vectors.num_slots])
        return RecordDict({BESIDE: ConfigRecord({NUM_WEIGHTS: theta.size, CLIENTS: with_slots})})

    def until_answered(self, replies: Iterator[Reply], num_clients: int) -> Iterator[Reply]:
        """The replies; until the last of them has come nothing else is put there."""
        self._is_in_use = num_clients > 0

        def each() -> Iterator[Reply]:
            for number, reply in enumerate(replies, start=1):
                self._is_in_use = number < num_clients  # before it is given: nobody need ask for one more
                yield reply

        return each()

    def complete(self, reply: Reply, message: Message | None) -> Reply:
        """The reply with its vector, if that was left in a slot."""
        about = None if message is None or message.has_error() else message.content.config_records.get(BESIDE)
        if about is None or self._vectors is None:
            return reply
        return replace(reply, vector=self._vectors.take(int(about[SLOT]), int(about[SIZE])))  # type: ignore[arg-type]

    def close(self) -> None:
        """Safe to call twice."""
        self._file.close()


class BesideEngine(FlowerEngine):
    """Sends θ and receives updates beside the messages, where there is a `beside`."""

    beside: Beside | None = None

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        record = None if self.beside is None else self.beside.put(task, theta, clients)
        if self.beside is None or record is None:
            return super().ask(task, theta, clients)
        return self.beside.until_answered(self.ask_about(task, record, clients), len(clients))

    def _reply(self, client: int, message: Message | None, patience: float) -> Reply:
        reply = super()._reply(client, message, patience)
        return reply if self.beside is None else self.beside.complete(reply, message)


def find(place: Place | None, content: RecordDict) -> SharedVectors | None:
    """The client's side: the memory that this message's θ lies in; None: the message carries it."""
    about = content.config_records.get(BESIDE)
    return None if place is None or about is None else _opened(place, int(about[NUM_WEIGHTS]))  # type: ignore[arg-type]


@functools.lru_cache(maxsize=1)
def _opened(place: Place, num_weights: int) -> SharedVectors:
    descriptor = os.open(place.file, os.O_RDWR)
    try:
        vectors = SharedVectors(num_weights, place.num_workers, descriptor)
    finally:
        os.close(descriptor)  # what is mapped stays
    vectors.theta.flags.writeable = False
    return vectors


def leave(vectors: SharedVectors, question: RecordDict, reply: Reply) -> tuple[Reply, RecordDict]:
    """The reply without its vector, and the record that says where that is; what has no slot is sent as always."""
    clients = list(question.config_records[BESIDE][CLIENTS])  # type: ignore[arg-type]
    slot = clients.index(reply.client) if reply.client in clients else None
    if reply.vector is None or slot is None or not vectors.put(slot, reply.vector):
        return reply, RecordDict()
    return replace(reply, vector=None), RecordDict({BESIDE: ConfigRecord({SLOT: slot, SIZE: reply.vector.size})})
