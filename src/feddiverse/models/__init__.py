"""Models by name, each with its weights as one vector θ (`FlatModel`).

>>> spec = ModelSpec("cnn", num_classes=2, shape=(3, 28, 28), mean=(0.5,) * 3, std=(0.5,) * 3)
>>> build(spec).vector().shape
(87810,)
"""

from pathlib import Path

import torch
from torch import nn

from feddiverse import seeding
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
    if checkpoint is not None:
        from feddiverse.models.checkpoint import load_into

        load_into(model.module, checkpoint)
    return model.vector()


def _module(spec: ModelSpec) -> nn.Module:
    if spec.name == "cnn":
        from feddiverse.models.cnn import CNN
        from feddiverse.models.fast_cnn import FastCNN

        return FastCNN(spec.num_classes) if spec.fast else CNN(spec.num_classes)
    if spec.name == "mobilenet":
        from feddiverse.models.fast_mobilenet import FastMobileNetV2
        from feddiverse.models.mobilenet import MobileNetV2

        return FastMobileNetV2(spec.num_classes) if spec.fast else MobileNetV2(spec.num_classes)
    from feddiverse.models import custom

    return custom.build(spec.name, spec.num_classes, spec.shape)
