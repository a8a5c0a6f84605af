"""Every public name says what it is by an example, and the examples are true."""

import doctest
import importlib
from types import ModuleType

import pytest

import feddiverse

PUBLIC = sorted(set(feddiverse.__all__) - {"__version__"})
MODULES = sorted({getattr(feddiverse, name).__module__ for name in PUBLIC} | {"feddiverse.splits", "feddiverse.models"})


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example(name: str) -> None:
    assert ">>> " in (getattr(feddiverse, name).__doc__ or ""), f"{name} has no example"


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted
    assert not found.failed
