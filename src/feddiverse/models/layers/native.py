"""What is too small for PyTorch's kernels, by a few pages of C (`kernels.c`): layers, MobileNetV2's block, SGD's step.

Maps are laid out [n, height, width, channels]. C believes the sizes and addresses that it is given, so every tensor
passes `_map`, `_gradient` or `_own` on its way: what is not contiguous is copied if it is a map, and whatever else
C would misread raises a ValueError.
"""

import ctypes
import math
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from typing import cast

import torch
from torch import Tensor, nn

from feddiverse.models.layers import library
from feddiverse.models.layers.library import Shape
from feddiverse.models.layers.tape import Tape, gradient_of
from feddiverse.models.mobilenet import ConvNorm, InvertedResidual

FLOATS_TOGETHER = 65_536  # of the widest map: a quarter of a megabyte, half of a core's own cache


def usable_for(x: Tensor) -> bool:
    """Whether these layers can take x: single precision, on the CPU, and a library to call."""
    return library.C is not None and x.dtype == torch.float32 and x.is_cpu


def group_norm(
    x: Tensor, norm: nn.GroupNorm, tape: Tape | None, low: float = -math.inf, high: float = math.inf
) -> Tensor:
    """GroupNorm, cut off below `low` and above `high`: (0, ∞) is ReLU, (0, 6) ReLU6. Uses x's memory if it may."""
    channels, groups, gain, offset = norm.num_channels, norm.num_groups, norm.weight, norm.bias
    _check(norm.affine, lambda: f"In C GroupNorm has a weight and a bias, not {norm}.")
    x = _map(x, channels)
    n, height, width, _ = x.shape
    sizes = (n, height * width, channels, groups)
    weight, bias = _own("GroupNorm's weight", gain, (channels,)), _own("GroupNorm's bias", offset, (channels,))
    statistics, workspace = x.new_empty(n, groups, 2), x.new_empty(library.C.group_norm_workspace(channels))
    y = x if tape is None else torch.empty_like(x)
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


def depthwise(x: Tensor, conv: nn.Conv2d, tape: Tape | None) -> Tensor:
    """A 3×3 convolution of each channel by itself, padded by one."""
    channels, stride, weight = conv.in_channels, _stride_of_3x3(conv, conv.in_channels), conv.weight
    x = _map(x, channels)
    sizes, shape = (*x.shape, stride), (channels, 1, 3, 3)
    kernel = _own("the convolution's weight", weight, shape)
    workspace = x.new_empty(library.C.depthwise_workspace(channels))
    y = x.new_empty(*_output_shape(x, stride), channels)
    library.C.depthwise(x.data_ptr(), kernel.data_ptr(), y.data_ptr(), workspace.data_ptr(), *sizes)
    if tape is not None:
        out_shape = y.shape

        def backward(dy: Tensor) -> Tensor:
            dy = _gradient(dy, out_shape)
            dx, dkernel = torch.empty_like(x), _own("the weight's gradient", gradient_of(weight), shape)
            library.C.depthwise_backward(
                dy.data_ptr(), x.data_ptr(), kernel.data_ptr(), dx.data_ptr(), dkernel.data_ptr(),
                workspace.data_ptr(), *sizes,
            )  # fmt: skip
            return dx

        tape.append(backward)
    return y


