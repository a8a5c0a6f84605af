"""What is too small for PyTorch's kernels, by a few pages of C (`kernels.c`): layers, MobileNetV2's block, SGD's step.

Maps are laid out [n, height, width, channels], and contiguous.
The library is compiled when the package is installed. Where there was no compiler it is missing, `AVAILABLE` is False,
and the models take PyTorch's own operations instead: the same numbers within rounding, in more time.
"""

import ctypes
import importlib.util
import math
from collections.abc import Sequence
from ctypes import c_double, c_float, c_int, c_long, c_void_p
from itertools import accumulate
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from feddiverse.models.layers.tape import Tape, gradient_of
from feddiverse.models.mobilenet import ConvNorm, InvertedResidual


def _library() -> ctypes.CDLL | None:
    found = importlib.util.find_spec("feddiverse.models.layers._kernels")
    if found is None or found.origin is None:
        return None
    library = ctypes.CDLL(found.origin)
    for name, pointers, sizes, others in (
        ("group_norm", 6, 4, [c_double, c_float, c_float]),
        ("group_norm_backward", 8, 4, [c_float, c_float]),
        ("depthwise", 4, 5, []),
        ("depthwise_backward", 6, 5, []),
        ("inverted_residual", 8, 0, [c_double, c_float, c_int, c_int]),
        ("inverted_residual_backward", 10, 0, [c_float, c_int]),
        ("sgd", 4, 1, [c_float] * 4),
        ("windows", 2, 5, []),
        ("windows_backward", 2, 5, []),
    ):
        function = getattr(library, name)
        function.argtypes = [c_void_p] * pointers + [c_long] * sizes + others
        function.restype = None
    return library


def _sgemm() -> int | None:
    """Where the product of matrices starts that PyTorch was built with, for C to call; not every build shows it."""
    try:
        torch_library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(torch_library.sgemm_, c_void_p).value
    except (OSError, AttributeError):
        return None


_c = _library()
AVAILABLE = _c is not None
SGEMM = _sgemm()
FLOATS_TOGETHER = 65_536  # of the widest map: a quarter of a megabyte, half of a core's own cache


def usable_for(x: Tensor) -> bool:
    """Whether these layers can take x: single precision, on the CPU, and a library to call."""
    return AVAILABLE and x.dtype == torch.float32 and x.device.type == "cpu"


def group_norm(
    x: Tensor, norm: nn.GroupNorm, tape: Tape | None, low: float = -math.inf, high: float = math.inf
) -> Tensor:
    """GroupNorm, cut off below `low` and above `high`: (0, ∞) is ReLU, (0, 6) ReLU6. Uses x's memory if it may."""
    assert _c is not None
    n, height, width, channels = x.shape
    sizes = (n, height * width, channels, norm.num_groups)
    weight, bias = norm.weight.data_ptr(), norm.bias.data_ptr()
    statistics, workspace = x.new_empty(n, norm.num_groups, 2), x.new_empty(4, channels)
    y = x if tape is None else torch.empty_like(x)
    _c.group_norm(
        x.data_ptr(), weight, bias, y.data_ptr(), statistics.data_ptr(), workspace.data_ptr(),
        *sizes, norm.eps, low, high,
    )  # fmt: skip
    if tape is not None:

        def backward(dy: Tensor) -> Tensor:
            dweight, dbias = gradient_of(norm.weight).data_ptr(), gradient_of(norm.bias).data_ptr()
            _c.group_norm_backward(
                dy.data_ptr(), x.data_ptr(), weight, bias, statistics.data_ptr(), dweight, dbias, workspace.data_ptr(),
                *sizes, low, high,
            )  # fmt: skip
            return dy

        tape.append(backward)
    return y


def depthwise(x: Tensor, conv: nn.Conv2d, tape: Tape | None) -> Tensor:
    """A 3×3 convolution of each channel by itself, padded by one."""
    assert _c is not None
    sizes = (*x.shape, conv.stride[0])
    kernel, workspace = conv.weight.data_ptr(), x.new_empty(18, x.shape[3])
    y = x.new_empty(*_output_shape(x, conv), x.shape[3])
    _c.depthwise(x.data_ptr(), kernel, y.data_ptr(), workspace.data_ptr(), *sizes)
    if tape is not None:

        def backward(dy: Tensor) -> Tensor:
            dx, dkernel = torch.empty_like(x), gradient_of(conv.weight).data_ptr()
            _c.depthwise_backward(
                dy.data_ptr(), x.data_ptr(), kernel, dx.data_ptr(), dkernel, workspace.data_ptr(), *sizes
            )
            return dx

        tape.append(backward)
    return y


