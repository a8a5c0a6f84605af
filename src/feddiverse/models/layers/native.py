"""What is too small for PyTorch's kernels, by a few pages of C (`kernels.c`): layers, MobileNetV2's block, SGD's step.

Maps are laid out [n, height, width, channels]. C believes the sizes and addresses that it is given, so every tensor
passes `_map`, `_gradient` or `_own` on its way: what is not contiguous is copied if it is a map, and whatever else
C would misread raises a ValueError.
"""

import ctypes
import math
from collections.abc import Sequence
from ctypes import c_void_p
from functools import cache, lru_cache
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

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
    statistics, floats = torch.empty(n, groups, 2), _group_norm_workspace(library.C, channels)
    y, workspace = x if tape is None else memory.empty_like(x), memory.workspace(floats)
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
            workspace = memory.workspace(floats)
            library.C.group_norm_backward(
                dy.data_ptr(), x.data_ptr(), weight.data_ptr(), bias.data_ptr(), statistics.data_ptr(),
                dweight.data_ptr(), dbias.data_ptr(), workspace.data_ptr(), *sizes, low, high,
            )  # fmt: skip
            return dy

        tape.append(backward)
    return y


# How much memory C asks for is its library's own: an answer of one would be too little for another.
@cache
def _group_norm_workspace(c: ctypes.CDLL, channels: int) -> int:
    return int(c.group_norm_workspace(channels))


