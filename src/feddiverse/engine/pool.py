"""Forked worker processes: who works on what, what came back, and what happens when one dies."""

import multiprocessing
import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from feddiverse.engine.shared import SharedVectors
from feddiverse.engine.worker import TEST_SET, Job, Worker, serve
from feddiverse.messages import Reply, Task, Vector

ATTEMPTS = 2  # a job whose worker dies is tried once more


@dataclass
class Errand:
    """A job on its way: its place in the order of replies, and where its vector will be."""

    position: int
    job: Job
    slot: int = -1
    attempts: int = 0


@dataclass(eq=False)
class Hand:
    """A worker process, the parent's end of its pipe, and what it works on."""

    process: ForkProcess
    connection: Connection
    errand: Errand | None = None


class Pool:
    """At most `num_workers` processes, forked when there is work for them and again when one died.

    Forking shares the data, the model and torch itself copy-on-write: a worker starts in milliseconds, and memory is
    only what it writes. Processes hold nothing worth keeping, so they are stopped by SIGKILL.
    """

    def __init__(self, worker: Worker, num_workers: int, num_weights: int) -> None:
        self.num_workers = num_workers
        self._worker = worker
        self._shared = SharedVectors(num_weights, num_workers)
        self._hands: list[Hand] = []
        self._is_running = self._is_closed = False

    @property
    def process_ids(self) -> list[int]:
        """Of the worker processes alive now."""
        return [pid for hand in self._hands if (pid := hand.process.pid) is not None]

    def run(self, task: Task, theta: Vector, jobs: Sequence[Job]) -> Iterator[Reply]:
        """One reply per job in the order of `jobs`, while they stream in.

        Jobs start in that order too, each when a worker and a slot for its reply are free. Slots are given in order, so
        the reply that is due next always has one: a consumer that is slow, or a job that is, holds others up but never
        for ever.
        """
        if self._is_closed or self._is_running:
            raise RuntimeError(
                "the engine is closed" if self._is_closed else "the last question is still being answered"
            )
        self._is_running = True
        self._shared.theta[:] = theta
        waiting = deque(Errand(position, job) for position, job in enumerate(jobs))
        arrived: dict[int, tuple[Reply, Errand, int | None]] = {}
        free_slots = set(range(self._shared.num_slots))
        try:
            for position in range(len(jobs)):
                self._hand_out(task, waiting, free_slots)
                while position not in arrived:
                    for errand, reply, size in self._collect():
                        if reply is not None:
                            arrived[errand.position] = reply, errand, size
                        elif errand.attempts < ATTEMPTS:
                            waiting.appendleft(errand)
                        else:
                            arrived[errand.position] = _lost(errand), errand, None
                    self._hand_out(task, waiting, free_slots)
                reply, errand, size = arrived.pop(position)
                if size is not None:
                    reply = replace(reply, vector=self._shared.take(errand.slot, size))
                free_slots.add(errand.slot)
                yield reply
        finally:
            self._is_running = False
            for hand in [hand for hand in self._hands if hand.errand]:  # nobody wants the answer any more
                self._dismiss(hand)

    def close(self) -> None:
        self._is_closed = True
        for hand in list(self._hands):
            self._dismiss(hand)

    def _hand_out(self, task: Task, waiting: deque[Errand], free_slots: set[int]) -> None:
        while waiting and (free_slots or waiting[0].slot >= 0):
            hand = next((hand for hand in self._hands if hand.errand is None), None)
            if hand is None:
                if len(self._hands) == self.num_workers:
                    return
                hand = self._hire()
            errand = waiting.popleft()
            if errand.slot < 0:
                errand.slot = min(free_slots)  # the lowest, so that few pages are ever touched
                free_slots.remove(errand.slot)
            hand.errand = errand
            try:
                hand.connection.send((task, errand.job, errand.slot))
                errand.attempts += 1
            except OSError:  # it died while idle: not the errand's fault
                self._dismiss(hand)
                waiting.appendleft(errand)

    def _collect(self) -> Iterator[tuple[Errand, Reply | None, int | None]]:
        """Wait for news: an errand with its reply and the size of its vector, or with None if its worker died."""
        hands = {hand.connection: hand for hand in self._hands}
        for connection in wait(list(hands)):
            assert isinstance(connection, Connection)
            hand = hands[connection]
            errand = hand.errand
            try:
                reply, size = connection.recv()
            except (EOFError, OSError):
                reply, size = None, None
                self._dismiss(hand)
            hand.errand = None
            if errand is not None:
                yield errand, reply, size

    def _hire(self) -> Hand:
        if self._is_closed:
            raise RuntimeError("the engine is closed")
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        not_mine = [ours, *(hand.connection for hand in self._hands)]
        process = context.Process(
            target=serve, args=(self._worker, self._shared, theirs, not_mine, os.getpid()), daemon=True
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of any thread, and NumPy has some: they are idle, and the child uses none of them.
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            process.start()
        theirs.close()  # so that the pipe ends when the worker does
        hand = Hand(process, ours)
        self._hands.append(hand)
        return hand

    def _dismiss(self, hand: Hand) -> None:
        if hand in self._hands:
            self._hands.remove(hand)
            hand.process.kill()
            hand.process.join()
            hand.process.close()
            hand.connection.close()


def _lost(errand: Errand) -> Reply:
    client = errand.job if isinstance(errand.job, int) else TEST_SET
    return Reply(client, failure=f"its worker process died {ATTEMPTS} times (killed, or out of memory)")
