"""A pool of forked worker processes: which works on what, what came back, and what happens when one dies."""

import multiprocessing
import os
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from feddiverse.engine.shared import SharedVectors
from feddiverse.engine.worker import TEST_SET, Job, Memory, Worker, serve
from feddiverse.messages import Reply, Task, Vector

ATTEMPTS = 2  # a job whose worker dies is tried once more


@dataclass
class PendingJob:
    """A job without a reply yet: its position in the order of replies, and the slot its vector will be in."""

    position: int
    job: Job
    slot: int = -1
    attempts: int = 0


@dataclass(eq=False)
class WorkerProcess:
    """A process, the parent's end of its pipe, and the job it works on."""

    process: ForkProcess
    connection: Connection
    pending: PendingJob | None = None


class Pool:
    """At most `num_workers` processes, forked when there is work for them and again when one died.

    Forking shares the data, the model and torch itself copy-on-write: a worker starts in milliseconds, and memory is
    only what it writes. Processes hold nothing worth keeping, so they are stopped by SIGKILL.
    """

    def __init__(self, worker: Worker, num_workers: int, num_weights: int) -> None:
        self.num_workers = num_workers
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
                self._assign(task, waiting, free_slots)
                while position not in arrived:
                    for pending, reply, size in self._receive():
                        if reply is not None:
                            arrived[pending.position] = reply, pending, size
                        elif pending.attempts < ATTEMPTS:
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
        for connection in wait(list(workers)):
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

    def _start_worker(self) -> WorkerProcess:
        if self._is_closed:
            raise RuntimeError("the engine is closed")
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        inherited = [ours, *(worker.connection for worker in self._workers)]
        process = context.Process(
            target=serve, args=(self._worker, self._shared, theirs, inherited, os.getpid()), daemon=True
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of any thread, and NumPy has some: they are idle, and the child uses none of them.
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            process.start()
        theirs.close()  # so that the pipe ends when the worker does
        worker = WorkerProcess(process, ours)
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
    return Reply(client, failure=f"its worker process died {ATTEMPTS} times (killed, or out of memory)")
