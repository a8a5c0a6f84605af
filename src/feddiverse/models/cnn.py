"""A small GroupNorm CNN that learns digits from scratch: the default model, and the tests'."""

import torch
from torch import Tensor, nn

GROUPS = 8
WIDTHS = (32, 64, 128)


class CNN(nn.Module):
    """Three 3×3 convolutions of stride 2, each with GroupNorm and ReLU, a global average, a linear head.

    93,730 weights for two classes. Takes pictures of any size.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in zip((3, *WIDTHS), WIDTHS, strict=False):
            layers += [
                nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
                nn.GroupNorm(GROUPS, outputs),
                nn.ReLU(inplace=True),
            ]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTHS[-1], num_classes)

    def features(self, x: Tensor) -> Tensor:
        """[n, 3, height, width] → [n, 128]."""
        maps: Tensor = self.layers(x)
        return maps.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def build(num_classes: int) -> CNN:
    model = CNN(num_classes)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    torch.nn.init.zeros_(model.head.bias)
    return model
