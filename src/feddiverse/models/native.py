"""The layers that are too small for PyTorch's kernels, by a few pages of C (`kernels.c`).

Maps are laid out [n, height, width, channels], and contiguous.
The library is compiled when the package is installed. Where there was no compiler it is missing, `AVAILABLE` is False,
and the models take PyTorch's own operations instead: the same numbers within rounding, in more time.
"""

import ctypes
import importlib.util
import math
from ctypes import c_double, c_float, c_long, c_void_p

import torch
from torch import Tensor, nn

from feddiverse.models.tape import Tape, gradient_of


def _library() -> ctypes.CDLL | None:
    found = importlib.util.find_spec("feddiverse.models._kernels")
    if found is None or found.origin is None:
        return None
    library = ctypes.CDLL(found.origin)
    for name, pointers, sizes, floats in (
        ("group_norm", 6, 4, [c_double, c_float, c_float]),
        ("group_norm_backward", 8, 4, [c_float, c_float]),
        ("depthwise", 4, 5, []),
        ("depthwise_backward", 6, 5, []),
        ("normed_depthwise", 11, 6, [c_double, c_float, c_float]),
        ("normed_depthwise_backward", 17, 6, [c_float, c_float]),
        ("windows", 2, 5, []),
        ("windows_backward", 2, 5, []),
    ):
        function = getattr(library, name)
        function.argtypes = [c_void_p] * pointers + [c_long] * sizes + floats
        function.restype = None
    return library


_c = _library()
AVAILABLE = _c is not None


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


def normed_depthwise(
    x: Tensor,
    norm: nn.GroupNorm,
    conv: nn.Conv2d,
    next_norm: nn.GroupNorm,
    tape: Tape | None,
    low: float = -math.inf,
    high: float = math.inf,
) -> Tensor:
    """`group_norm`, `depthwise` and `group_norm`, picture by picture, so that maps stay in the cache between them.

    The two norms have the same number of groups and the same epsilon.
    """
    assert _c is not None
    sizes = (*x.shape, conv.stride[0], norm.num_groups)
    between = x.new_empty(*_output_shape(x, conv), x.shape[3])
    y = between if tape is None else torch.empty_like(between)
    statistics, next_statistics = x.new_empty(2, len(x), norm.num_groups, 2)
    workspace = x.new_empty(x[0].numel() + 22 * x.shape[3])
    parameters = (norm.weight, norm.bias, conv.weight, next_norm.weight, next_norm.bias)
    pointers = [parameter.data_ptr() for parameter in parameters]
    _c.normed_depthwise(
        x.data_ptr(), *pointers, statistics.data_ptr(), between.data_ptr(), next_statistics.data_ptr(), y.data_ptr(),
        workspace.data_ptr(), *sizes, norm.eps, low, high,
    )  # fmt: skip
    if tape is not None:

        def backward(dy: Tensor) -> Tensor:
            dx, gradients = torch.empty_like(x), [gradient_of(parameter).data_ptr() for parameter in parameters]
            _c.normed_depthwise_backward(
                dy.data_ptr(), x.data_ptr(), *pointers, statistics.data_ptr(), between.data_ptr(),
                next_statistics.data_ptr(), dx.data_ptr(), *gradients, workspace.data_ptr(), *sizes, low, high,
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


def _output_shape(x: Tensor, conv: nn.Conv2d) -> tuple[int, int, int]:
    """Pictures, height and width of what a 3×3 convolution with a padding of one gives."""
    n, height, width, _ = x.shape
    stride = conv.stride[0]
    return n, (height - 1) // stride + 1, (width - 1) // stride + 1
