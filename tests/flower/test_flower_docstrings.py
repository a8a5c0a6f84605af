"""Every public name of the Flower room has an example, and the examples are true."""

import doctest
import importlib
import warnings

import pytest

import feddiverse.flower

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # theirs, when first imported
    import datasets  # noqa: F401
    import flwr_datasets  # noqa: F401

MODULES = ("", ".answers", ".partition_file", ".partitioner", ".strategy")


@pytest.mark.parametrize("name", feddiverse.flower.__all__)
def test_a_public_name_has_an_example(name: str) -> None:
    assert ">>> " in (getattr(feddiverse.flower, name).__doc__ or ""), f"{name} has no example"


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    module = importlib.import_module(f"feddiverse.flower{name}")
    names = {public: getattr(feddiverse.flower, public) for public in feddiverse.flower.__all__}
    found = doctest.testmod(module, extraglobs=names, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted
    assert not found.failed
