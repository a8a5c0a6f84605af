"""Clients that answer selectors' questions without data or model: every answer is a function of the id."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from feddiverse import registry
from feddiverse.estimation.base import Estimator
from feddiverse.messages import Ask, LabelCounts, Loss, Reply, Sketch, Task, TrueMatrix
from feddiverse.selection.base import Selector

SETTINGS = {
    "seed": 3,
    "num_classes": 2,
    "num_attributes": 2,
    "coverage": 0.0,
    "pow_d_candidates": 0,
    "fedpns_alpha": 2.0,
    "fedpns_beta": 0.7,
    "hcsfed_clusters": 3,
    "hcsfed_rate": 1e-5,
    "head_bias": slice(38, 40),
    "rounds": 12,
}


def build(name: str, settings: Mapping[str, Any] = SETTINGS, estimator: str = "oracle") -> Selector:
    """A selector by name, with an estimator of its own where it wants one."""
    later = registry.Later(lambda: registry.make(registry.ESTIMATOR, estimator, settings))
    made: Selector = registry.make(registry.SELECTOR, name, {**settings, "estimator": later})
    return made


def matrix_of(client: int) -> np.ndarray:
    return np.random.default_rng(client).integers(0, 90, (2, 2)).astype(np.float32)


class FakeClients:
    """`ask` of a federation; remembers who was asked what, and fails for the ids in `broken`."""

    def __init__(self, broken: Sequence[int] = ()) -> None:
        self.broken = set(broken)
        self.asked: list[tuple[Task, list[int]]] = []

    def __call__(self, task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        self.asked.append((task, list(clients)))
        for client in clients:
            yield Reply(client, failure="broken") if client in self.broken else self.answer(task, client)

    def answer(self, task: Task, client: int) -> Reply:
        rng = np.random.default_rng([client, task.round])
        if isinstance(task, Loss):
            loss = float(rng.random())
            return Reply(client, 10, metrics={"loss": loss, "loss_rms": 2 * loss})
        if isinstance(task, Sketch):
            return Reply(client, 10, vector=rng.normal(client % 3, 0.1, 4).astype(np.float32))
        if isinstance(task, LabelCounts):
            return Reply(client, 360, vector=matrix_of(client).sum(axis=1))
        assert isinstance(task, TrueMatrix), task
        return Reply(client, 360, vector=matrix_of(client).ravel())


class KnownTriplets(Estimator):
    """An estimator that was told the answers; those with none stay unknown."""

    def __init__(self, triplets: Mapping[int, Sequence[float]]) -> None:
        super().__init__()
        self.triplets = triplets
        self.asked: list[list[int]] = []

    def estimate(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, np.ndarray]:
        self.asked.append(sorted(clients))
        return {client: np.array(self.triplets[client], float) for client in clients if client in self.triplets}


def updates(round: int, chosen: Sequence[int], num_weights: int = 40) -> tuple[np.ndarray, list[Reply]]:
    """θ and what the chosen clients could have trained from it."""
    theta = np.random.default_rng(round).normal(size=num_weights).astype(np.float32)
    steps = {client: np.random.default_rng([client, round]).normal(size=num_weights) for client in chosen}
    return theta, [
        Reply(client, 10, (theta + step).astype(np.float32), {"loss": 0.5, "steps": 5.0})
        for client, step in steps.items()
    ]
