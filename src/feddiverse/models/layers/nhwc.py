"""MobileNetV2's layers by PyTorch's operations, for one CPU thread, on maps laid out [n, height, width, channels].

PyTorch's eager convolutions are made for large maps. On a 28×28 picture most of MobileNetV2 works on 2×2 and 1×1 maps,
where a depthwise convolution's backward costs a hundred times what its arithmetic does. Here a pointwise convolution is
a matrix product, a depthwise one on a tiny map is a few products of whole tensors, and GroupNorm's statistics are
sums over rows. `native.py` does better still, where its library could be compiled.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn

from feddiverse.models.layers.tape import Tape, gradient_of

_aten = torch.ops.aten


def pointwise(x: Tensor, conv: nn.Conv2d, tape: Tape | None) -> Tensor:
    """A 1×1 convolution: every position's channels times one matrix."""
    rows, kernel = x.flatten(0, 2), conv.weight
    weight = kernel.detach().flatten(1)
    if tape is not None:

        def backward(dy: Tensor) -> Tensor:
            columns = dy.flatten(0, 2)
            gradient_of(kernel).view(weight.shape).addmm_(columns.t(), rows)
            return columns.mm(weight).view(x.shape)

        tape.append(backward)
    return rows.mm(weight.t()).view(*x.shape[:3], conv.out_channels)


def depthwise(x: Tensor, conv: nn.Conv2d, tape: Tape | None) -> Tensor:
    """A 3×3 convolution of each channel by itself, padded by one."""
    height, width = x.shape[1:3]
    if height == width == 1:
        return _depthwise_1x1(x, conv, tape)
    if height == width == 2:
        return _depthwise_2x2(x, conv, tape)
    return convolution(x, conv, tape)


def convolution(x: Tensor, conv: nn.Conv2d, tape: Tape | None) -> Tensor:
    """Any convolution, by PyTorch's own."""
    maps, kernel, stride, padding, groups = x.permute(0, 3, 1, 2), conv.weight, conv.stride, conv.padding, conv.groups
    weight = kernel.detach()
    if tape is not None:
        wants_gradient = tape.wants_gradient

        def backward(dy: Tensor) -> Tensor:
            dx, dw, _ = _aten.convolution_backward(
                dy.permute(0, 3, 1, 2), maps, weight, None, stride, padding, [1, 1], False, [0, 0], groups,
                [wants_gradient, True, False],
            )  # fmt: skip
            gradient_of(kernel).add_(dw)
            return cast(Tensor, dx).permute(0, 2, 3, 1) if wants_gradient else dy

        tape.append(backward)
    return torch.conv2d(maps, weight, None, stride, padding, 1, groups).permute(0, 2, 3, 1)


def _depthwise_1x1(x: Tensor, conv: nn.Conv2d, tape: Tape | None) -> Tensor:
    """On a 1×1 map only the kernel's centre ever meets the picture."""
    kernel = conv.weight
    centre = kernel.detach()[:, 0, 1, 1].contiguous()
    if tape is not None:

        def backward(dy: Tensor) -> Tensor:
            gradient_of(kernel)[:, 0, 1, 1].add_((dy * x).sum((0, 1, 2)))
            return dy * centre

        tape.append(backward)
    return x * centre


def _taps_2x2(stride: int) -> Tensor:
    """Which of the 9 taps joins input q to output p on a 2×2 map, [q, p]."""
    taps = [[(qy - stride * py + 1) * 3 + (qx - stride * px + 1) for py, px in _OUTPUTS[stride]] for qy, qx in _CORNERS]
    return torch.tensor(taps)


_CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))
_OUTPUTS = {1: _CORNERS, 2: ((0, 0),)}
_TAPS = {stride: _taps_2x2(stride) for stride in _OUTPUTS}


