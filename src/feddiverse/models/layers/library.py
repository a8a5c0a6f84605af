"""The compiled `kernels.c`: found, and given its functions' types.

It is compiled twice when the package is installed: for processors that take sixteen numbers at once (AVX-512), and for
all others; both give the same bits. Where there was no compiler it is missing, and the models take PyTorch's own
operations instead: the same numbers within rounding, in more time. So they do on processors too old to multiply and add
at once (before 2013), for which its products of matrices are not made.
"""

import ctypes
import importlib.util
import os
from ctypes import POINTER, c_double, c_float, c_int, c_int64, c_void_p
from typing import Any

import torch

ENVIRONMENT = "FEDDIVERSE_KERNELS"
"""Names another library to load, such as one with sanitizers (`make sanitize`)."""


class Shape(ctypes.Structure):
    """A block of MobileNetV2, as `Shape` in C has it; `together` pictures go through it at once."""

    names = ("n", "height", "width", "inputs", "hidden", "outputs", "stride", "groups", "together", "widens")
    _fields_ = [(name, c_int64) for name in names]


class Convolution(ctypes.Structure):
    """A 3×3 convolution, as `Convolution` in C has it."""

    _fields_ = [(name, c_int64) for name in ("n", "height", "width", "channels", "outputs", "stride")]


def _functions() -> dict[str, tuple[list[Any], Any]]:
    """Name → types of the arguments and of the result."""
    pointer, sizes, floats = c_void_p, [c_int64] * 4, [c_float] * 4
    shape, convolution = POINTER(Shape), POINTER(Convolution)
    return {
        "multiplies_and_adds_at_once": ([c_float] * 3, c_int),
        "group_norm_workspace": (sizes[:1], c_int64),
        "group_norm": ([pointer] * 6 + sizes + [c_double, c_float, c_float], None),
        "group_norm_backward": ([pointer] * 8 + sizes + [c_float, c_float], None),
        "inverted_residual_maps": ([shape, c_int], c_int64),
        "inverted_residual_workspace": ([shape], c_int64),
        "inverted_residual": ([shape, *[pointer] * 6, c_double, c_float, c_int, c_int], None),
        "inverted_residual_backward_workspace": ([shape], c_int64),
        "inverted_residual_backward": ([shape, *[pointer] * 8, c_float, c_int], None),
        "linear_workspace": (sizes[:2], c_int64),
        "linear": ([pointer] * 5 + sizes[:3], None),
        "linear_backward": ([pointer] * 6 + sizes[:3], None),
        "average": ([pointer] * 2 + sizes[:3], None),
        "turn_maps": ([pointer] * 2 + sizes[:3], None),
        "look_up": ([pointer] * 3 + sizes[:3], None),
        "sgd": ([pointer] * 4 + sizes[:1] + floats, None),
        "convolution_workspace": ([convolution], c_int64),
        "convolution": ([convolution] + [pointer] * 4, None),
        "convolution_backward": ([convolution] + [pointer] * 6, None),
    }


def find() -> list[str]:
    """Where the libraries lie that this processor can run, the fastest first."""
    names = ["_kernels"]
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        names.insert(0, "_kernels_avx512")
    found = [importlib.util.find_spec(f"feddiverse.models.layers.{name}") for name in names]
    return [spec.origin for spec in found if spec is not None and spec.origin is not None]


def _load() -> ctypes.CDLL | None:
    paths = [os.environ[ENVIRONMENT]] if ENVIRONMENT in os.environ else find()
    return open_library(paths[0]) if paths else None


def open_library(path: str) -> ctypes.CDLL | None:
    """The library there, with its functions' types; None if it cannot multiply and add at once on this processor."""
    library = ctypes.CDLL(path)
    for name, (arguments, result) in _functions().items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{path} was compiled from other sources: install the package again.") from None
        function.argtypes, function.restype = arguments, result
    multiplies_and_adds_at_once = library.multiplies_and_adds_at_once(1 + 2**-12, 1 + 2**-12, -1 - 2**-11)
    return library if multiplies_and_adds_at_once else None


C: Any = _load()
"""The library, or None."""


def describe() -> str:
    """Which layers run here, since they differ in rounding: "C" or "PyTorch"."""
    return "PyTorch" if C is None else "C"
