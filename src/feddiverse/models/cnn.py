"""A small GroupNorm CNN that learns digits from scratch: the default model, and the tests'."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

GROUPS = 8
WIDTHS = (32, 64, 112)
SIDE = 4  # of the last map of a 28×28 picture


class CNN(nn.Module):
    """Three 3×3 convolutions of stride 2, each with GroupNorm and ReLU, and a linear head on the 4×4 map they leave.

    87,810 weights for two classes. Other sizes of pictures are averaged to a 4×4 map.
    """

    linear: type[nn.Linear] = nn.Linear

    def __init__(self, num_classes: int, channels: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(_layer(inputs, outputs) for inputs, outputs in pairwise((channels, *WIDTHS))))
        self.head = self.linear(WIDTHS[-1] * SIDE * SIDE, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """[n, channels, height, width] → [n, 1792]."""
        maps = self.maps(x)
        if maps.shape[2:] != (SIDE, SIDE):
            maps = functional.adaptive_avg_pool2d(maps, SIDE)
        return maps.flatten(1)

    def maps(self, x: Tensor) -> Tensor:
        """[n, channels, height, width] → [n, 112, height/8, width/8]."""
        maps: Tensor = self.layers(x)
        return maps

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def _layer(inputs: int, outputs: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(conv, nn.GroupNorm(GROUPS, outputs), nn.ReLU(inplace=True))
