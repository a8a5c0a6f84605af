"""Local SGD: what a client does with θ and its own samples (paper, Sec. III-A and V-B)."""

import math
from collections.abc import Iterator
from contextlib import closing, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from feddiverse import seeding
from feddiverse.client.augmentation import Augment, augmentation
from feddiverse.client.draws import epoch
from feddiverse.client.moon import Contrast
from feddiverse.data.federation import Samples
from feddiverse.messages import Sketch, Train, Vector
from feddiverse.models import FlatModel
from feddiverse.models.layers import native
from feddiverse.models.layers.fast import ByHand


class Diverged(Exception):
    """The loss is no longer a finite number: nothing this client could send is of use."""


class Trained(NamedTuple):
    loss: float  # mean over the steps
    steps: int


def train(task: Train | Sketch, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Trained:
    """`epochs` passes of SGD from θ; the trained weights are left in `model`.

    Minimises cross-entropy plus FedProx's (µ/2)·‖θ_k − θ‖². The paper writes that norm unsquared; we square it,
    as FedProx does, so the term's gradient is µ·(θ_k − θ). FedDyn shifts θ in it, MOON adds a loss of its own
    (`server.objectives`). Momentum starts at zero in every task: clients keep no state.
    """
    memory = task.memories.get(client_id)
    model.load(theta)
    model.module.train()
    # torch.manual_seed would also queue the seed for devices that are not used, with a traceback each time
    seed_torch = torch.default_generator.manual_seed if model.device.type == "cpu" else torch.manual_seed
    seed_torch(seeding.integer(task.seed, "dropout", task.round, client_id))
    rng = seeding.rng(task.seed, "train", task.round, client_id)
    augment = augmentation(task, client_id)
    optimiser = SGD(model, task, shift=None if task.moon_mu else memory)
    contrast = Contrast(task, theta, memory, model) if task.moon_mu and memory is not None else None
    losses: list[float] = []
    with closing(contrast) if contrast else nullcontext():
        for _ in range(task.epochs):
            for x, y in batches(samples, epoch(task, client_id, samples, rng), task.batch_size, model, augment):
                losses.append(loss_and_gradient(model, x, y, contrast))
                if not math.isfinite(losses[-1]):
                    raise Diverged(f"the loss was {losses[-1]} at step {len(losses)}; a smaller learning rate may help")
                optimiser.step()
    return Trained(math.fsum(losses) / max(len(losses), 1), len(losses))


def loss_and_gradient(model: FlatModel, x: Tensor, y: Tensor, contrast: Contrast | None) -> float:
    """The batch's mean cross-entropy; its gradient, and that of MOON's loss, is added to `model.grad`."""
    if contrast is None and isinstance(model.module, ByHand) and native.usable_for(x):
        return model.module.loss_and_gradient(x, y)
    views = contrast.views(x) if contrast else []
    loss = functional.cross_entropy(model.module(x), y)
    (loss + contrast.loss(views) if contrast else loss).backward()  # type: ignore[no-untyped-call]
    return loss.item()


def batches(
    samples: Samples,
    order: NDArray[np.int64],
    batch_size: int,
    model: FlatModel,
    augment: Augment | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalised samples and labels in the given order; the last batch may be smaller."""
    for start in range(0, len(order), batch_size):
        ids = order[start : start + batch_size]
        seen = samples.x[ids] if augment is None else augment(samples.x[ids])
        x = model.normalise(torch.from_numpy(seen))
        yield x, torch.from_numpy(samples.y[ids]).to(model.device)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """−log p_y. [n, classes], [n] → [n]."""
    return functional.cross_entropy(logits, y, reduction="none")


def generalised_cross_entropy(logits: Tensor, y: Tensor, q: float) -> Tensor:
    """(1 − p_y^q)/q (Zhang & Sabuncu 2018; paper, Sec. IV-A): q → 0 is cross-entropy, q = 1 the mean absolute error.

    Its gradient is p_y^q times that of cross-entropy: what is easy to learn, such as a spurious attribute, weighs more.
    """
    if q == 0.0:
        return cross_entropy(logits, y)
    log_p = -cross_entropy(logits, y)
    return -torch.expm1(q * log_p) / q


class SGD:
    """torch.optim.SGD's rule, with FedProx's pull towards the start less `shift`, in one pass over the flat vectors."""

    def __init__(self, model: FlatModel, task: Train | Sketch, shift: Vector | None = None) -> None:
        self.task = task
        self._theta, self._grad = model.parameters, model.grad
        self._velocity = torch.zeros_like(self._grad)
        self._start = self._theta.clone() if task.prox_mu else None
        if self._start is not None and shift is not None:
            self._start -= torch.from_numpy(shift[: len(self._start)]).to(self._start.device)
        self._grad.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Move θ along the gradient, and zero the gradient for the next step."""
        task = self.task
        if native.usable_for(self._theta):
            native.sgd(
                self._theta, self._grad, self._velocity, self._start,
                task.lr, task.momentum, task.weight_decay, task.prox_mu,
            )  # fmt: skip
            return
        if self._start is not None:
            self._grad.add_(self._theta, alpha=task.prox_mu).sub_(self._start, alpha=task.prox_mu)
        self._grad.add_(self._theta, alpha=task.weight_decay)
        self._velocity.mul_(task.momentum).add_(self._grad)
        self._theta.sub_(self._velocity, alpha=task.lr)
        self._grad.zero_()
