"""The work with FLGo 0.4.4: one process, client after client.

FLGo reads a benchmark from a generated package, so one is made in the folder of the progress file, with the data, the
model and the partition above. Its partition plot is switched off.
"""

import os
import sys

import benchmarks.peers.torchvision_without_operators  # noqa: F401  # isort: skip (before FLGo imports it)
import flgo
import flgo.algorithm.fedavg as fedavg
from flgo.benchmark.partition import BasicPartitioner
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe

from benchmarks.peers.work import (
    BATCH_SIZE,
    EPOCHS,
    LR,
    MOMENTUM,
    NUM_CLIENTS,
    NUM_SELECTED,
    Work,
    from_command_line,
    from_environment,
    to_environment,
)

CONFIG = "from benchmarks.peers.flgo_app import get_model, train_data_of_work\ntrain_data = train_data_of_work()\n"


def train_data_of_work():
    import torch

    clients = from_environment().clients()
    return torch.utils.data.TensorDataset(torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients]))


def get_model():
    return from_environment().build_model()


class Given(BasicPartitioner):
    """Client k has the k-th run of samples."""

    num_parties = NUM_CLIENTS

    def __call__(self, data):
        size = len(data) // NUM_CLIENTS
        return [list(range(k * size, (k + 1) * size)) for k in range(NUM_CLIENTS)]


def _get_items(self, indices):
    return [self[i] for i in indices]


FromDatasetPipe.TaskDataset.__getitems__ = _get_items  # torch 2.13 demands it of every subclass of Subset


class Server(fedavg.Server):
    def iterate(self):
        updated = super().iterate()
        from_environment().finished(self.current_round)
        return updated


class fedavg_told:
    Server, Client = Server, fedavg.Client


def run(work: Work) -> None:
    to_environment(work)
    sys.argv[1:] = []  # FLGo reads them too
    folder = work.progress.parent / f"flgo-{os.getpid()}"
    folder.mkdir()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    (folder / "given.py").write_text(CONFIG)
    name = flgo.gen_benchmark_from_file("cmnist", str(folder / "given.py"), target_path=str(folder))
    benchmark = __import__(name)
    benchmark.visualize = lambda *_: None
    task = flgo.gen_task_by_(benchmark, Given(), str(folder / "task"))
    option = {
        "num_rounds": work.rounds, "proportion": NUM_SELECTED / NUM_CLIENTS, "sample": "uniform",
        "aggregate": "uniform",
        "num_epochs": EPOCHS, "batch_size": BATCH_SIZE, "learning_rate": LR, "momentum": MOMENTUM, "train_holdout": 0.0,
        "eval_interval": -1, "no_log_console": True, "torch_num_threads": 1,
    }  # fmt: skip
    flgo.init(task, fedavg_told, option).run()


if __name__ == "__main__":
    run(from_command_line())
