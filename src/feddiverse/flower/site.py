"""Where a client's data is, as seen from the process that holds it: loaded once, kept for the messages that follow."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from feddiverse.client import tasks
from feddiverse.data.holdout import hold_out_of
from feddiverse.engine.local import CACHE_BYTES
from feddiverse.engine.worker import Memory, Worker, prepare_process
from feddiverse.experiment.config import PARTS, Config
from feddiverse.experiment.opening import Objects, open_run
from feddiverse.flower.partition_file import read_partition
from feddiverse.messages import Reply, Task, Vector
from feddiverse.models import build


class SimulatedSite:
    """Every client of a federation: in a simulation one process plays many.

    What only Python can name (`objects`: the data, the model) is given; all else is opened as the config says.
    """

    def __init__(self, config: Config, device: str, objects: Objects | None = None) -> None:
        run = open_run(_without_parts(config), objects)
        self._sizes = run.federation.sizes
        self._worker = Worker(run.federation, build(run.spec, device), tasks.answer, CACHE_BYTES)

    def num_examples(self, client: int) -> int:
        return self._sizes[client]

    def answer(self, task: Task, theta: Vector, client: int, memory: Memory) -> Reply:
        return self._worker.answer(task, theta, client, memory)


def _without_parts(config: Config) -> Config:
    """All parts but the model, and the starting weights, stay on the server: clients may not even have them."""
    usual, of_server = Config(), [key for key in PARTS if key != "model"]
    options = {"model": config.parameters("model")}
    return replace(config, **{key: getattr(usual, key) for key in of_server}, checkpoint="none", options=options)


class FileSite:
    """One client, whose data is one file: all that this machine has. Its attributes are known to nobody."""

    def __init__(self, path: Path, config: Config, device: str) -> None:
        self.partition = partition = read_partition(path)
        self._samples = partition.samples
        if config.holdout:
            self._samples = hold_out_of(partition.samples, config.holdout, config.seed, partition.client)
        self._model = build(partition.spec(config.model), device)

    def num_examples(self, client: int) -> int:
        return len(self._samples)

    def class_counts(self) -> list[int]:
        """How many samples of each class there are to train on."""
        counts: list[int] = np.bincount(self._samples.y, minlength=len(self.partition.class_names)).tolist()
        return counts

    def answer(self, task: Task, theta: Vector, client: int, memory: Memory) -> Reply:
        return tasks.answer(task, theta, client, replace(self._samples, memory=memory, secret_noise=True), self._model)


@functools.lru_cache(maxsize=1)
def open_site(config: Config, device: str, file: str, shared: Any = None) -> SimulatedSite | FileSite:
    """The data this process answers for, opened once. `file`: a partition file; empty: the config's federation.

    `shared`: a reference to `Objects` in Ray's object store.
    """
    prepare_process()  # the same bits as the local engine's workers, as fast
    if file:
        return FileSite(Path(file).expanduser(), config, device)
    if shared is None:
        return SimulatedSite(config, device)
    import ray

    return SimulatedSite(config, device, ray.get(shared))
