"""The small CNN and MobileNetV2 by the hand-written layers: the same weights, outputs and gradients in less time."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from feddiverse.models.cnn import CNN, SIDE
from feddiverse.models.layers import native, nhwc
from feddiverse.models.layers.tape import Tape, play
from feddiverse.models.mobilenet import ConvNorm, InvertedResidual, MobileNetV2

RELU6 = (0.0, 6.0)
MEAN, NO_LABEL = 1, -100  # a loss's reduction, and the label that counts for nothing: as torch numbers them
aten = torch.ops.aten


class Linear(nn.Linear):
    """By C too: PyTorch's products of matrices round differently from one processor to the next."""

    def forward(self, x: Tensor) -> Tensor:
        if not native.usable_for(x) or x.ndim != 2:
            return super().forward(x)
        return play(lambda rows, tape: native.linear(rows, self, tape), x, self.parameters())


class ByHand(nn.Module):
    """A model whose step of training needs no autograd where its layers are C's (`native.usable_for`): its bookkeeping
    was a fourteenth of the small CNN's step."""

    head: nn.Linear

    def loss_and_gradient(self, x: Tensor, y: Tensor) -> float:
        """The mean cross-entropy; its gradient is added to the parameters' `.grad`. What
        `cross_entropy(self(x), y).backward()` does, by the same operations, so to the same bits."""
        with torch.no_grad():
            tape = Tape(wants_input=False)
            log_p = native.linear(self.taped_features(x, tape), self.head, tape).log_softmax(1)
            loss, weight = aten.nll_loss_forward(log_p, y, None, MEAN, NO_LABEL)
            dlog_p = aten.nll_loss_backward(torch.ones_like(loss), log_p, y, None, MEAN, NO_LABEL, weight)
            tape.rewind(aten._log_softmax_backward_data(dlog_p, log_p, 1, log_p.dtype))
        return float(loss)

    def taped_features(self, x: Tensor, tape: Tape) -> Tensor:
        """What the head takes, [n, features]."""
        raise NotImplementedError


class FastCNN(ByHand, CNN):
    """The small CNN, by the layers written in C (see `tape.play`)."""

    input_layout = torch.channels_last
    linear = Linear

    def maps(self, x: Tensor) -> Tensor:
        if not native.usable_for(x):
            return super().maps(x)
        return play(self._run, x.permute(0, 2, 3, 1).contiguous(), self.layers.parameters())

    def taped_features(self, x: Tensor, tape: Tape) -> Tensor:
        maps = pooled = self._run(x.permute(0, 2, 3, 1).contiguous(), tape)
        if maps.shape[2:] != (SIDE, SIDE):
            pooled = functional.adaptive_avg_pool2d(maps, SIDE)
            tape.append(lambda dy: aten._adaptive_avg_pool2d_backward(dy, maps))
        tape.append(lambda dy: dy.view(pooled.shape))
        return pooled.flatten(1)

    def _run(self, x: Tensor, tape: Tape | None) -> Tensor:
        for layer in self.layers:
            conv, norm, _ = cast(tuple[nn.Conv2d, nn.GroupNorm, nn.ReLU], layer)
            x = native.group_norm(native.convolution(x, conv, tape), norm, tape, 0.0)
        return native.channels_first(x, tape)


class FastMobileNetV2(ByHand, MobileNetV2):
    """MobileNetV2, several times as fast on a CPU (see `tape.play`)."""

    input_layout = torch.channels_last
    linear = Linear

    def features(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return super().features(x)
        parameters = (p for part in (self.stem, self.blocks, self.last) for p in part.parameters())
        return play(self._run, x.permute(0, 2, 3, 1).contiguous(), parameters)

    def taped_features(self, x: Tensor, tape: Tape) -> Tensor:
        features = self._run(x.permute(0, 2, 3, 1).contiguous(), tape)
        if not self.training:
            return features
        kept = 1.0 - self.dropout.p
        factor = torch.empty_like(features).bernoulli_(kept).div_(kept)
        tape.append(lambda dy: dy.mul_(factor))
        return features * factor

    def _run(self, x: Tensor, tape: Tape | None) -> Tensor:
        maps = _norm(_stem(x, self.stem.conv, tape), self.stem, tape)
        for block in self.blocks:
            maps = _block(maps, cast(InvertedResidual, block), tape)
        return _average(_unit(maps, self.last, tape), tape)


def _stem(x: Tensor, conv: nn.Conv2d, tape: Tape | None) -> Tensor:
    return (native.convolution if native.usable_for(x) else nhwc.convolution)(x, conv, tape)


def _unit(x: Tensor, unit: ConvNorm, tape: Tape | None) -> Tensor:
    pointwise = native.linear if native.usable_for(x) else nhwc.pointwise
    return _norm((pointwise if unit.conv.groups == 1 else nhwc.depthwise)(x, unit.conv, tape), unit, tape)


def _norm(x: Tensor, unit: ConvNorm, tape: Tape | None) -> Tensor:
    group_norm = native.group_norm if native.usable_for(x) else nhwc.group_norm
    return group_norm(x, unit.norm, tape, *(RELU6 if unit.act else ()))


def _block(x: Tensor, block: InvertedResidual, tape: Tape | None) -> Tensor:
    if native.usable_for(x):
        return native.inverted_residual(x, block, tape)
    if not block.is_residual:
        return _branch(x, block, tape)
    branch = Tape(wants_input=True)
    y = _branch(x, block, None if tape is None else branch)
    survivors = block.survivors(x)
    factor = None if survivors is None else survivors.view(-1, 1, 1, 1)
    if tape is not None:

        def backward(dy: Tensor) -> Tensor:
            return branch.rewind(dy.clone() if factor is None else dy * factor).add_(dy)

        tape.append(backward)
    return y.add_(x) if factor is None else torch.addcmul(x, y, factor)


def _branch(x: Tensor, block: InvertedResidual, tape: Tape | None) -> Tensor:
    for unit in block.branch:
        x = _unit(x, cast(ConvNorm, unit), tape)
    return x


def _average(x: Tensor, tape: Tape | None) -> Tensor:
    """The global average, [n, height, width, channels] → [n, channels]."""
    shape = x.shape
    if tape is not None:
        size = shape[1] * shape[2]
        tape.append(lambda dy: (dy / size).view(len(dy), 1, 1, -1).expand(shape).contiguous())
    return native.average(x) if native.usable_for(x) else x.mean((1, 2))