def inverted_residual(x: Tensor, block: InvertedResidual, tape: Tape | None) -> Tensor:
    """A block of MobileNetV2, a few pictures or rows at a time, so that their maps stay in the cache.

    Pictures whose branch is dropped (stochastic depth) cost nothing.
    """
    form = _form(block)
    x = _map(x, form.inputs)
    count, height, width, _ = x.shape
    n, factor, pictures, where = count, 1.0, None, None
    if (kept := block.kept(x)) is not None:
        pictures = kept.nonzero()
        n, factor, where = len(pictures), 1 / (1 - block.drop), pictures.data_ptr()
    together = max(1, min(n, FLOATS_TOGETHER // (height * width * form.hidden)))
    sizes = _sizes(
        library.C, n, height, width, form.inputs, form.hidden, form.outputs, form.stride, form.groups, together,
        form.widens,
    )  # fmt: skip
    parameters, is_residual = form.parameters(), form.is_residual
    addresses = _addresses("the block's parameter", parameters, form.shapes)
    maps = memory.empty(sizes.maps_to_keep if tape is not None else sizes.maps)
    y = memory.empty(count, *sizes.out_sides, form.outputs) if pictures is None else memory.empty_like(x).copy_(x)
    workspace = memory.workspace(sizes.workspace)
    library.C.inverted_residual(
        sizes.shape, addresses, maps.data_ptr(), x.data_ptr(), where, y.data_ptr(), workspace.data_ptr(),
        form.eps, factor, is_residual, tape is not None,
    )  # fmt: skip
    if tape is not None:
        out_shape = y.shape
        alive = (pictures, [parameter.detach() for parameter in parameters])

        # C has addresses only: the default keeps what is there until backward is gone.
        def backward(dy: Tensor, _alive: object = alive) -> Tensor:
            dy = _gradient(dy, out_shape)
            dx = dy if is_residual else memory.empty_like(x)
            gradients = [gradient_of(parameter) for parameter in parameters]
            workspace = memory.workspace(sizes.backward_workspace)
            library.C.inverted_residual_backward(
                sizes.shape, addresses, _addresses("the gradient of the block's parameter", gradients, form.shapes),
                maps.data_ptr(), x.data_ptr(), where, dy.data_ptr(), dx.data_ptr(), workspace.data_ptr(),
                factor, is_residual,
            )  # fmt: skip
            return dx

        tape.append(backward)
    return y


class _Form:
    """What a block is, whatever goes through it: looked at once, since a step would look at it thirty times."""

    def __init__(self, block: InvertedResidual) -> None:
        units = [cast(ConvNorm, unit) for unit in block.branch]
        *widen, filter_, narrow = units
        self.stride = _stride_of_3x3(filter_.conv, filter_.conv.in_channels)
        self.hidden, self.outputs, self.widens = filter_.conv.in_channels, narrow.conv.out_channels, len(widen)
        self.inputs = widen[0].conv.in_channels if widen else self.hidden
        self.groups, self.eps, self.is_residual = narrow.norm.num_groups, narrow.norm.eps, block.is_residual
        if (
            len(widen) > 1
            or any((unit.norm.num_groups, unit.norm.eps) != (self.groups, self.eps) for unit in units)
            or not all(unit.act for unit in (*widen, filter_))
            or narrow.act
            or any(unit.conv._parameters["bias"] is not None for unit in (*widen, narrow))
            or (self.is_residual and (self.stride, self.inputs) != (1, self.outputs))
        ):
            raise ValueError(f"This is no block that widens, filters and narrows as MobileNetV2's do: {block}.")
        hidden, outputs = self.hidden, self.outputs
        self.shapes = [
            (hidden, self.inputs, 1, 1), (hidden,), (hidden,),
            (hidden, 1, 3, 3), (hidden,), (hidden,),
            (outputs, hidden, 1, 1), (outputs,), (outputs,),
        ][0 if widen else 3 :]  # fmt: skip
        self._owners = [
            (owner._parameters, name)
            for unit in units
            for owner, name in ((unit.conv, "weight"), (unit.norm, "weight"), (unit.norm, "bias"))
        ]

    def parameters(self) -> list[Tensor]:
        """The block's parameters as they are now; `conv.weight` would walk, three hundred times a step."""
        return [cast(Tensor, of[name]) for of, name in self._owners]


_forms: WeakKeyDictionary[InvertedResidual, _Form] = WeakKeyDictionary()


def _form(block: InvertedResidual) -> _Form:
    form = _forms.get(block)
    if form is None:
        form = _forms[block] = _Form(block)
    return form


class _Sizes(NamedTuple):
    """Of n pictures of one size in a block, and how many floats C asks for them."""

    shape: Shape
    out_sides: tuple[int, int]
    maps: int
    maps_to_keep: int
    workspace: int
    backward_workspace: int


@lru_cache(maxsize=4096)
def _sizes(c: ctypes.CDLL, *numbers: int) -> _Sizes:
    """`numbers`: those of `Shape`."""
    shape = Shape(*numbers)
    return _Sizes(
        shape,
        ((shape.height - 1) // shape.stride + 1, (shape.width - 1) // shape.stride + 1),
        c.inverted_residual_maps(shape, False),
        c.inverted_residual_maps(shape, True),
        c.inverted_residual_workspace(shape),
        c.inverted_residual_backward_workspace(shape),
    )


def convolution(x: Tensor, conv: nn.Conv2d, tape: Tape | None) -> Tensor:
    """A 3×3 convolution, padded by one, as a product of every window with one matrix."""
    stride, channels, outputs, weight = _stride_of_3x3(conv, 1), conv.in_channels, conv.out_channels, conv.weight
    x = _map(x, channels)
    n, height, width, _ = x.shape
    sizes, floats = _convolution_sizes(library.C, n, height, width, channels, outputs, stride)
    shape = (outputs, channels, 3, 3)
    kernel = _own("the convolution's weight", weight, shape)
    y, workspace = memory.empty(*_output_shape(x, stride), outputs), memory.workspace(floats)
    library.C.convolution(sizes, x.data_ptr(), kernel.data_ptr(), y.data_ptr(), workspace.data_ptr())
    if tape is not None:
        wants_gradient, out_shape = tape.wants_gradient, y.shape

        def backward(dy: Tensor) -> Tensor:
            dy = _gradient(dy, out_shape)
            dx, dkernel = memory.empty_like(x), _own("the weight's gradient", gradient_of(weight), shape)
            workspace = memory.workspace(floats)
            library.C.convolution_backward(
                sizes, dy.data_ptr(), x.data_ptr(), kernel.data_ptr(), dx.data_ptr() if wants_gradient else None,
                dkernel.data_ptr(), workspace.data_ptr(),
            )  # fmt: skip
            return dx

        tape.append(backward)
    return y


@lru_cache(maxsize=4096)
def _convolution_sizes(c: ctypes.CDLL, *numbers: int) -> tuple[Convolution, int]:
    """`numbers`: those of `Convolution`; and how many floats C asks for."""
    sizes = Convolution(*numbers)
    return sizes, c.convolution_workspace(sizes)


def linear(x: Tensor, layer: nn.Linear | nn.Conv2d, tape: Tape | None) -> Tensor:
    """A linear layer on the last axis, […, inputs] → […, outputs]; a 1×1 convolution of maps is one, too."""
    if isinstance(layer, nn.Conv2d) and (
        (layer.kernel_size, layer.stride, layer.padding, layer.groups) != ((1, 1), (1, 1), (0, 0), 1)
    ):
        raise ValueError(f"In C a convolution that is a linear layer is 1×1, not {layer}.")
    gain, offset = layer.weight, layer.bias
    outputs, inputs = gain.shape[:2]
    if x.ndim < 2 or x.shape[-1] != inputs or not usable_for(x):
        raise ValueError(f"This layer takes float32 numbers […, {inputs}] on the CPU, not {_tell(x)}.")
    x = x.contiguous()
    out_shape, sizes = torch.Size((*x.shape[:-1], outputs)), (x.shape[:-1].numel(), inputs, outputs)
    weight = _own("the layer's weight", gain, gain.shape)
    bias = None if offset is None else _own("the layer's bias", offset, (outputs,))
    y, workspace = memory.empty(*out_shape), memory.workspace(_linear_workspace(library.C, inputs, outputs))
    library.C.linear(
        x.data_ptr(), weight.data_ptr(), _address(bias), y.data_ptr(), workspace.data_ptr(), *sizes
    )  # fmt: skip
    if tape is not None:

        def backward(dy: Tensor) -> Tensor:
            dy, dx = _gradient(dy, out_shape), memory.empty_like(x)
            dweight = _own("the weight's gradient", gradient_of(gain), gain.shape)
            dbias = None if offset is None else _own("the bias's gradient", gradient_of(offset), (outputs,))
            library.C.linear_backward(
                dy.data_ptr(),
                x.data_ptr(),
                weight.data_ptr(),
                dx.data_ptr(),
                dweight.data_ptr(),
                _address(dbias),
                *sizes,
            )
            return dx

        tape.append(backward)
    return y


@cache
def _linear_workspace(c: ctypes.CDLL, inputs: int, outputs: int) -> int:
    return int(c.linear_workspace(inputs, outputs))


def average(x: Tensor) -> Tensor:
    """The mean over a map's positions, [n, height, width, channels] → [n, channels]."""
    x = _map(x, x.shape[-1])
    n, height, width, channels = x.shape
    y = torch.empty(n, channels)
    library.C.average(x.data_ptr(), y.data_ptr(), n, height * width, channels)
    return y


def channels_first(x: Tensor, tape: Tape | None) -> Tensor:
    """[n, height, width, channels] → [n, channels, height, width], as PyTorch lays maps out and a head reads them."""
    x = _map(x, x.shape[-1])
    n, height, width, channels = x.shape
    y = memory.empty(n, channels, height, width)
    library.C.turn_maps(x.data_ptr(), y.data_ptr(), n, height * width, channels)
    if tape is not None:

        def backward(dy: Tensor) -> Tensor:
            dy, dx = _gradient(dy, y.shape), memory.empty_like(x)
            library.C.turn_maps(dy.data_ptr(), dx.data_ptr(), n, channels, height * width)
            return dx

        tape.append(backward)
    return y


def look_up(pictures: Tensor, table: Tensor) -> Tensor:
    """Bytes [n, channels, height, width] → floats laid out [n, height, width, channels], by a table [channels, 256]."""
    n, channels, height, width = pictures.shape
    if pictures.dtype is not torch.uint8 or not (pictures.is_cpu and pictures.is_contiguous()):
        raise ValueError(f"Pictures to look up are contiguous bytes on the CPU, not {_tell(pictures)}.")
    numbers = memory.empty(n, height, width, channels)
    of_values = _own("the table of values", table, (channels, 256))
    library.C.look_up(pictures.data_ptr(), of_values.data_ptr(), numbers.data_ptr(), n, channels, height * width)
    return numbers


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


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _addresses(what: str, tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> ctypes.Array[c_void_p]:
    """Where each of a block's nine starts, as `Parameters` in C has them; a block that does not widen has only the last
    six. Checked as `_own` does, without a tensor for each: the caller holds them."""
    for tensor, shape in zip(tensors, shapes, strict=True):
        if tensor.shape != shape or tensor.dtype is not torch.float32 or not (tensor.is_cpu and tensor.is_contiguous()):
            _own(what, tensor, shape)  # raises
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
