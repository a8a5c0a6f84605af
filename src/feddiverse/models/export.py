"""A trained model to use, and in a file others can read: named tensors in safetensors, and how to feed them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import nn

from feddiverse import files
from feddiverse.errors import UserError
from feddiverse.messages import Vector
from feddiverse.models import FlatModel, ModelSpec, build
from feddiverse.models.custom import without_features

KEY = "feddiverse"
BATCH = 64


@dataclass(frozen=True)
class TrainedModel:
    """A model in evaluation mode with what its `model.json` says: shape and normalisation of samples, class names."""

    flat: FlatModel
    about: dict[str, Any]

    @property
    def module(self) -> nn.Module:
        """The module itself; a user's own is as it was given."""
        return without_features(self.flat.module)

    def predict(self, x: NDArray[Any]) -> NDArray[Any]:
        """The class of each sample, as its label was given."""
        classes: NDArray[Any] = np.asarray(self.about["classes"])
        return np.asarray(classes[self.probabilities(x).argmax(axis=1)])

    def probabilities(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """[n, classes]: the softmax of the model's answers to uint8 pictures or floats, as in training."""
        shape = tuple(self.about["shape"])
        if x.shape[1:] != shape:
            raise UserError(f"The model takes samples of shape {shape}, not {x.shape[1:]}.")
        if (x.dtype == np.uint8) != (self.about["mean"] is not None):
            wanted = "pictures in uint8" if self.about["mean"] is not None else "floats"
            raise UserError(f"The model was trained on {wanted}, not on {x.dtype}.")
        with torch.inference_mode():
            parts = [
                self.module(self.flat.normalise(torch.from_numpy(x[i : i + BATCH]))).softmax(1).cpu().numpy()
                for i in range(0, len(x), BATCH)
            ]
        return np.concatenate([np.empty((0, self.about["num_classes"]), np.float32), *parts])

    def save(self, path: Path) -> Path:
        """Write tensors by name, and `about` as metadata."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.module.state_dict().items()}
        files.write(path, to_bytes(tensors, metadata={KEY: json.dumps(self.about, ensure_ascii=False)}))
        return path


def rebuild(about: dict[str, Any], theta: Vector | None, factory: Any = None) -> TrainedModel:
    """The model that `about` (a run's `model.json`) describes, with weights θ."""
    spec = ModelSpec(
        about["model"],
        int(about["num_classes"]),
        tuple(about["shape"]),
        about["mean"] and tuple(about["mean"]),
        about["std"] and tuple(about["std"]),
        fast=False,  # plain PyTorch, which others know how to use
        options=tuple(about.get("options", {}).items()),
        factory=factory,
    )
    flat = build(spec)
    if theta is not None:
        flat.load(theta)
    flat.module.eval()
    return TrainedModel(flat, about)


def read(path: Path, factory: Any = None) -> TrainedModel:
    """The model in a file that `save` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})[KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is no model that feddiverse exported ({type(error).__name__}: {error}).") from error
    model = rebuild(about, None, factory)
    state = model.module.state_dict()
    if differing := sorted(set(state) ^ set(tensors)):
        raise UserError(f"{path} does not fit the model {about['model']}: they differ in {differing[0]}.")
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(tensors[name])  # in place: parameters stay views of θ
    return model
