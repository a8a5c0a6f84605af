"""The door where clients' answers to questions come in: whoever asks gets only answers that can be used.

A client may be anyone's code. What is no answer is left out by name, and the run is told why.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from feddiverse.messages import Ask, Reply, Task
from feddiverse.server.meter import Asking

TRIPLET = ("ci", "ai", "sc")
ROUNDING = 1e-6  # how far out of [0, 1] a triplet may be that was computed or sent with less precision

Check = Callable[[Reply], str | None]
"""What is wrong with a reply, if anything."""


def answers(
    task: Task,
    clients: Mapping[int, int],
    ask: Ask,
    *,
    length: int | None = None,
    metrics: tuple[str, ...] = (),
    check: Check = lambda reply: None,
) -> Iterator[Reply]:
    """Ask every client, the largest first (so that none is left alone at the end); leave out those without an answer.

    A client may be anyone's code: an answer that lacks one of `metrics`, has a number that is not finite, a vector of
    another length than `length` (None: any), or does not pass `check` is no answer. The loop's `ask` is told, so that
    the run can warn of it.
    """
    ids = sorted(clients, key=lambda k: (-clients[k], k))
    for reply in ask(task, ids):
        if reply.failure is not None:
            continue
        problem = _problem(reply, length, metrics) or check(reply)
        if problem is None:
            yield reply
        elif isinstance(ask, Asking):
            for client in reply.members or (reply.client,):
                ask.leave_out(task, client, problem)


def _problem(reply: Reply, length: int | None, metrics: tuple[str, ...]) -> str | None:
    if missing := [name for name in metrics if name not in reply.metrics]:
        return f"its answer lacks {missing[0]}"
    vector = np.empty(0, np.float32) if reply.vector is None else reply.vector
    if not (np.isfinite(vector).all() and np.isfinite(list(reply.metrics.values())).all()):
        return "its numbers are not all finite"
    if length is not None and vector.size != length:
        return f"it sent {vector.size:,} numbers where {length:,} are expected"
    return None


def check_counts(reply: Reply) -> str | None:
    """A vector of counts has none below zero, and counts something."""
    assert reply.vector is not None
    return "its counts are negative or all zero" if reply.vector.min() < 0 or not reply.vector.any() else None


def check_triplet(reply: Reply) -> str | None:
    """CI, AI and SC are within [0, 1] by definition; selectors rely on it."""
    outside = [name for name in TRIPLET if not -ROUNDING <= reply.metrics[name] <= 1 + ROUNDING]
    return f"its {outside[0]} is {reply.metrics[outside[0]]:g}, not within [0, 1]" if outside else None


def triplet_in(reply: Reply) -> NDArray[np.float64]:
    """The three numbers a client sent, which passed `check_triplet`."""
    return np.clip([reply.metrics[name] for name in TRIPLET], 0.0, 1.0)


@dataclass
class TrainedReplies:
    """Lets usable trained weights through, one at a time, and keeps what the record and the selector need of them."""

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
        """The mean of the losses that clients met while training."""
        losses = [reply.metrics["loss"] for reply in self.usable if math.isfinite(reply.metrics.get("loss", math.nan))]
        return float(np.mean(losses)) if losses else None
