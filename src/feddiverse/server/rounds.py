"""THE loop: T0 rounds of plain FedAvg with every client, then choose → train → aggregate → evaluate (paper, Sec. IV).

No files, no processes, no torch: the same generator runs over every engine, and between two rounds its caller can
save θ and the states of selector and aggregator, from which a later call goes on with the same bits.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import RunError
from feddiverse.messages import Engine, Reply, Train, Vector
from feddiverse.seeding import rng
from feddiverse.server.aggregation import Aggregator
from feddiverse.server.groups import Accuracies, accuracies
from feddiverse.server.meter import Meter, Traffic
from feddiverse.server.selection.base import Selector

MAX_LOST_IN_A_ROW = 3

Evaluate = Callable[[Vector], NDArray[np.int64]]
"""θ → [2, classes, attributes]: right answers and samples on the server's test set."""


@dataclass(frozen=True)
class Plan:
    """What the loop needs to know besides who selects and who aggregates. `train` is the local training asked for."""

    train: Train
    rounds: int
    num_selected: int
    evaluate_every: int


@dataclass(frozen=True)
class Round:
    """What happened in one round, and θ after it. `lost_in_a_row`: rounds without a usable reply up to this one."""

    round: int
    phase: str
    theta: Vector
    selected: list[int]
    failed: list[int]
    warnings: list[str]
    train_loss: float | None
    test: Accuracies | None
    seconds: float
    selection_seconds: float
    traffic: Traffic
    lost_in_a_row: int


@dataclass
class _Sieve:
    """Lets usable replies through, one at a time, and remembers what the record and the selector need of them."""

    round: int
    size: int
    keep_vectors: bool
    usable: list[Reply] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __call__(self, replies: Iterator[Reply]) -> Iterator[Reply]:
        for reply in replies:
            if problem := self._problem(reply):
                self.failed.append(reply.client)
                self.warnings.append(f"Round {self.round}: client {reply.client} is left out: {problem}.")
                continue
            yield reply
            self.usable.append(reply if self.keep_vectors else replace(reply, vector=None))

    def _problem(self, reply: Reply) -> str | None:
        if reply.failure is not None:
            return reply.failure.rstrip(".")
        if reply.vector is None or reply.vector.shape != (self.size,):
            length = 0 if reply.vector is None else reply.vector.size
            return f"it sent {length:,} weights where the model has {self.size:,}"
        if not np.isfinite(reply.vector).all():
            return "its weights are not all finite"
        return None

    @property
    def train_loss(self) -> float | None:
        losses = [reply.metrics["loss"] for reply in self.usable if math.isfinite(reply.metrics.get("loss", math.nan))]
        return float(np.mean(losses)) if losses else None


def rounds(
    engine: Engine,
    selector: Selector,
    aggregator: Aggregator,
    evaluate: Evaluate,
    plan: Plan,
    theta: Vector,
    done: int = 0,
    lost_in_a_row: int = 0,
) -> Iterator[Round]:
    """Rounds `done + 1 … plan.rounds` from θ. T counts model updates, so the pre-training rounds are part of it."""
    meter = Meter(engine)
    for number in range(done + 1, plan.rounds + 1):
        start = time.perf_counter()
        clients = engine.clients
        task = replace(plan.train, round=number)
        warnings: list[str] = []

        if number <= selector.pretraining_rounds:
            phase, selected, step = "pretraining", sorted(clients), Aggregator().step
            task = replace(task, prox_mu=0.0)
        else:
            phase, step = "selected", aggregator.step
            generator = rng(task.seed, "select", number)
            selected = selector.choose(number, plan.num_selected, clients, meter.with_theta(theta), generator)
            _check_choice(selected, clients)
            warnings = [f"Round {number}: {warning}" for warning in (*meter.complaints(), *selector.doubts())]
        selection_seconds = time.perf_counter() - start - meter.waited

        # Largest first, so that no worker is left with a long client at the end.
        asked = sorted(selected, key=lambda k: (-clients[k], k))
        sieve = _Sieve(number, theta.size, selector.wants_updates)
        previous, theta = theta, step(theta, sieve(meter.ask(task, theta, asked)))
        lost_in_a_row = 0 if sieve.usable else lost_in_a_row + 1
        if lost_in_a_row:
            sieve.warnings.append(f"Round {number}: no client sent usable weights; the model stays as it was.")

        observing = time.perf_counter()
        if phase == "selected":
            selector.observe(number, previous, sieve.usable)
        selection_seconds += time.perf_counter() - observing

        evaluated = number % plan.evaluate_every == 0 or number == plan.rounds
        yield Round(
            round=number,
            phase=phase,
            theta=theta,
            selected=selected,
            failed=sieve.failed,
            warnings=warnings + sieve.warnings,
            train_loss=sieve.train_loss,
            test=accuracies(evaluate(theta)) if evaluated else None,
            seconds=time.perf_counter() - start,
            selection_seconds=selection_seconds,
            traffic=meter.take(),
            lost_in_a_row=lost_in_a_row,
        )
        if lost_in_a_row >= MAX_LOST_IN_A_ROW:
            raise RunError(f"No client sent usable weights in {MAX_LOST_IN_A_ROW} rounds in a row. {sieve.warnings[0]}")


def _check_choice(selected: list[int], clients: Collection[int]) -> None:
    """A selector may be anyone's: what it returns must be different clients that are there."""
    if len(set(selected)) < len(selected) or not set(selected) <= set(clients):
        raise RunError(f"The selector chose {selected}, which are not different clients of this federation.")
