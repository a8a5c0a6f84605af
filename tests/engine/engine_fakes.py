"""A tiny federation, and clients that do what a test asks for instead of training."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feddiverse.data.federation import Federation, Samples
from feddiverse.messages import Reply, Task, Vector
from feddiverse.models import FlatModel, ModelSpec

SPEC = ModelSpec("cnn", num_classes=2, shape=(3, 8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)
NUM_WEIGHTS = 87_810


class Noise:
    """A source of random pictures, which counts how often it is read."""

    name, class_names, attribute_names = "noise", ("0", "1"), ("0", "1")
    shape, mean, std, fingerprint = (3, 8, 8), (0.5,) * 3, (0.5,) * 3, ""

    def __init__(self, num_train: int, num_test: int) -> None:
        rng = np.random.default_rng(0)
        self.train_y, self.train_a = rng.integers(0, 2, (2, num_train))
        self.test_y, self.test_a = rng.integers(0, 2, (2, num_test))
        self.pictures = rng.integers(0, 256, (max(num_train, num_test), *self.shape), np.uint8)
        self.reads = 0

    def train_x(self, ids, a):
        self.reads += 1
        return self.pictures[ids]

    test_x = train_x


def noise_federation(num_clients: int = 6, size: int = 10, num_test: int = 600) -> Federation:
    source = Noise(num_clients * size, num_test)
    ids = np.arange(num_clients * size).reshape(num_clients, size)
    counts = np.zeros((num_clients, 2, 2), np.int64)
    for client in range(num_clients):
        np.add.at(counts[client], (source.train_y[ids[client]], source.train_a[ids[client]]), 1)
    return Federation("noise", source, counts, 3, list(ids), list(source.train_a[ids]), np.arange(num_test))


@dataclass(frozen=True)
class Shift(Task):
    """Reply: θ + client id, then what a test adds."""


def shifted(then: Callable[[int], None] = lambda client: None):
    """A client that answers θ + its id, after `then(client)`."""

    def answer(task: Task, theta: Vector, client: int, samples: Samples, model: FlatModel) -> Reply:
        then(client)
        return Reply(client, len(samples), vector=theta + np.float32(client))

    return answer


def once(folder: Path, client: int) -> bool:
    """True the first time any process asks this for a client."""
    try:
        (folder / str(client)).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
