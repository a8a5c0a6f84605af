"""A worker of the local engine, in this process or a forked one: a model, and a cache of clients' data."""

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from feddiverse.data.federation import Federation, Samples
from feddiverse.engine.shared import SharedVectors
from feddiverse.messages import Reply, Task, Vector

if TYPE_CHECKING:
    from feddiverse.models import FlatModel

Answer = Callable[[Task, Vector, int, Samples, "FlatModel"], Reply]

Job = int | range
"""Whose data a task is about: a client's, by its id, or a range of the test set."""

Memory = dict[str, NDArray[Any]]
"""What a client keeps between questions; small, and its own."""

SECONDS_PER_BEAT = 1.0

TEST_SET = -1  # the client id under which the server's own test set is asked


class Worker:
    """Answers tasks about clients (or parts of the test set), one after the other."""

    def __init__(self, federation: Federation, model: "FlatModel", answer: Answer, cache_bytes: int) -> None:
        self._federation = federation
        self._model = model
        self._answer = answer
        self._cache: OrderedDict[Job, Samples] = OrderedDict()
        self._free_bytes = cache_bytes

    def answer(self, task: Task, theta: Vector, job: Job, memory: Memory | None = None) -> Reply:
        """`memory`: what the client keeps between questions, changed in place."""
        client = job if isinstance(job, int) else TEST_SET
        try:
            samples = self._samples(job)
        except Exception as error:
            return Reply(client, failure=f"its data cannot be read: {error}")
        if memory is not None:
            samples = replace(samples, memory=memory)
        return self._answer(task, theta, client, samples, self._model)

    def _samples(self, job: Job) -> Samples:
        """The data, read when first asked for and kept within `cache_bytes`; the least recently used goes first."""
        samples = self._cache.pop(job, None)
        if samples is None:
            samples = (
                self._federation.client(job) if isinstance(job, int) else self._federation.test(job.start, job.stop)
            )
            self._free_bytes -= _num_bytes(samples)
        self._cache[job] = samples
        while self._free_bytes < 0:
            self._free_bytes += _num_bytes(self._cache.popitem(last=False)[1])
        return samples


def _num_bytes(samples: Samples) -> int:
    held_out = 0 if samples.held_out is None else _num_bytes(samples.held_out)
    return samples.x.nbytes + samples.y.nbytes + (0 if samples.a is None else samples.a.nbytes) + held_out


def serve(
    worker: Worker, shared: SharedVectors, place: int, pipe: Connection, inherited: Iterable[Connection], parent: int
) -> None:
    """A worker process: answer `(task, job, slot, memory)` until the parent is gone or kills it.

    A reply's vector goes into its slot of shared memory, the rest of it through the pipe, as `(reply, size or None,
    memory)`: what a client remembers goes back to the parent, since another worker may be asked next.
    """
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for connection in inherited:
        connection.close()
    prepare_process()
    _raise_oom_score()
    threading.Thread(target=_beat, args=(shared, place), daemon=True).start()
    shared.theta.flags.writeable = False
    while True:
        try:
            task, job, slot, memory = pipe.recv()
        except EOFError:
            return
        reply = worker.answer(task, shared.theta, job, memory)
        vector = reply.vector
        if vector is not None and shared.put(slot, vector):
            pipe.send((replace(reply, vector=None), vector.size, memory))
        else:
            pipe.send((reply, None, memory))


def _beat(shared: SharedVectors, place: int) -> None:
    """Show the parent that this process runs, however long its client takes: one that is stopped shows nothing."""
    while True:
        shared.beats[place] += 1
        time.sleep(SECONDS_PER_BEAT)


def prepare_process() -> None:
    """What every process that answers for clients does first."""
    gc.freeze()  # collecting what is there already takes time, and would write to pages that are shared until written
    _use_one_thread()
    _keep_freed_memory()


def _use_one_thread() -> None:
    """One thread a process: as fast on many workers, and the same bits on any machine and number of workers.

    A forked process has none of its parent's OpenMP threads; with one thread torch asks for none. NumPy's BLAS would
    start one a core in every worker.
    """
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1, "blas")


def _keep_freed_memory() -> None:
    """Every step frees and asks for the same activations: have malloc keep them instead of asking the kernel for fresh
    pages each time, which is a tenth of a small model's step (glibc; other C libraries decide for themselves)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    trim_threshold, mmap_threshold, never = -1, -3, 1 << 30
    if mallopt and mallopt(mmap_threshold, never):
        mallopt(trim_threshold, never)


def _raise_oom_score() -> None:
    """When memory runs out, have Linux kill a worker, which can be replaced, rather than the parent with the run."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def end_with(parent: int) -> None:
    """Have Linux kill this process when the parent ends (to Linux: the thread that forked it), even by SIGKILL."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before this was set
        os._exit(1)