def _depthwise_2x2(x: Tensor, conv: nn.Conv2d, tape: Tape | None) -> Tensor:
    """On a 2×2 map each output is a sum over the four inputs, each times one tap."""
    n, channels, stride = x.shape[0], x.shape[3], conv.stride[0]
    taps, weight = _TAPS[stride], conv.weight
    kernel = weight.detach().view(channels, 9).t()[taps]  # [q, p, channels]
    corners = x.view(n, 4, 1, channels)
    y = corners[:, 0] * kernel[0]
    for q in range(1, 4):
        y.addcmul_(corners[:, q], kernel[q])
    if tape is not None:

        def backward(dy: Tensor) -> Tensor:
            dy = dy.view(n, 1, -1, channels)
            dkernel = (corners * dy).sum(0)  # [q, p, channels]
            flat = dy.new_zeros(9, channels).index_add_(0, taps.view(-1), dkernel.view(-1, channels))
            gradient_of(weight).view(channels, 9).add_(flat.t())
            dx = dy[:, :, 0] * kernel[:, 0]
            for p in range(1, dy.shape[2]):
                dx.addcmul_(dy[:, :, p], kernel[:, p])
            return dx.view(x.shape)

        tape.append(backward)
    return y.view(n, 2 // stride, 2 // stride, channels)


def group_norm(
    x: Tensor, norm: nn.GroupNorm, tape: Tape | None, low: float = -math.inf, high: float = math.inf
) -> Tensor:
    """GroupNorm, cut off below `low` and above `high`: (0, ∞) is ReLU, (0, 6) ReLU6."""
    x = x.contiguous()
    n, height, width, channels = x.shape
    sizes = (n, channels, height * width, norm.num_groups)
    gain, offset = norm.weight, norm.bias
    weight, bias = gain.detach(), offset.detach()
    maps = x.permute(0, 3, 1, 2)
    if height * width in _SUMMED_BY_ROWS:
        y, mean, rstd = _group_norm_by_rows(x, norm)
    else:
        y, mean, rstd = _aten.native_group_norm(maps, weight, bias, *sizes, norm.eps)
    cut_off = math.isfinite(low) or math.isfinite(high)
    if cut_off:
        y.clamp_(low, high)
    if tape is not None:

        def backward(dy: Tensor) -> Tensor:
            dy = dy.permute(0, 3, 1, 2)
            if cut_off:
                dy = _aten.hardtanh_backward(dy, y, low, high)
            dx, dweight, dbias = _aten.native_group_norm_backward(dy, maps, mean, rstd, weight, *sizes, [True] * 3)
            gradient_of(gain).add_(dweight)
            gradient_of(offset).add_(dbias)
            return cast(Tensor, dx).permute(0, 2, 3, 1)

        tape.append(backward)
    return y.permute(0, 2, 3, 1)


_SUMMED_BY_ROWS = range(100, 1024)


def _group_norm_by_rows(x: Tensor, norm: nn.GroupNorm) -> tuple[Tensor, Tensor, Tensor]:
    """PyTorch's kernel adds along a group's few channels; whole rows first is three times as fast on such maps."""
    n, height, width, channels = x.shape
    groups, size = norm.num_groups, height * width * channels // norm.num_groups
    rows = x.view(n, height * width, channels)
    sums = torch.stack([rows.sum(1), (rows * rows).sum(1)]).view(2, n, groups, -1).sum(3, keepdim=True).div_(size)
    mean = sums[0]  # [n, groups, 1]
    rstd = sums[1].addcmul_(mean, mean, value=-1).clamp_(min=0.0).add_(norm.eps).rsqrt_()
    scale = rstd * norm.weight.detach().view(groups, -1)  # [n, groups, channels of a group]
    shift = torch.addcmul(norm.bias.detach().view(groups, -1), mean, scale, value=-1)
    y = torch.addcmul(shift.view(n, 1, channels), rows, scale.view(n, 1, channels))
    return y.view(x.shape).permute(0, 3, 1, 2), mean.view(n, groups), rstd.view(n, groups)
