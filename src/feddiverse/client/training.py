"""Local SGD: what a client does with θ and its own pictures (paper, Sec. III-A and V-B)."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from feddiverse import seeding
from feddiverse.federation import Samples
from feddiverse.messages import Sketch, Train, Vector
from feddiverse.models import FlatModel


class Diverged(Exception):
    """The loss is no longer a finite number: nothing this client could send is of use."""


class Trained(NamedTuple):
    loss: float  # mean over the steps
    steps: int


def train(task: Train | Sketch, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Trained:
    """`epochs` passes of SGD from θ; the trained weights are left in `model`.

    Minimises cross-entropy plus FedProx's (µ/2)·‖θ_k − θ‖². The paper writes that norm unsquared; we square it,
    as FedProx does, so the term's gradient is µ·(θ_k − θ). Momentum starts at zero in
    every task: clients keep no state.
    """
    model.load(theta)
    model.module.train()
    torch.manual_seed(seeding.integer(task.seed, "dropout", task.round, client_id))
    rng = seeding.rng(task.seed, "train", task.round, client_id)
    optimiser = SGD(model, task)
    losses: list[float] = []
    for _ in range(task.epochs):
        for images, y in batches(samples, rng.permutation(len(samples)), task.batch_size, model):
            loss = functional.cross_entropy(model.module(images), y)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                raise Diverged(f"the loss was {losses[-1]} at step {len(losses)}; a smaller learning rate may help")
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return Trained(math.fsum(losses) / max(len(losses), 1), len(losses))


def batches(
    samples: Samples, order: NDArray[np.int64], batch_size: int, model: FlatModel
) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalised pictures and labels in the given order; the last batch may be smaller."""
    for start in range(0, len(order), batch_size):
        ids = order[start : start + batch_size]
        images = model.normalise(torch.from_numpy(samples.images[ids]))
        yield images, torch.from_numpy(samples.y[ids]).to(model.device)


class SGD:
    """torch.optim.SGD's rule over the flat vectors, in place, in blocks that stay in the processor's cache.

    A step reads gradients, zeroes them for the next one, and adds weight decay and FedProx's pull towards the start.
    """

    BLOCK = 1 << 16

    def __init__(self, model: FlatModel, task: Train | Sketch) -> None:
        self.task = task
        block = self.BLOCK if model.device.type == "cpu" else max(model.num_parameters, 1)
        theta, grad = model.parameters, model.grad
        grad.zero_()
        self._start = theta.clone() if task.prox_mu else theta
        self._blocks = list(
            zip(*(torch.split(t, block) for t in (theta, grad, torch.zeros_like(theta), self._start)), strict=True)
        )

    @torch.no_grad()
    def step(self) -> None:
        lr, momentum, decay, mu = self.task.lr, self.task.momentum, self.task.weight_decay, self.task.prox_mu
        for theta, grad, velocity, start in self._blocks:
            if decay:
                grad.add_(theta, alpha=decay)
            if mu:
                grad.add_(theta, alpha=mu).sub_(start, alpha=mu)
            if momentum:
                velocity.mul_(momentum).add_(grad)
                theta.add_(velocity, alpha=-lr)
            else:
                theta.add_(grad, alpha=-lr)
            grad.zero_()
