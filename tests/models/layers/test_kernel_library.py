"""Which library is loaded, and that a run says which layers it had."""

import ctypes
import ctypes.util
import re
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from feddiverse.data import open_federation
from feddiverse.experiment.environment import describe
from feddiverse.models.layers import library

pytestmark = pytest.mark.skipif(library.C is None, reason="no C compiler was here when the package was installed")


def test_what_runs_is_named(monkeypatch):
    assert library.describe() == "C"
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


@pytest.mark.parametrize("at_once", [0, 1])
def test_a_processor_that_cannot_multiply_and_add_at_once_takes_pytorchs_operations(monkeypatch, at_once):
    found = MagicMock()
    found.multiplies_and_adds_at_once.return_value = at_once
    monkeypatch.setattr(library.ctypes, "CDLL", lambda path: found)
    assert library._load() is (found if at_once else None)


def test_no_function_has_the_name_of_one_of_the_c_library():
    """Ours was once `times`. Where the compiler makes one copy of a function, the C library's was called in its place,
    and maps were what had lain in memory."""
    source = (Path(library.__file__).parent / "kernels.c").read_text()
    names = re.findall(r"^(?:EXPORT \w+|Size) (\w+)\(", source, re.M)
    assert set(library._functions()) <= set(names)
    theirs = [ctypes.CDLL(ctypes.util.find_library(name)) for name in ("c", "m")]
    assert [name for name in names if any(hasattr(library, name) for library in theirs)] == []
