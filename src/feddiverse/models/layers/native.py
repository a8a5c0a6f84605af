"""What is too small for PyTorch's kernels, by a few pages of C (`kernels.c`): layers, MobileNetV2's block, SGD's step.

Maps are laid out [n, height, width, channels]. C believes the sizes and addresses that it is given, so every tensor
passes `_map`, `_gradient` or `_own` on its way: what is not contiguous is copied if it is a map, and whatever else
C would misread raises a ValueError.
"""

import ctypes
import math
from collections.abc import Sequence
from ctypes import c_void_p
from typing import cast

import torch
from torch import Tensor, nn

from feddiverse.models.layers import library, memory
from feddiverse.models.layers.library import Convolution, Shape
from feddiverse.models.layers.tape import Tape, gradient_of
from feddiverse.models.mobilenet import ConvNorm, InvertedResidual

FLOATS_TOGETHER = 65_536  # of the widest map: a quarter of a megabyte, half of a core's own cache


def usable_for(x: Tensor) -> bool:
    """Whether these layers can take x: single precision, on the CPU, and a library to call."""
    return library.C is not None and x.dtype is torch.float32 and x.is_cpu


def group_norm(
    x: Tensor, norm: nn.GroupNorm, tape: Tape | None, low: float = -math.inf, high: float = math.inf
) -> Tensor:
    """GroupNorm, cut off below `low` and above `high`: (0, ∞) is ReLU, (0, 6) ReLU6. Uses x's memory if it may."""
    channels, groups, gain, offset = norm.num_channels, norm.num_groups, norm.weight, norm.bias
    if not norm.affine:
        raise ValueError(f"In C GroupNorm has a weight and a bias, not {norm}.")
    x = _map(x, channels)
    n, height, width, _ = x.shape
    sizes = (n, height * width, channels, groups)
    weight, bias = _own("GroupNorm's weight", gain, (channels,)), _own("GroupNorm's bias", offset, (channels,))
    statistics, workspace = memory.empty(n, groups, 2), memory.empty(library.C.group_norm_workspace(channels))
    y = x if tape is None else memory.empty_like(x)
    library.C.group_norm(
        x.data_ptr(), weight.data_ptr(), bias.data_ptr(), y.data_ptr(), statistics.data_ptr(), workspace.data_ptr(),
        *sizes, norm.eps, low, high,
    )  # fmt: skip
    if tape is not None:
        out_shape = y.shape

        def backward(dy: Tensor) -> Tensor:
            dy = _gradient(dy, out_shape)
            dweight = _own("the weight's gradient", gradient_of(gain), (channels,))
            dbias = _own("the bias's gradient", gradient_of(offset), (channels,))
            library.C.group_norm_backward(
                dy.data_ptr(), x.data_ptr(), weight.data_ptr(), bias.data_ptr(), statistics.data_ptr(),
                dweight.data_ptr(), dbias.data_ptr(), workspace.data_ptr(), *sizes, low, high,
            )  # fmt: skip
            return dy

        tape.append(backward)
    return y


