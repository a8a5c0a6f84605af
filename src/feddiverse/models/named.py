"""The built-in models by name, each for any number of classes and the shape of a sample."""

import math

from torch import Tensor, nn

from feddiverse.errors import UserError


def cnn(num_classes: int, shape: tuple[int, ...], fast: bool = True) -> nn.Module:
    """A small GroupNorm CNN for pictures of one or three channels."""
    from feddiverse.models.cnn import CNN
    from feddiverse.models.layers.fast import FastCNN

    channels = _channels("cnn", shape)
    return FastCNN(num_classes, channels) if fast else CNN(num_classes, channels)


def mobilenet(num_classes: int, shape: tuple[int, ...], fast: bool = True) -> nn.Module:
    """MobileNetV2 with GroupNorm, for colour pictures."""
    from feddiverse.models.layers.fast import FastMobileNetV2
    from feddiverse.models.mobilenet import MobileNetV2

    if _channels("mobilenet", shape) != 3:
        raise UserError(f"The model mobilenet takes colour pictures [3, height, width], not samples of shape {shape}.")
    return FastMobileNetV2(num_classes) if fast else MobileNetV2(num_classes)


def mlp(num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Two hidden layers of 64 for rows of numbers (or any array, flattened)."""
    return MLP(num_classes, math.prod(shape))


class MLP(nn.Module):
    """[n, …] → [n, classes] by two hidden layers; its features are the second."""

    WIDTH = 64

    def __init__(self, num_classes: int, inputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(inputs, self.WIDTH), nn.ReLU(), nn.Linear(self.WIDTH, self.WIDTH), nn.ReLU()
        )
        self.head = nn.Linear(self.WIDTH, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """[n, …] → [n, 64]."""
        seen: Tensor = self.body(x.flatten(1))
        return seen

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def _channels(model: str, shape: tuple[int, ...]) -> int:
    if len(shape) != 3:
        raise UserError(
            f"The model {model} takes pictures [channels, height, width], not samples of shape {shape}: use mlp, or a"
            " model of your own."
        )
    return shape[0]
