"""MobileNetV2 (Sandler et al. 2018) with GroupNorm, as the paper trains it: 2,226,434 weights for two classes.

Parameters come in the order of torchvision's `features.*` and timm's `mobilenetv2_100`, so that a checkpoint of either
can be matched by order and shape (`checkpoint.py`).
"""

from typing import cast

import torch
from torch import Tensor, nn

GROUPS, EPS = 8, 1e-6
DROPOUT = 0.2
STOCHASTIC_DEPTH = 0.2
STEM, LAST = 32, 1280
STAGES = (  # expansion, channels, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
NUM_BLOCKS = sum(blocks for _, _, blocks, _ in STAGES)


class ConvNorm(nn.Sequential):
    """Convolution, GroupNorm and, if `act`, ReLU6."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1, act: bool = True
    ) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
        norm = nn.GroupNorm(GROUPS, outputs, eps=EPS)
        super().__init__(conv, norm, *([nn.ReLU6(inplace=True)] if act else []))

    @property
    def conv(self) -> nn.Conv2d:
        return cast(nn.Conv2d, self._modules["0"])  # self[0] walks, a hundred times a step

    @property
    def norm(self) -> nn.GroupNorm:
        return cast(nn.GroupNorm, self._modules["1"])

    @property
    def act(self) -> bool:
        return len(self) == 3


class InvertedResidual(nn.Module):
    """Widen by a 1×1 convolution, filter each channel by a 3×3 one, narrow by a 1×1 one; add the input if shapes allow.

    While training, a sample's residual branch is dropped with probability `drop` (stochastic depth, one draw a sample)
    and scaled by 1/(1 − drop) otherwise.
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int, expansion: int, drop: float) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.is_residual = stride == 1 and inputs == outputs
        self.drop = drop if self.is_residual else 0.0
        widen = [ConvNorm(inputs, hidden, 1)] if expansion != 1 else []
        self.branch = nn.Sequential(
            *widen,
            ConvNorm(hidden, hidden, 3, stride=stride, groups=hidden),
            ConvNorm(hidden, outputs, 1, act=False),
        )

    def kept(self, x: Tensor) -> Tensor | None:
        """Whether each sample's branch is kept, [n] of 0 and 1. None when nothing is dropped."""
        if not self.training or self.drop == 0.0:
            return None
        return torch.empty(len(x), dtype=x.dtype, device=x.device).bernoulli_(1.0 - self.drop)

    def survivors(self, x: Tensor) -> Tensor | None:
        """One factor a sample, [n]: 0 if its branch is dropped, else 1/(1 − drop). None when nothing is dropped."""
        kept = self.kept(x)
        return None if kept is None else kept.div_(1.0 - self.drop)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        if not self.is_residual:
            return y
        survivors = self.survivors(x)
        return x + (y if survivors is None else y * survivors.view(-1, 1, 1, 1))


class MobileNetV2(nn.Module):
    """`features` gives 1,280 numbers a picture; the head follows a dropout of 0.2."""

    linear: type[nn.Linear] = nn.Linear

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = ConvNorm(3, STEM, 3, stride=2)
        blocks: list[InvertedResidual] = []
        inputs = STEM
        for expansion, outputs, repeats, first_stride in STAGES:
            for i in range(repeats):
                drop = STOCHASTIC_DEPTH * len(blocks) / NUM_BLOCKS  # rises with depth, as in timm and torchvision
                stride = first_stride if i == 0 else 1
                blocks.append(InvertedResidual(inputs, outputs, stride=stride, expansion=expansion, drop=drop))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = ConvNorm(inputs, LAST, 1)
        self.dropout = nn.Dropout(DROPOUT)
        self.head = self.linear(LAST, num_classes)
        initialise(self)

    def features(self, x: Tensor) -> Tensor:
        """[n, 3, height, width] → [n, 1280]."""
        maps: Tensor = self.last(self.blocks(self.stem(x)))
        return maps.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(self.features(x)))
        return logits


def initialise(model: MobileNetV2) -> None:
    """Fresh weights, drawn as torchvision draws them, from torch's current random state."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
    nn.init.normal_(model.head.weight, 0.0, 0.01)
    nn.init.zeros_(model.head.bias)