def inverted_residual(x: Tensor, block: InvertedResidual, tape: Tape | None) -> Tensor:
    """A block of MobileNetV2 that widens, a few pictures at a time, so that their maps stay in the cache.

    Pictures whose branch is dropped (stochastic depth) cost nothing. Needs `library.sgemm()`.
    """
    widen, filter_, narrow = units = [cast(ConvNorm, unit) for unit in block.branch]
    stride = _stride_of_3x3(filter_.conv, filter_.conv.in_channels)
    inputs, hidden, outputs = widen.conv.in_channels, filter_.conv.in_channels, narrow.conv.out_channels
    norm, is_residual, sgemm = narrow.norm, block.is_residual, library.sgemm()
    _check(
        all((u.norm.num_groups, u.norm.eps) == (norm.num_groups, norm.eps) for u in units)
        and (widen.act, filter_.act, narrow.act) == (True, True, False)
        and (widen.conv.bias, narrow.conv.bias) == (None, None)
        and (not is_residual or (stride == 1 and inputs == outputs))
        and sgemm is not None,
        lambda: f"This is no block that widens, filters and narrows as MobileNetV2's do: {block}.",
    )
    x = _map(x, inputs)
    _, height, width, _ = x.shape
    _, *out_sides = _output_shape(x, stride)
    n, factor, pictures, where = len(x), 1.0, None, None
    if (survivors := block.survivors(x)) is not None:
        pictures = survivors.nonzero()
        n, factor, where = len(pictures), 1 / (1 - block.drop), pictures.data_ptr()
    together = min(n, max(1, FLOATS_TOGETHER // (height * width * hidden)))
    shape = Shape(n, height, width, inputs, hidden, outputs, stride, norm.num_groups, together)
    sizes = [
        (hidden, inputs, 1, 1), (hidden,), (hidden,),
        (hidden, 1, 3, 3), (hidden,), (hidden,),
        (outputs, hidden, 1, 1), (outputs,), (outputs,),
    ]  # fmt: skip
    parameters = [p for unit in units for p in (unit.conv.weight, unit.norm.weight, unit.norm.bias)]
    weights = [_own("the block's parameter", *pair) for pair in zip(parameters, sizes, strict=True)]

    maps = x.new_empty(library.C.inverted_residual_maps(shape, tape is not None))
    workspace = x.new_empty(library.C.inverted_residual_workspace(shape))
    y = x.new_empty(len(x), *out_sides, outputs) if pictures is None else x.clone()
    library.C.inverted_residual(
        sgemm, shape, _pointers(weights), maps.data_ptr(), x.data_ptr(), where, y.data_ptr(), workspace.data_ptr(),
        norm.eps, factor, is_residual, tape is not None,
    )  # fmt: skip
    if tape is not None:
        out_shape = y.shape

        # C has the pictures' address only: the default keeps the tensor until backward is gone.
        def backward(dy: Tensor, _alive: Tensor | None = pictures) -> Tensor:
            dy = _gradient(dy, out_shape)
            dx = dy if is_residual else torch.empty_like(x)
            gradients = [
                _own("the gradient of the block's parameter", gradient_of(parameter), size)
                for parameter, size in zip(parameters, sizes, strict=True)
            ]
            workspace = x.new_empty(library.C.inverted_residual_backward_workspace(shape))
            library.C.inverted_residual_backward(
                sgemm, shape, _pointers(weights), _pointers(gradients), maps.data_ptr(), x.data_ptr(), where,
                dy.data_ptr(), dx.data_ptr(), workspace.data_ptr(), factor, is_residual,
            )  # fmt: skip
            return dx

        tape.append(backward)
    return y


def convolution(x: Tensor, conv: nn.Conv2d, tape: Tape | None) -> Tensor:
    """A 3×3 convolution, padded by one, as a product of every window with one matrix."""
    stride, channels, weight = _stride_of_3x3(conv, 1), conv.in_channels, conv.weight
    x = _map(x, channels)
    sizes, shape = (*x.shape, stride), _output_shape(x, stride)
    kernel = weight.detach().permute(0, 2, 3, 1).flatten(1)  # [outputs, 9·channels]
    windows = x.new_empty(math.prod(shape), 9 * channels)
    library.C.windows(x.data_ptr(), windows.data_ptr(), *sizes)
    y = windows.mm(kernel.t()).view(*shape, conv.out_channels)
    if tape is not None:
        wants_gradient, out_shape = tape.wants_gradient, y.shape

        def backward(dy: Tensor) -> Tensor:
            rows = _gradient(dy, out_shape).flatten(0, 2)
            gradient_of(weight).add_(rows.t().mm(windows).view(-1, 3, 3, channels).permute(0, 3, 1, 2))
            if not wants_gradient:
                return dy
            dx, dwindows = torch.empty_like(x), rows.mm(kernel)
            library.C.windows_backward(dwindows.data_ptr(), dx.data_ptr(), *sizes)
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


def _map(x: Tensor, channels: int) -> Tensor:
    """x, contiguous."""
    _check(
        x.ndim == 4 and x.shape[3] == channels and usable_for(x),
        lambda: f"These layers take float32 maps [n, height, width, {channels}] on the CPU, not {_tell(x)}.",
    )
    return x.contiguous()


def _gradient(dy: Tensor, shape: torch.Size) -> Tensor:
    """dy, contiguous, if it may be the gradient of an output of that shape."""
    _check(
        dy.shape == shape and usable_for(dy),
        lambda: f"The gradient of a map {list(shape)} in float32 on the CPU cannot be {_tell(dy)}.",
    )
    return dy.contiguous()


def _own(what: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor's memory, for C to read or write: who holds what this returns keeps it from being given back."""
    _check(
        tensor.shape == shape and tensor.is_contiguous() and usable_for(tensor),
        lambda: f"In C {what} must be contiguous float32 {list(shape)} on the CPU, not {_tell(tensor)}.",
    )
    return tensor.detach()


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[c_void_p]:
    """Where each starts, as a struct of pointers in C has it."""
    return (c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _stride_of_3x3(conv: nn.Conv2d, groups: int) -> int:
    _check(
        conv.kernel_size == (3, 3) and conv.padding == (1, 1) == conv.dilation and conv.stride[0] == conv.stride[1]
        and conv.groups == groups and conv.bias is None and conv.padding_mode == "zeros"
        and conv.out_channels == (conv.in_channels if groups > 1 else conv.out_channels),
        lambda: f"In C a convolution is 3×3, padded by one zero, of {groups} groups, without bias, not {conv}.",
    )  # fmt: skip
    return conv.stride[0]


def _check(is_right: bool, sentence: Callable[[], str]) -> None:
    if not is_right:
        raise ValueError(sentence())


def _tell(tensor: Tensor) -> str:
    strides = "" if tensor.is_contiguous() else f" with strides {list(tensor.stride())}"
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}{strides} on {tensor.device}"


def _output_shape(x: Tensor, stride: int) -> tuple[int, int, int]:
    """Pictures, height and width of what a 3×3 convolution with a padding of one gives."""
    n, height, width, _ = x.shape
    return n, (height - 1) // stride + 1, (width - 1) // stride + 1
