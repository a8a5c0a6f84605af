"""A trained model in a file others can read: named tensors in safetensors, and what is needed to use them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from feddiverse import files
from feddiverse.errors import UserError
from feddiverse.messages import Vector
from feddiverse.models import FlatModel, ModelSpec, build

KEY = "feddiverse"
BATCH = 64


def rebuild(about: dict[str, Any], theta: Vector | None, factory: Any = None) -> FlatModel:
    """The model that `about` (a run's `model.json`) describes, with weights θ, in evaluation mode."""
    spec = ModelSpec(
        about["model"],
        int(about["num_classes"]),
        tuple(about["shape"]),
        about["mean"] and tuple(about["mean"]),
        about["std"] and tuple(about["std"]),
        fast=False,
        factory=factory,
    )
    model = build(spec)
    if theta is not None:
        model.load(theta)
    model.module.eval()
    return model


def predict(model: FlatModel, about: dict[str, Any], x: NDArray[Any]) -> NDArray[Any]:
    """The class of each sample, as its label was given."""
    shape = tuple(about["shape"])
    if x.shape[1:] != shape:
        raise UserError(f"The model takes samples of shape {shape}, not {x.shape[1:]}.")
    if (x.dtype == np.uint8) != (about["mean"] is not None):
        wanted = "pictures in uint8" if about["mean"] is not None else "floats"
        raise UserError(f"The model was trained on {wanted}, not on {x.dtype}.")
    with torch.inference_mode():
        parts = [
            model.module(model.normalise(torch.from_numpy(x[i : i + BATCH]))).argmax(1).cpu().numpy()
            for i in range(0, len(x), BATCH)
        ]
    places = np.concatenate([np.empty(0, np.int64), *parts])
    classes: NDArray[Any] = np.asarray(about["classes"])
    return np.asarray(classes[places])


def save(path: Path, model: FlatModel, about: dict[str, Any]) -> Path:
    """Write tensors by name, and `about` as metadata."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.module.state_dict().items()}
    files.write(path, to_bytes(tensors, metadata={KEY: json.dumps(about, ensure_ascii=False)}))
    return path


def read(path: Path, factory: Any = None) -> FlatModel:
    """The model in a file that `save` wrote."""
    about, tensors = read_file(path)
    model = rebuild(about, None, factory)
    with torch.no_grad():
        state = model.module.state_dict()
        if set(state) != set(tensors):
            differing = min(set(state) ^ set(tensors))
            raise UserError(f"{path} does not fit the model {about['model']}: they differ in {differing}.")
        for name, tensor in state.items():
            tensor.copy_(tensors[name])  # in place: parameters stay views of θ
    return model


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What an exported file says of its model, and its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})[KEY])
            return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is no model that feddiverse exported ({type(error).__name__}: {error}).") from error