def inverted_residual(x: Tensor, block: InvertedResidual, tape: Tape | None) -> Tensor:
    """A block of MobileNetV2, a few pictures or rows at a time, so that their maps stay in the cache.

    Pictures whose branch is dropped (stochastic depth) cost nothing.
    """
    units = [cast(ConvNorm, unit) for unit in block.branch]
    *widen, filter_, narrow = units
    stride = _stride_of_3x3(filter_.conv, filter_.conv.in_channels)
    hidden, outputs = filter_.conv.in_channels, narrow.conv.out_channels
    inputs = widen[0].conv.in_channels if widen else hidden
    norm, is_residual = narrow.norm, block.is_residual
    if (
        len(widen) > 1
        or any(unit.norm.num_groups != norm.num_groups or unit.norm.eps != norm.eps for unit in units)
        or not all(unit.act for unit in (*widen, filter_))
        or narrow.act
        or any(unit.conv._parameters["bias"] is not None for unit in (*widen, narrow))
        or (is_residual and (stride, inputs) != (1, outputs))
    ):
        raise ValueError(f"This is no block that widens, filters and narrows as MobileNetV2's do: {block}.")
    x = _map(x, inputs)
    _, height, width, _ = x.shape
    _, *out_sides = _output_shape(x, stride)
    n, factor, pictures, where = len(x), 1.0, None, None
    if (survivors := block.survivors(x)) is not None:
        pictures = survivors.nonzero()
        n, factor, where = len(pictures), 1 / (1 - block.drop), pictures.data_ptr()
    together = max(1, min(n, FLOATS_TOGETHER // (height * width * hidden)))
    shape = Shape(n, height, width, inputs, hidden, outputs, stride, norm.num_groups, together, len(widen))
    sizes = [
        (hidden, inputs, 1, 1), (hidden,), (hidden,),
        (hidden, 1, 3, 3), (hidden,), (hidden,),
        (outputs, hidden, 1, 1), (outputs,), (outputs,),
    ][0 if widen else 3 :]  # fmt: skip
    parameters = [parameter for unit in units for parameter in _parameters_of(unit)]
    weights = [_own("the block's parameter", *pair) for pair in zip(parameters, sizes, strict=True)]

    maps = memory.empty(library.C.inverted_residual_maps(shape, tape is not None))
    workspace = memory.empty(library.C.inverted_residual_workspace(shape))
    y = memory.empty(len(x), *out_sides, outputs) if pictures is None else memory.empty_like(x).copy_(x)
    library.C.inverted_residual(
        shape, _pointers(weights), maps.data_ptr(), x.data_ptr(), where, y.data_ptr(), workspace.data_ptr(),
        norm.eps, factor, is_residual, tape is not None,
    )  # fmt: skip
    if tape is not None:
        out_shape = y.shape

        # C has the pictures' address only: the default keeps the tensor until backward is gone.
        def backward(dy: Tensor, _alive: Tensor | None = pictures) -> Tensor:
            dy = _gradient(dy, out_shape)
            dx = dy if is_residual else memory.empty_like(x)
            gradients = [
                _own("the gradient of the block's parameter", gradient_of(parameter), size)
                for parameter, size in zip(parameters, sizes, strict=True)
            ]
            workspace = memory.empty(library.C.inverted_residual_backward_workspace(shape))
            library.C.inverted_residual_backward(
                shape, _pointers(weights), _pointers(gradients), maps.data_ptr(), x.data_ptr(), where,
                dy.data_ptr(), dx.data_ptr(), workspace.data_ptr(), factor, is_residual,
            )  # fmt: skip
            return dx

        tape.append(backward)
    return y


def convolution(x: Tensor, conv: nn.Conv2d, tape: Tape | None) -> Tensor:
    """A 3×3 convolution, padded by one, as a product of every window with one matrix."""
    stride, channels, outputs, weight = _stride_of_3x3(conv, 1), conv.in_channels, conv.out_channels, conv.weight
    x = _map(x, channels)
    n, height, width, _ = x.shape
    sizes, shape = Convolution(n, height, width, channels, outputs, stride), (outputs, channels, 3, 3)
    kernel = _own("the convolution's weight", weight, shape)
    workspace = memory.empty(library.C.convolution_workspace(sizes))
    y = memory.empty(*_output_shape(x, stride), outputs)
    library.C.convolution(sizes, x.data_ptr(), kernel.data_ptr(), y.data_ptr(), workspace.data_ptr())
    if tape is not None:
        wants_gradient, out_shape = tape.wants_gradient, y.shape

        def backward(dy: Tensor) -> Tensor:
            dy = _gradient(dy, out_shape)
            dx, dkernel = memory.empty_like(x), _own("the weight's gradient", gradient_of(weight), shape)
            library.C.convolution_backward(
                sizes, dy.data_ptr(), x.data_ptr(), kernel.data_ptr(), dx.data_ptr() if wants_gradient else None,
                dkernel.data_ptr(), workspace.data_ptr(),
            )  # fmt: skip
            return dx

        tape.append(backward)
    return y


def sgd(
    theta: Tensor, gradient: Tensor, velocity: Tensor, start: Tensor | None,
    lr: float, momentum: float, weight_decay: float, mu: float,
) -> None:  # fmt: skip
    """One step along the gradient, which is zeroed, with FedProx's pull of strength µ towards `start`."""
    size = (theta.numel(),)
    for what, vector in (("θ", theta), ("the gradient", gradient), ("the velocity", velocity)):
        _own(what, vector, size)
    where = None if start is None else _own("the start", start, size).data_ptr()
    library.C.sgd(
        theta.data_ptr(), gradient.data_ptr(), velocity.data_ptr(), where, *size, lr, momentum, weight_decay, mu
    )


def _parameters_of(unit: ConvNorm) -> tuple[Tensor, Tensor, Tensor]:
    norm = unit.norm._parameters  # norm.weight walks, three hundred times a step
    return cast(tuple[Tensor, Tensor, Tensor], (unit.conv._parameters["weight"], norm["weight"], norm["bias"]))


def _map(x: Tensor, channels: int) -> Tensor:
    """x, contiguous."""
    if x.ndim != 4 or x.shape[3] != channels or not usable_for(x):
        raise ValueError(f"These layers take float32 maps [n, height, width, {channels}] on the CPU, not {_tell(x)}.")
    return x.contiguous()


def _gradient(dy: Tensor, shape: torch.Size) -> Tensor:
    """dy, contiguous, if it may be the gradient of an output of that shape."""
    if dy.shape != shape or not usable_for(dy):
        raise ValueError(f"The gradient of a map {list(shape)} in float32 on the CPU cannot be {_tell(dy)}.")
    return dy.contiguous()


def _own(what: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor's memory, for C to read or write: who holds what this returns keeps it from being given back."""
    if tensor.shape != shape or not usable_for(tensor) or not tensor.is_contiguous():
        raise ValueError(f"In C {what} must be contiguous float32 {list(shape)} on the CPU, not {_tell(tensor)}.")
    return tensor.detach()


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[c_void_p]:
    """Where each of a block's nine starts, as `Parameters` in C has them; a block that does not widen has only the last
    six."""
    return (c_void_p * 9)(*[None] * (9 - len(tensors)), *[tensor.data_ptr() for tensor in tensors])


def _stride_of_3x3(conv: nn.Conv2d, groups: int) -> int:
    stride, other_stride = conv.stride
    if (
        (conv.kernel_size, conv.padding, conv.dilation, conv.padding_mode) != ((3, 3), (1, 1), (1, 1), "zeros")
        or stride != other_stride
        or conv.groups != groups
        or (groups > 1 and conv.out_channels != groups)
        or conv._parameters["bias"] is not None
    ):
        raise ValueError(f"In C a convolution is 3×3, padded by a zero, in {groups} groups, without bias, not {conv}.")
    return stride


def _tell(tensor: Tensor) -> str:
    strides = "" if tensor.is_contiguous() else f" with strides {list(tensor.stride())}"
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}{strides} on {tensor.device}"


def _output_shape(x: Tensor, stride: int) -> tuple[int, int, int]:
    """Pictures, height and width of what a 3×3 convolution with a padding of one gives."""
    n, height, width, _ = x.shape
    return n, (height - 1) // stride + 1, (width - 1) // stride + 1