def inverted_residual(x: Tensor, block: InvertedResidual, tape: Tape | None) -> Tensor:
    """A block of MobileNetV2 that widens, a few pictures at a time, so that their maps stay in the cache.

    Pictures whose branch is dropped (stochastic depth) cost nothing. Needs `SGEMM`. The three norms have the same
    number of groups and the same epsilon.
    """
    assert _c is not None
    _, filter_, narrow = units = [cast(ConvNorm, unit) for unit in block.branch]
    height, width, inputs = x.shape[1:]
    _, *out_sides = _output_shape(x, filter_.conv)
    in_size, out_size = height * width, math.prod(out_sides)
    hidden, outputs, groups = filter_.conv.out_channels, narrow.conv.out_channels, narrow.norm.num_groups
    n, factor, pictures, where = len(x), 1.0, None, None
    if (survivors := block.survivors(x)) is not None:
        pictures = survivors.nonzero()
        n, factor, where = len(pictures), 1 / (1 - block.drop), pictures.data_ptr()
    together = min(n, max(1, FLOATS_TOGETHER // (in_size * hidden)))
    shape = (c_long * 9)(n, height, width, inputs, hidden, outputs, filter_.conv.stride[0], groups, together)
    parameters = [p for unit in units for p in (unit.conv.weight, unit.norm.weight, unit.norm.bias)]
    weights = _pointers(parameters)

    kept, statistics = together if tape is None else n, 2 * n * groups
    sizes = (in_size * hidden, out_size * hidden, out_size * outputs)
    maps, starts = _carve(x, *(kept * size for size in sizes), statistics, statistics, statistics)
    y = x.new_empty(len(x), *out_sides, outputs) if pictures is None else x.clone()
    workspace = x.new_empty(
        together * (in_size * inputs + out_size * hidden) + (in_size + 9) * hidden + 2 * max(hidden, outputs)
    )
    _c.inverted_residual(
        SGEMM, shape, weights, starts, x.data_ptr(), where, y.data_ptr(), workspace.data_ptr(),
        narrow.norm.eps, factor, block.is_residual, tape is not None,
    )  # fmt: skip
    if tape is not None:
        # C has their addresses only: the default keeps the tensors themselves until backward is gone.
        def backward(dy: Tensor, _alive: tuple[Tensor | None, ...] = (maps, pictures)) -> Tensor:
            dx = dy if block.is_residual else torch.empty_like(x)
            gradients = _pointers([gradient_of(parameter) for parameter in parameters])
            workspace = x.new_empty(
                together * (in_size * (2 * inputs + hidden) + out_size * (outputs + 2 * hidden))
                + (in_size + 18) * hidden + 4 * max(hidden, outputs)
            )  # fmt: skip
            _c.inverted_residual_backward(
                SGEMM, shape, weights, gradients, starts, x.data_ptr(), where, dy.data_ptr(), dx.data_ptr(),
                workspace.data_ptr(), factor, block.is_residual,
            )  # fmt: skip
            return dx

        tape.append(backward)
    return y


def convolution(x: Tensor, conv: nn.Conv2d, tape: Tape | None) -> Tensor:
    """A 3×3 convolution, padded by one, as a product of every window with one matrix."""
    assert _c is not None
    channels, sizes = x.shape[3], (*x.shape, conv.stride[0])
    shape = _output_shape(x, conv)
    kernel = conv.weight.detach().permute(0, 2, 3, 1).flatten(1)  # [outputs, 9·channels]
    windows = x.new_empty(math.prod(shape), 9 * channels)
    _c.windows(x.data_ptr(), windows.data_ptr(), *sizes)
    if tape is not None:
        is_first = not tape  # nobody asks for the pictures' gradient

        def backward(dy: Tensor) -> Tensor:
            rows = dy.flatten(0, 2)
            gradient_of(conv.weight).add_(rows.t().mm(windows).view(-1, 3, 3, channels).permute(0, 3, 1, 2))
            if is_first:
                return dy
            dx, dwindows = torch.empty_like(x), rows.mm(kernel)
            _c.windows_backward(dwindows.data_ptr(), dx.data_ptr(), *sizes)
            return dx

        tape.append(backward)
    return windows.mm(kernel.t()).view(*shape, -1)


def sgd(
    theta: Tensor, gradient: Tensor, velocity: Tensor, start: Tensor | None,
    lr: float, momentum: float, weight_decay: float, mu: float,
) -> None:  # fmt: skip
    """One step along the gradient, which is zeroed, with FedProx's pull of strength µ towards `start`."""
    assert _c is not None
    _c.sgd(
        theta.data_ptr(), gradient.data_ptr(), velocity.data_ptr(), None if start is None else start.data_ptr(),
        theta.numel(), lr, momentum, weight_decay, mu,
    )  # fmt: skip


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[c_void_p]:
    """Where each lies, as a struct of pointers in C has it."""
    return (c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _carve(x: Tensor, *sizes: int) -> tuple[Tensor, ctypes.Array[c_void_p]]:
    """Memory for arrays of so many numbers, and where each starts."""
    memory = x.new_empty(sum(sizes))
    starts = accumulate(sizes[:-1], initial=0)
    return memory, (c_void_p * len(sizes))(*(memory.data_ptr() + start * memory.element_size() for start in starts))


def _output_shape(x: Tensor, conv: nn.Conv2d) -> tuple[int, int, int]:
    """Pictures, height and width of what a 3×3 convolution with a padding of one gives."""
    n, height, width, _ = x.shape
    stride = conv.stride[0]
    return n, (height - 1) // stride + 1, (width - 1) // stride + 1
