"""Where a client's data is, as seen from the process that holds it: loaded once, kept for the messages that follow."""

import functools
from pathlib import Path

import torch

from feddiverse.client import tasks
from feddiverse.data import open_federation
from feddiverse.engine.local import CACHE_BYTES
from feddiverse.engine.worker import Worker
from feddiverse.experiment.config import Config
from feddiverse.experiment.opening import Objects, Opened
from feddiverse.flower.partition_file import read_partition
from feddiverse.messages import Reply, Task, Vector
from feddiverse.models import build


class SimulatedSite:
    """Every client of a federation: in a simulation one process plays many."""

    def __init__(self, config: Config, device: str) -> None:
        federation = open_federation(
            config.federation, config.seed, image_size=config.image_size, data_dir=config.data_dir
        )
        run = Opened(config, Objects(), federation, weights=None)  # θ comes from the server
        self._sizes = run.federation.sizes
        self._worker = Worker(run.federation, build(run.spec, device), tasks.answer, CACHE_BYTES)

    def num_examples(self, client: int) -> int:
        return self._sizes[client]

    def answer(self, task: Task, theta: Vector, client: int) -> Reply:
        return self._worker.answer(task, theta, client)


class FileSite:
    """One client, whose data is one file: all that this machine has."""

    def __init__(self, path: Path, config: Config, device: str) -> None:
        self._samples, spec = read_partition(path, config.model)
        self._model = build(spec, device)

    def num_examples(self, client: int) -> int:
        return len(self._samples)

    def answer(self, task: Task, theta: Vector, client: int) -> Reply:
        return tasks.answer(task, theta, client, self._samples, self._model)


@functools.lru_cache(maxsize=1)
def open_site(config: Config, device: str, file: str) -> SimulatedSite | FileSite:
    """The data this process answers for, opened once. `file`: a partition file; empty: the config's federation."""
    torch.set_num_threads(1)  # the same bits as the local engine's workers
    return FileSite(Path(file).expanduser(), config, device) if file else SimulatedSite(config, device)
