"""Local SGD is PyTorch's: the same batches through a plain module and torch.optim.SGD give the same θ."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional

from feddiverse import seeding
from feddiverse.client.tasks import answer
from feddiverse.client.training import train
from feddiverse.data.federation import Samples
from feddiverse.messages import Train
from feddiverse.models import FlatModel, ModelSpec, build, initial_theta
from feddiverse.models.layers import library

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)


def spec_of(name: str, **changes) -> ModelSpec:
    return ModelSpec(name, 2, (3, 28, 28), MEAN, STD, **changes)


def some_samples(n: int, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, 3, 28, 28), dtype=np.uint8)
    images.flags.writeable = False  # as a memory-mapped file is
    return Samples(images, rng.integers(0, 2, n), rng.integers(0, 2, n))


def reference(task: Train, model: FlatModel, client: int, samples: Samples) -> tuple[np.ndarray, list[float]]:
    """The same training written as anybody would with PyTorch."""
    module = copy.deepcopy(model.module).train()
    start = [p.detach().clone() for p in module.parameters()]
    optimiser = torch.optim.SGD(module.parameters(), task.lr, task.momentum, weight_decay=task.weight_decay)
    torch.manual_seed(seeding.integer(task.seed, "dropout", task.round, client))
    rng = seeding.rng(task.seed, "train", task.round, client)
    losses = []
    for _ in range(task.epochs):
        order = rng.permutation(len(samples))
        for ids in np.split(order, range(task.batch_size, len(order), task.batch_size)):
            x = torch.from_numpy(samples.x[ids] / 255).float()
            x = (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
            loss = functional.cross_entropy(module(x), torch.from_numpy(samples.y[ids]))
            losses.append(loss.item())
            proximal = sum(((p - s) ** 2).sum() for p, s in zip(module.parameters(), start, strict=True))
            optimiser.zero_grad()
            (loss + task.prox_mu / 2 * proximal).backward()
            optimiser.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()]).numpy(), losses


TASKS = [
    Train(7, 3, epochs=2, lr=0.05),
    Train(7, 3, batch_size=10, lr=0.05, prox_mu=3.0),
    Train(7, 3, lr=0.05, weight_decay=0.5),
    Train(7, 3, lr=0.05, momentum=0.0),
]


@pytest.mark.parametrize("has_library", [True, False], ids=["in C", "without"])
@pytest.mark.parametrize("task", TASKS, ids=["epochs", "fedprox", "decay", "no-momentum"])
def test_training_is_pytorchs(task, has_library, monkeypatch):
    if not has_library:
        monkeypatch.setattr(library, "C", None)
    spec, samples = spec_of("cnn"), some_samples(65)
    model, theta = build(spec, seed=1), initial_theta(spec, seed=1)
    expected, losses = reference(task, model, 4, samples)
    done = train(task, theta, 4, samples, model)
    np.testing.assert_allclose(model.vector(), expected, rtol=1e-3, atol=2e-5)
    assert done.steps == len(losses)
    assert done.loss == pytest.approx(np.mean(losses), rel=1e-4)
    assert np.abs(model.vector() - theta).max() > 1e-3


def test_fast_mobilenet_trains_as_the_plain_one():
    """One step: later ones amplify a ReLU6 that rounding put on the other side of its corner."""
    samples, task = some_samples(15), Train(1, 2, batch_size=15, lr=0.01)
    theta = initial_theta(spec_of("mobilenet"), seed=0)
    plain, fast = (build(spec_of("mobilenet", fast=fast)) for fast in (False, True))
    train(task, theta, 0, samples, plain)
    train(task, theta, 0, samples, fast)
    moved = np.linalg.norm(plain.vector() - theta)
    assert np.linalg.norm(fast.vector() - plain.vector()) < 0.02 * moved


@pytest.mark.parametrize("name", ["cnn", "mobilenet"])
def test_same_task_same_bits_whatever_ran_before(name):
    spec, samples, task = spec_of(name), some_samples(40), Train(0, 1, lr=0.01)
    theta = initial_theta(spec, 0)
    model = build(spec)
    first = answer(task, theta, 3, samples, model).vector
    answer(Train(0, 2, lr=0.1, momentum=0.5), theta, 5, some_samples(9, seed=2), model)
    torch.manual_seed(99)
    again = answer(task, theta, 3, samples, model).vector
    other = answer(task, theta, 3, samples, build(spec)).vector
    assert np.array_equal(first, again)
    assert np.array_equal(first, other)
    assert not np.array_equal(first, answer(Train(0, 2, lr=0.01), theta, 3, samples, model).vector)


@pytest.mark.parametrize("theta_value", [np.nan, np.inf])
def test_a_loss_that_is_no_number_ends_the_task(theta_value):
    spec = spec_of("cnn")
    theta = initial_theta(spec, 0)
    theta[-1] = theta_value
    reply = answer(Train(0, 1), theta, 8, some_samples(60), build(spec))
    assert reply.vector is None
    assert "loss was nan at step 1" in reply.failure
    assert reply.client == 8


def test_divergence_is_noticed_and_the_next_task_is_unharmed():
    spec, samples = spec_of("cnn"), some_samples(60)
    model, theta = build(spec), initial_theta(spec, 0)
    good = answer(Train(0, 1), theta, 0, samples, model).vector
    assert "loss was" in answer(Train(0, 1, lr=1e30, epochs=3), theta, 0, samples, model).failure
    assert np.array_equal(good, answer(Train(0, 1), theta, 0, samples, model).vector)
