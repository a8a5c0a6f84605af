"""Models by name, each with its weights as one vector θ (`FlatModel`).

>>> spec = ModelSpec("cnn", num_classes=2, shape=(3, 28, 28), mean=(0.5,) * 3, std=(0.5,) * 3)
>>> build(spec).vector().shape
(87810,)
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from feddiverse import registry, seeding
from feddiverse.errors import UserError
from feddiverse.messages import Vector
from feddiverse.models.spec import ModelSpec
from feddiverse.models.vector import FlatModel

__all__ = ["FlatModel", "ModelSpec", "build", "initial_theta"]


def build(spec: ModelSpec, device: torch.device | str = "cpu", *, seed: int = 0) -> FlatModel:
    """The model, with fresh weights drawn from `seed` (a client replaces them by θ at once)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeding.integer(seed, "model"))
        module = _module(spec)
    return FlatModel(module, spec, device)


def initial_theta(spec: ModelSpec, seed: int, checkpoint: Path | None = None) -> Vector:
    """θ₀: fresh weights drawn from `seed`, those of a checkpoint put in their place where it has them."""
    model = build(spec, seed=seed)
    _try(model)
    if checkpoint is not None:
        from feddiverse.models.checkpoint import load_into

        load_into(model.module, checkpoint)
    return model.vector()


def _try(model: FlatModel) -> None:
    """Refuse a model that does not take the samples, or does not give one number a class, before clients fail at it."""
    spec, module = model.spec, model.module
    was_training = module.training
    module.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            found = tuple(module(torch.zeros(2, *spec.shape, device=model.device)).shape)
    except Exception as error:
        raise UserError(
            f"The model {spec.name} does not take samples of shape {spec.shape}: {type(error).__name__}: {error}."
        ) from error
    module.train(was_training)
    if found != (2, spec.num_classes):
        raise UserError(
            f"The model {spec.name} gives {found} for two samples, not {(2, spec.num_classes)}: one number a class."
        )


def _module(spec: ModelSpec) -> nn.Module:
    if spec.factory is None and spec.name in registry.MODEL.builtin:
        settings = {"num_classes": spec.num_classes, "shape": spec.shape, "fast": spec.fast}
        built: nn.Module = registry.make(registry.MODEL, spec.name, settings, dict(spec.options))
        return built
    from feddiverse.models import custom

    make: Any = registry.find(registry.MODEL, spec.name) if spec.factory is None else spec.factory
    return custom.build(spec.name, make, spec.num_classes, spec.shape, dict(spec.options))
