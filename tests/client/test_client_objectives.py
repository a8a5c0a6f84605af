"""FedDyn's and MOON's objectives on a client, against their definitions by plain autograd."""

from contextlib import closing

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from feddiverse.client import training
from feddiverse.client.moon import Contrast
from feddiverse.data.federation import Samples
from feddiverse.messages import Train
from feddiverse.models import FlatModel, ModelSpec, build

CLIENT = 3


def setting() -> tuple[FlatModel, Samples, np.ndarray]:
    rng = np.random.default_rng(0)
    samples = Samples(rng.normal(size=(24, 5)).astype(np.float32), rng.integers(0, 3, 24), None)
    model = build(ModelSpec("mlp", 3, (5,), None, None))
    return model, samples, model.vector()


def batches_of(task: Train, samples: Samples, model: FlatModel) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from feddiverse import seeding

    rng = seeding.rng(task.seed, "train", task.round, CLIENT)
    return list(training.batches(samples, rng.permutation(len(samples)), task.batch_size, model))


@pytest.mark.parametrize("prox_mu", [0.0, 0.3])
def test_feddyn_minimises_its_definition(prox_mu: float) -> None:
    """L(θ_k) − ⟨g_k, θ_k⟩ + α/2‖θ_k − θ‖² with g_k = −α·h_k, beside FedProx's term if there is one."""
    from feddiverse.server.objectives import FedDyn

    model, samples, theta = setting()
    h = np.random.default_rng(1).normal(size=theta.size).astype(np.float32)
    objective = FedDyn(alpha=0.5)
    objective.memories = {CLIENT: h, 7: h}
    task = objective.prepare(Train(0, 1, batch_size=8, lr=0.1, momentum=0.0, prox_mu=prox_mu), [CLIENT, 7])
    training.train(task, theta, CLIENT, samples, model)
    trained = model.vector()

    model.load(theta)
    start, memory = torch.from_numpy(theta), torch.from_numpy(h)
    for x, y in batches_of(task, samples, model):
        weights = model.theta.clone().requires_grad_()
        own = torch.func.functional_call(model.module, _named(model, weights), (x,))
        term = 0.5 * memory @ weights + 0.25 * (weights - start).square().sum()
        loss = functional.cross_entropy(own, y) + term + prox_mu / 2 * (weights - start).square().sum()
        (gradient,) = torch.autograd.grad(loss, weights)
        model.theta -= 0.1 * gradient
    np.testing.assert_allclose(trained, model.vector(), atol=2e-6)


def test_moon_minimises_its_definition() -> None:
    model, samples, theta = setting()
    previous = theta + np.random.default_rng(1).normal(scale=0.2, size=theta.size).astype(np.float32)
    task = Train(
        0, 1, batch_size=8, lr=0.1, momentum=0.0, moon_mu=2.0, moon_temperature=0.4, memories={CLIENT: previous}
    )
    training.train(task, theta, CLIENT, samples, model)
    trained = model.vector()
    plain = Train(0, 1, batch_size=8, lr=0.1, momentum=0.0)

    def seen(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        named = {name.removeprefix("body."): w for name, w in _named(model, weights).items() if "body" in name}
        return torch.func.functional_call(model.module.body, named, (x,))

    model.load(theta)
    for x, y in batches_of(task, samples, model):
        weights = model.theta.clone().requires_grad_()
        z, near, far = (seen(w, x) for w in (weights, torch.from_numpy(theta), torch.from_numpy(previous)))
        near, far = (torch.exp(functional.cosine_similarity(z, other, dim=1) / 0.4) for other in (near, far))
        own = torch.func.functional_call(model.module, _named(model, weights), (x,))
        loss = functional.cross_entropy(own, y) - 2.0 * torch.log(near / (near + far)).mean()
        (gradient,) = torch.autograd.grad(loss, weights)
        model.theta -= 0.1 * gradient
    np.testing.assert_allclose(trained, model.vector(), atol=2e-6)

    training.train(plain, theta, CLIENT, samples, model)
    without = model.vector()
    assert not np.allclose(trained, without, atol=1e-3)
    # A client without a memory trains plainly.
    training.train(Train(0, 1, batch_size=8, lr=0.1, momentum=0.0, moon_mu=2.0), theta, CLIENT, samples, model)
    np.testing.assert_array_equal(model.vector(), without)


def test_contrast_leaves_the_model_as_it_was() -> None:
    model, samples, theta = setting()
    model.module.train()
    model.load(theta + 1)
    contrast = Contrast(Train(0, 1, moon_mu=1.0), theta, theta * 0, model)
    views = contrast.views(torch.from_numpy(samples.x))
    np.testing.assert_array_equal(model.vector(), theta + 1)
    assert model.module.training
    assert all(view.shape == (24, 64) for view in views)
    contrast.close()
    assert not model.module.head._forward_pre_hooks


def test_contrast_sees_what_a_dropout_before_the_head_hides() -> None:
    """θ and the last model see without dropout: a model that equals θ sees the same, whatever is dropped."""
    dropping = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))
    model = build(ModelSpec("dropping", 3, (5,), None, None, factory=dropping))
    model.module.train()
    theta, x = model.vector(), torch.randn(8, 5)
    with closing(Contrast(Train(0, 1, moon_mu=1.0), theta, theta * 0.5, model)) as contrast:
        views = contrast.views(x)
        model.module(x)
        torch.testing.assert_close(contrast._seen[-1], views[0])
        assert contrast._seen[-1].requires_grad
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.module.modules())


def _named(model: FlatModel, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """The module's parameters as views of `weights`, by name."""
    named, end = {}, 0
    for name, parameter in model.module.named_parameters():
        start, end = end, end + parameter.numel()
        named[name] = weights[start:end].view(parameter.shape)
    return named
