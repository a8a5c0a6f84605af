"""Another small CNN for the digits, of the same size as ours: does a result hold with it too?"""

from torch import Tensor, nn

WIDTHS, HIDDEN, SIDE = (16, 32, 64), 64, 4


class NarrowCNN(nn.Module):
    """Fewer channels, and a hidden layer before the head: 89,426 weights for two classes."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for outputs in WIDTHS:
            conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
            layers += [conv, nn.GroupNorm(8, outputs), nn.ReLU(inplace=True)]
            inputs = outputs
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs * SIDE * SIDE, HIDDEN), nn.ReLU())
        self.head = nn.Linear(HIDDEN, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """[n, 3, 28, 28] → [n, 64]."""
        features: Tensor = self.layers(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def narrow(num_classes: int, shape: tuple[int, int, int]) -> nn.Module:
    return NarrowCNN(num_classes)
