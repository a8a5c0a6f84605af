"""An engine whose clients send noise keyed by (seed, round, client): a run's bookkeeping without its training."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from feddiverse.experiment.opening import Opened
from feddiverse.messages import Ask, Plain, Reply, Task, Vector
from feddiverse.seeding import rng
from feddiverse.selection.base import Selector


class NoiseEngine:
    """`broken`: clients that always fail. `closed` says whether the run gave it back."""

    broken: frozenset[int] = frozenset()

    def __init__(self, run: Opened, workers: int, device: str) -> None:
        self._federation = run.federation
        self.closed = False

    @property
    def clients(self) -> Mapping[int, int]:
        return self._federation.sizes

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        for k in clients:
            if k in self.broken:
                yield Reply(k, failure="it is broken")
                continue
            noise = rng(task.seed, "noise", task.round, k).normal(scale=1e-3, size=theta.size)
            yield Reply(k, self.clients[k], (theta + noise).astype(np.float32), {"loss": 1.0, "steps": 3.0})

    def evaluate(self, theta: Vector) -> NDArray[np.int64]:
        right = int(abs(float(theta.sum())) * 1e6) % 100
        return np.array([np.full((2, 2), right), np.full((2, 2), 100)])

    def close(self) -> None:
        self.closed = True


class BrokenEngine(NoiseEngine):
    """Nobody answers."""

    broken = frozenset(range(1000))


class Warned(Selector):
    """A user's own selector: takes the first clients, and has found out something that a reader should know."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        return sorted(clients)[:k]

    def findings(self) -> Plain:
        return {"triplets": {"0": [0.5, 0.0, 0.0], "5": [0.0, 0.5, 0.1]}}

    def warnings(self) -> list[str]:
        return ["all clients look alike"]
