"""The compiled `kernels.c`: found, given its functions' types, and the matrix product that it borrows from PyTorch.

The library is compiled when the package is installed. Where there was no compiler it is missing, and the models take
PyTorch's own operations instead: the same numbers within rounding, in more time.
"""

import ctypes
import functools
import importlib.util
import os
from ctypes import POINTER, c_char, c_double, c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch

ENVIRONMENT = "FEDDIVERSE_KERNELS"
"""Names another library to load, such as one with sanitizers (`make sanitize`)."""


class Shape(ctypes.Structure):
    """A block of MobileNetV2, as `Shape` in C has it; `together` pictures go through it at once."""

    _fields_ = [
        (name, c_int64)
        for name in ("n", "height", "width", "inputs", "hidden", "outputs", "stride", "groups", "together")
    ]


def _functions() -> dict[str, tuple[list[Any], Any]]:
    """Name → types of the arguments and of the result."""
    pointer, sizes, floats, shape = c_void_p, [c_int64] * 5, [c_float] * 4, POINTER(Shape)
    return {
        "multiplies_and_adds_at_once": ([c_float] * 3, c_int),
        "multiply": ([pointer, pointer, c_char, pointer, c_char, pointer, *sizes[:3], c_float], None),
        "group_norm_workspace": (sizes[:1], c_int64),
        "group_norm": ([pointer] * 6 + sizes[:4] + [c_double, c_float, c_float], None),
        "group_norm_backward": ([pointer] * 8 + sizes[:4] + [c_float, c_float], None),
        "depthwise_workspace": (sizes[:1], c_int64),
        "depthwise": ([pointer] * 4 + sizes, None),
        "depthwise_backward": ([pointer] * 6 + sizes, None),
        "inverted_residual_maps": ([shape, c_int], c_int64),
        "inverted_residual_workspace": ([shape], c_int64),
        "inverted_residual": ([pointer, shape, *[pointer] * 6, c_double, c_float, c_int, c_int], None),
        "inverted_residual_backward_workspace": ([shape], c_int64),
        "inverted_residual_backward": ([pointer, shape, *[pointer] * 8, c_float, c_int], None),
        "sgd": ([pointer] * 4 + sizes[:1] + floats, None),
        "windows": ([pointer] * 2 + sizes, None),
        "windows_backward": ([pointer] * 2 + sizes, None),
    }


def _load() -> ctypes.CDLL | None:
    path = os.environ.get(ENVIRONMENT)
    if path is None:
        found = importlib.util.find_spec("feddiverse.models.layers._kernels")
        path = None if found is None else found.origin
    if path is None:
        return None
    library = ctypes.CDLL(path)
    for name, (arguments, result) in _functions().items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{path} was compiled from other sources: install the package again.") from None
        function.argtypes, function.restype = arguments, result
    return library


C: Any = _load()
"""The library, or None."""


@functools.cache
def sgemm() -> int | None:
    """Where the matrix product starts that PyTorch was built with, for C to call.

    None where this build hides it, or where what is found under that name gives other products than PyTorch does.
    """
    try:
        torch_library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        address = ctypes.cast(torch_library.sgemm_, c_void_p).value
    except (OSError, AttributeError):
        return None
    return address if C is not None and address is not None and multiplies_rightly(address) else None


def multiplies_rightly(address: int) -> bool:
    """Whether the function there is BLAS's sgemm, called as `kernels.c` calls it: against torch.mm."""
    generator = torch.Generator().manual_seed(0)
    for rows, inner, columns in ((1, 1, 1), (3, 5, 2), (37, 64, 48)):
        for a_lies, b_lies, beta in ((b"N", b"T", 0.0), (b"T", b"N", 1.0), (b"N", b"N", 0.0)):
            a, b, c = (
                torch.rand(size, generator=generator) for size in ((rows, inner), (inner, columns), (rows, columns))
            )
            expected = torch.mm(a.double(), b.double()) + beta * c
            if beta == 0.0:
                c.fill_(torch.nan)  # must not be read
            a = a.t().contiguous() if a_lies == b"T" else a
            b = b.t().contiguous() if b_lies == b"T" else b
            C.multiply(address, a.data_ptr(), a_lies, b.data_ptr(), b_lies, c.data_ptr(), rows, inner, columns, beta)
            if not torch.allclose(c.double(), expected, rtol=1e-4):
                return False
    return True


def describe() -> str:
    """Which layers run here, since they differ in rounding: "C (fma, sgemm)", "C (fma) without sgemm" or "PyTorch".

    The first word in brackets is the copy of the kernels that was chosen for this processor.
    """
    if C is None:
        return "PyTorch"
    clone = "fma" if C.multiplies_and_adds_at_once(1 + 2**-12, 1 + 2**-12, -1 - 2**-11) else "default"
    return f"C ({clone}, sgemm)" if sgemm() else f"C ({clone}) without sgemm"
