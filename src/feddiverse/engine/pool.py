"""A pool of forked worker processes: which works on what, what came back, and what happens when one dies."""

import logging
import math
import multiprocessing
import os
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from feddiverse.engine.shared import SharedVectors
from feddiverse.engine.worker import SECONDS_PER_BEAT, TEST_SET, Job, Memory, Worker, serve
from feddiverse.errors import UserError
from feddiverse.messages import Reply, Task, Vector

log = logging.getLogger("feddiverse.engine")

SILENT = 30.0
"""Seconds without a sign of life after which it is told: a worker was stopped, or the machine is out of memory."""


@dataclass
class PendingJob:
    """A job without a reply yet: its position in the order of replies, and the slot its vector will be in."""

    position: int
    job: Job
    slot: int = -1
    attempts: int = 0


@dataclass(frozen=True)
class Patience:
    """What is done for a worker that gives no answer. `retries`: how often a job is given to another when its worker
    died; `timeout`: seconds without a sign of life after which a worker counts as dead (0: never). A slow client shows
    signs of life."""

    retries: int = 1
    timeout: float = 300.0

    def __post_init__(self) -> None:
        if self.retries < 0 or not 0 <= self.timeout < math.inf:
            raise UserError(
                f"There cannot be {self.retries} retries or a timeout of {self.timeout:g} s: give numbers from 0."
            )


@dataclass(eq=False)
class WorkerProcess:
    """A process, the parent's end of its pipe, the job it works on, and for how long it has shown no sign of life."""

    process: ForkProcess
    connection: Connection
    place: int
    pending: PendingJob | None = None
    beats: int = -1
    silent: float = 0.0


class Pool:
    """At most `num_workers` processes, forked when there is work for them and again when one died.

    Forking shares the data, the model and torch itself copy-on-write: a worker starts in milliseconds, and memory is
    only what it writes. Processes hold nothing worth keeping, so they are stopped by SIGKILL.
    """

    def __init__(self, worker: Worker, num_workers: int, num_weights: int, patience: Patience | None = None) -> None:
        self.num_workers = num_workers
        self._patience = patience or Patience()
        self._worker = worker  # each process has a copy of it, by forking
        self._shared = SharedVectors(num_weights, num_workers)
        self._workers: list[WorkerProcess] = []
        self._memories: defaultdict[Job, Memory] = defaultdict(dict)  # of clients, kept for whichever worker is next
        self._is_running = self._is_closed = False

    @property
    def process_ids(self) -> list[int]:
        """Of the worker processes alive now."""
        return [pid for worker in self._workers if (pid := worker.process.pid) is not None]

    def memory(self, job: Job) -> Memory:
        """What the client keeps between questions."""
        return self._memories[job]

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
        waiting = deque(PendingJob(position, job) for position, job in enumerate(jobs))
        arrived: dict[int, tuple[Reply, PendingJob, int | None]] = {}
        free_slots = set(range(self._shared.num_slots))
        try:
            for position in range(len(jobs)):
                if self._is_closed:  # also where replies have arrived already: else it would hang on who was faster
                    raise RuntimeError("the engine is closed")
                self._assign(task, waiting, free_slots)
                while position not in arrived:
                    for pending, reply, size in self._receive():
                        if reply is not None:
                            arrived[pending.position] = reply, pending, size
                        elif pending.attempts <= self._patience.retries:
                            waiting.appendleft(pending)
                        else:
                            arrived[pending.position] = _lost(pending), pending, None
                    self._assign(task, waiting, free_slots)
                reply, pending, size = arrived.pop(position)
                if size is not None:
                    reply = replace(reply, vector=self._shared.take(pending.slot, size))
                free_slots.add(pending.slot)
                yield reply
        finally:
            self._is_running = False
            for worker in [worker for worker in self._workers if worker.pending]:  # nobody waits for them
                self._kill(worker)

    def close(self) -> None:
        self._is_closed = True
        for worker in list(self._workers):
            self._kill(worker)

    def _assign(self, task: Task, waiting: deque[PendingJob], free_slots: set[int]) -> None:
        while waiting and (free_slots or waiting[0].slot >= 0):
            worker = next((worker for worker in self._workers if worker.pending is None), None)
            if worker is None:
                if len(self._workers) == self.num_workers:
                    return
                worker = self._start_worker()
            pending = waiting.popleft()
            if pending.slot < 0:
                pending.slot = min(free_slots)  # the lowest, so that few pages are ever touched
                free_slots.remove(pending.slot)
            worker.pending = pending
            try:
                own = task.of(pending.job) if isinstance(pending.job, int) else task
                worker.connection.send((own, pending.job, pending.slot, self._memories[pending.job]))
                pending.attempts += 1
            except OSError:  # it died while idle: not the job's fault
                self._kill(worker)
                waiting.appendleft(pending)

    def _receive(self) -> Iterator[tuple[PendingJob, Reply | None, int | None]]:
        """Wait for replies: a job with its reply and the size of its vector, or with None if its worker died."""
        workers = {worker.connection: worker for worker in self._workers}
        started = time.monotonic()
        ready = wait(list(workers), timeout=SECONDS_PER_BEAT)
        if not ready:
            # No more than a beat or two at a time: the whole group may have been stopped, and we with it.
            self._listen(min(time.monotonic() - started, 2 * SECONDS_PER_BEAT))
        for connection in ready:
            assert isinstance(connection, Connection)
            worker = workers[connection]
            pending = worker.pending
            try:
                reply, size, memory = connection.recv()
                if pending is not None:
                    self._memories[pending.job] = memory
            except (EOFError, OSError):
                reply, size = None, None
                self._kill(worker)
            worker.pending = None
            if pending is not None:
                yield pending, reply, size

    def _listen(self, seconds: float) -> None:
        """Whether busy workers are alive: tell of those that show no sign of it, and in the end kill them."""
        for worker in [worker for worker in self._workers if worker.pending]:
            beats, before = int(self._shared.beats[worker.place]), worker.silent
            worker.silent = worker.silent + seconds if beats == worker.beats else 0.0
            worker.beats = beats
            pid, timeout = worker.process.pid, self._patience.timeout
            if before < SILENT <= worker.silent:
                then = f"it is replaced after {timeout:g} s" if timeout else "the run waits for it"
                log.warning(
                    "The worker process %s shows no sign of life for %d s (is it stopped?); %s.", pid, SILENT, then
                )
            if timeout and worker.silent >= timeout:
                worker.process.kill()  # which then is told like any other death

    def _start_worker(self) -> WorkerProcess:
        if self._is_closed:
            raise RuntimeError("the engine is closed")
        place = min(set(range(self.num_workers)) - {worker.place for worker in self._workers})
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        inherited = [ours, *(worker.connection for worker in self._workers)]
        process = context.Process(
            target=serve, args=(self._worker, self._shared, place, theirs, inherited, os.getpid()), daemon=True
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of any thread, and NumPy has some: they are idle, and the child uses none of them.
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            process.start()
        theirs.close()  # so that the pipe ends when the worker does
        worker = WorkerProcess(process, ours, place)
        self._workers.append(worker)
        return worker

    def _kill(self, worker: WorkerProcess) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            worker.process.kill()
            worker.process.join()
            worker.process.close()
            worker.connection.close()


def _lost(pending: PendingJob) -> Reply:
    client = pending.job if isinstance(pending.job, int) else TEST_SET
    times = f"{pending.attempts} times" if pending.attempts > 1 else "once"
    return Reply(client, failure=f"its worker process died {times} (killed, or out of memory)", lost=True)
