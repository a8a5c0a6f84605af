"""The local engine: every client of a federation on this machine, spread over its cores, or on its accelerator."""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from feddiverse.data.federation import Federation
from feddiverse.engine.machine import choose_device, usable_cores, workers_for
from feddiverse.engine.pool import Patience, Pool
from feddiverse.engine.worker import Answer, Job, Memory, Worker
from feddiverse.errors import RunError, UserError
from feddiverse.messages import Evaluate, Reply, Task, Vector

if TYPE_CHECKING:  # importing it would import torch, which costs a second or two
    from feddiverse.models import ModelSpec

TEST_CHUNK = 256  # of fixed size, so that no number of workers changes which pictures make a batch
CACHE_BYTES = 256 << 20  # of clients' pictures, all workers together


def open_engine(run: Any, workers: int = 0, device: str = "auto", **patience: Any) -> "LocalEngine":
    """The engine `local` for an opened run (`experiment.opening.Opened`). `patience`: see `Patience`."""
    workers = workers or workers_for(run.plan.num_selected, usable_cores())
    return LocalEngine(run.federation, run.spec, workers=workers, device=device, patience=Patience(**patience))


class LocalEngine:
    """Asks clients in forked worker processes of one thread each, or in this process.

    `workers`: how many processes; 0: one per usable core. `device`: `cpu`, `cuda`, `mps`, or `auto` for the best there
    is. An accelerator is held by one process, this one, and so are clients on a platform where forking is not safe.
    Replies are the same to the bit for any number of workers.

    >>> import feddiverse as fd
    >>> from feddiverse.messages import LabelCounts
    >>> from feddiverse.models import ModelSpec
    >>> fed = fd.federation("digits-gsc")
    >>> spec = ModelSpec("cnn", fed.num_classes, fed.source.shape, fed.source.mean, fed.source.std)
    >>> with LocalEngine(fed, spec, workers=1) as engine:
    ...     theta = np.zeros(87_810, np.float32)
    ...     [reply.vector.tolist() for reply in engine.ask(LabelCounts(seed=0, round=1), theta, [0, 5])]
    [[126.0, 14.0], [70.0, 70.0]]
    """

    def __init__(
        self,
        federation: Federation,
        spec: "ModelSpec",
        workers: int = 0,
        device: str = "auto",
        *,
        in_process: bool | None = None,
        answer: Answer | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`in_process`: whether to work without processes (None: as the device and the platform ask for).
        `answer`: what a client does with a task (None: `client.tasks.answer`)."""
        from feddiverse.client import tasks
        from feddiverse.models import build

        if workers < 0:
            raise UserError(f"There cannot be {workers} workers: give a number from 1, or 0 for one per core.")
        device = choose_device(device)
        if in_process is None:
            in_process = device != "cpu" or sys.platform != "linux"
        num_workers = 1 if in_process else workers or usable_cores()
        model = build(spec, device)
        worker = Worker(federation, model, answer or tasks.answer, CACHE_BYTES // num_workers)
        self._federation = federation
        self._clients = federation.sizes
        self._num_weights = model.theta.numel()
        self._pool = (
            InProcess(worker, one_thread=device == "cpu")
            if in_process
            else Pool(worker, num_workers, self._num_weights, patience)
        )

    @property
    def clients(self) -> Mapping[int, int]:
        """Client id → number of training samples."""
        return self._clients

    @property
    def process_ids(self) -> list[int]:
        """The worker processes alive now; none when working in this process."""
        return self._pool.process_ids

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        """One reply per client, in the order of `clients`, which is also the order they start in (so ask the largest
        first). Closing the iterator early stops the work that nobody waits for."""
        unknown = [client for client in clients if client not in self._clients]
        if unknown:
            raise RunError(f"There is no client {unknown[0]} among the {len(self._clients)} clients.")
        return self._run(task, theta, [int(client) for client in clients])

    def evaluate(self, theta: Vector) -> NDArray[np.int64]:
        """[2, classes, attributes]: right answers of θ on the balanced test set, and how many samples there are."""
        federation = self._federation
        task = Evaluate(seed=0, round=0, num_attributes=federation.num_attributes)
        counts = np.zeros((2, federation.num_classes, federation.num_attributes), np.int64)
        for reply in self.ask_test_set(task, theta):
            counts += reply.numbers.astype(np.int64).reshape(counts.shape)
        return counts

    def ask_test_set(self, task: Task, theta: Vector) -> Iterator[Reply]:
        """The server's own samples, asked like a client's, part by part."""
        num_test = len(self._federation.test_ids)
        chunks: list[Job] = [
            range(start, min(start + TEST_CHUNK, num_test)) for start in range(0, num_test, TEST_CHUNK)
        ]
        for reply in self._run(task, theta, chunks):
            if reply.failure is not None:
                raise RunError(f"The test set could not be evaluated: {reply.failure}.")
            yield reply

    def _run(self, task: Task, theta: Vector, jobs: Sequence[Job]) -> Iterator[Reply]:
        if theta.shape != (self._num_weights,):
            raise RunError(f"θ has the shape {theta.shape}, but the model has {self._num_weights:,} weights.")
        return self._pool.run(task, theta, jobs)

    def memory(self, client: int) -> Memory:
        """What a client here remembers of its samples. For whoever has the data before them: no server can ask this."""
        return self._pool.memory(client)

    def close(self) -> None:
        """Stop the workers at once, whatever they do. Safe to call twice."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InProcess:
    """The same seam as `Pool` without processes: each job when its reply is asked for."""

    process_ids: ClassVar[list[int]] = []

    def __init__(self, worker: Worker, *, one_thread: bool) -> None:
        import torch

        self._worker: Worker | None = worker
        self._memories: defaultdict[Job, Memory] = defaultdict(dict)
        self._threads_before = torch.get_num_threads()
        if one_thread:  # the same bits as a worker process
            torch.set_num_threads(1)

    def run(self, task: Task, theta: Vector, jobs: Sequence[Job]) -> Iterator[Reply]:
        for job in jobs:
            if self._worker is None:
                raise RuntimeError("the engine is closed")
            own = task.of(job) if isinstance(job, int) else task
            yield self._worker.answer(own, theta, job, self._memories[job])

    def memory(self, job: Job) -> Memory:
        """What the client keeps between questions."""
        return self._memories[job]

    def close(self) -> None:
        if self._worker is not None:
            import torch

            self._worker = None
            torch.set_num_threads(self._threads_before)
