"""The work every peer does, and how it says that a round is finished. Needs torch and NumPy only: peers import it in
environments of their own.

24 clients with 200 pictures each (the counts of cmnist-gsc; `benchmarks.reach` gives the plain loop others), 9 of them
a round, one epoch of SGD in batches of 28, plain averaging, no evaluation. Models are plain eager PyTorch, the same
weights to the number as ours.
"""

import argparse
import functools
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

NUM_CLIENTS, NUM_SELECTED, BATCH_SIZE, EPOCHS = 24, 9, 28, 1
LR, MOMENTUM = 0.001, 0.9
MEAN, STD = 0.1307, 0.3081
NUM_CLASSES = 2
MODELS = Path(__file__).parents[2] / "src" / "feddiverse" / "models"


@dataclass(frozen=True)
class Work:
    """One launch of a peer: what to train, how often, in how many processes, where the data is."""

    model: str
    rounds: int
    processes: int
    data: Path
    progress: Path

    def clients(self) -> list[tuple[Tensor, Tensor]]:
        """Each client's pictures, normalised floats [n, 3, 28, 28], and labels."""
        with np.load(self.data, allow_pickle=False) as file:
            starts = np.cumsum(file["sizes"])[:-1]
            images, labels = np.split(file["images"], starts), np.split(file["labels"], starts)
        return [
            (torch.from_numpy(x).float().div_(255).sub_(MEAN).div_(STD), torch.from_numpy(y))
            for x, y in zip(images, labels, strict=True)
        ]

    def build_model(self) -> nn.Module:
        return plain_model(self.model)(NUM_CLASSES)

    def finished(self, round: int) -> None:
        """Say so in a way that whoever started us sees within milliseconds."""
        with self.progress.open("a") as stream:
            stream.write(f"{round}\n")


@functools.cache
def plain_model(name: str) -> type[nn.Module]:
    """Our model as anyone would write it: no hand-written kernels. Read from its file, which needs torch only."""
    file, kind = {"cnn": ("cnn.py", "CNN"), "mobilenet": ("mobilenet.py", "MobileNetV2")}[name]
    spec = importlib.util.spec_from_file_location(f"peers_{name}", MODELS / file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: type[nn.Module] = getattr(module, kind)
    return model


def from_command_line() -> Work:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, choices=("cnn", "mobilenet"))
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--progress", type=Path, required=True)
    torch.set_num_threads(1)
    return Work(**vars(parser.parse_args()))


def to_environment(work: Work) -> None:
    """For peers whose client code runs in processes that see no arguments of ours."""
    os.environ |= {f"WORK_{name.upper()}": str(value) for name, value in vars(work).items()}


def from_environment() -> Work:
    env = {name: os.environ[f"WORK_{name.upper()}"] for name in ("model", "rounds", "processes", "data", "progress")}
    torch.set_num_threads(1)
    return Work(env["model"], int(env["rounds"]), int(env["processes"]), Path(env["data"]), Path(env["progress"]))
