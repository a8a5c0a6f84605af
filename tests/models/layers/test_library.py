"""The borrowed matrix product is tried before it is used, and a run says which layers it had."""

import ctypes
import ctypes.util
from collections.abc import Callable
from ctypes import POINTER, c_char, c_float, c_int64
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from feddiverse.data import open_federation
from feddiverse.experiment.environment import describe
from feddiverse.models.layers import library
from feddiverse.models.layers.fast import FastMobileNetV2
from feddiverse.models.mobilenet import MobileNetV2

pytestmark = pytest.mark.skipif(library.C is None, reason="no C compiler was here when the package was installed")

size, number, letter = POINTER(c_int64), POINTER(c_float), POINTER(c_char)
Sgemm = ctypes.CFUNCTYPE(
    None, letter, letter, size, size, size, number, number, size, number, size, number, number, size
)
Product = Callable[[NDArray, NDArray, NDArray, float], NDArray]


def imitation(product: Product, reads_transposition: bool = True) -> ctypes._CFuncPtr:
    """sgemm in NumPy, with `product(a, b, c, beta)` in place of a·b + beta·c."""

    def column_by_column(start, transposed: bool, rows: int, columns: int) -> NDArray:
        shape = (rows, columns) if transposed else (columns, rows)
        found = np.ctypeslib.as_array(start, shape)
        return found if transposed else found.T

    def sgemm(a_lies, b_lies, m, n, k, _one, a, _a_step, b, _b_step, beta, c, _c_step):
        m, n, k = m[0], n[0], k[0]
        left = column_by_column(a, reads_transposition and a_lies[0] == b"T", m, k)
        right = column_by_column(b, reads_transposition and b_lies[0] == b"T", k, n)
        result = np.ctypeslib.as_array(c, (n, m)).T
        result[:] = product(left, right, result, beta[0])

    return Sgemm(sgemm)


def right(a: NDArray, b: NDArray, c: NDArray, beta: float) -> NDArray:
    return a @ b + (beta * c if beta else 0)


def address(function: ctypes._CFuncPtr) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value


def test_a_right_product_passes():
    assert library.multiplies_rightly(address(imitation(right)))


@pytest.mark.parametrize(
    "wrong",
    [
        imitation(lambda a, b, c, beta: a @ b),
        imitation(lambda a, b, c, beta: a @ b + beta * c),
        imitation(lambda a, b, c, beta: c),
        imitation(lambda a, b, c, beta: np.float16(right(a, b, c, beta))),
        imitation(right, reads_transposition=False),
    ],
    ids=["forgets beta", "reads c where it should not", "does nothing", "half precision", "forgets transposition"],
)
def test_a_wrong_product_does_not(wrong):
    assert not library.multiplies_rightly(address(wrong))


@pytest.fixture
def _wrong_product(monkeypatch):
    monkeypatch.setattr(library, "multiplies_rightly", lambda address: False)
    library.sgemm.cache_clear()
    yield
    library.sgemm.cache_clear()


@pytest.mark.usefixtures("_wrong_product")
def test_where_it_is_wrong_layers_are_called_one_by_one():
    assert library.sgemm() is None
    assert library.describe().endswith(" without sgemm")
    torch.manual_seed(0)
    plain, fast = MobileNetV2(2).eval(), FastMobileNetV2(2).eval()
    fast.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 28, 28)
    for model in (plain, fast):
        model(x).square().sum().backward()
    for ours, theirs in zip(fast.parameters(), plain.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= 0.02 * theirs.grad.norm() + 1e-6


def test_what_runs_is_named(monkeypatch):
    clone = "fma" if " fma " in Path("/proc/cpuinfo").read_text() else "default"
    product = ", sgemm)" if library.sgemm() else ") without sgemm"
    assert library.describe() == f"C ({clone}{product}"
    monkeypatch.setattr(library, "C", None)
    assert library.describe() == "PyTorch"


def test_a_run_says_so():
    environment = describe(open_federation("digits-gsc", 0), None)
    assert environment["layers"] == library.describe()


def test_a_library_from_other_sources_is_told(monkeypatch):
    monkeypatch.setenv(library.ENVIRONMENT, ctypes.util.find_library("m"))
    with pytest.raises(ImportError, match="was compiled from other sources: install the package again"):
        library._load()


def test_no_library_is_no_error(monkeypatch):
    monkeypatch.delenv(library.ENVIRONMENT, raising=False)
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    assert library._load() is None
