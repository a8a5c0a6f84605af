"""Which library is loaded, and that a run says which layers it had."""

import ctypes
import ctypes.util
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from feddiverse.client.training import train
from feddiverse.data import open_federation
from feddiverse.data.federation import Samples
from feddiverse.experiment.environment import describe
from feddiverse.messages import Train
from feddiverse.models import ModelSpec, build, initial_theta
from feddiverse.models.layers import library, native

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


@pytest.mark.skipif(len(library.find()) < 2, reason="this processor runs one library only")
@pytest.mark.parametrize(("name", "side"), [("cnn", 28), ("mobilenet", 28), ("mobilenet", 40)])
def test_both_libraries_give_the_same_bits(monkeypatch, name, side):
    spec = ModelSpec(name, 3, (3, side, side), (0.5,) * 3, (0.2,) * 3, fast=True)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (11, 3, side, side), dtype=np.uint8)
    samples = Samples(x, rng.integers(0, 3, 11), rng.integers(0, 2, 11))
    task = Train(0, 1, epochs=3, batch_size=4)
    model, found = build(spec), []
    for path in library.find():
        monkeypatch.setattr(library, "C", library.open_library(path))
        train(task, initial_theta(spec, seed=0), 0, samples, model)
        found.append(model.vector())
    assert np.isfinite(found[0]).all()
    assert np.array_equal(*found)


TRAINED = """
import hashlib, sys
import numpy as np
from feddiverse.client.training import train
from feddiverse.data.federation import Samples
from feddiverse.engine.worker import prepare_process
from feddiverse.messages import Train
from feddiverse.models import ModelSpec, build, initial_theta

prepare_process()
rng = np.random.default_rng(0)
for name in ("cnn", "mobilenet"):
    spec = ModelSpec(name, 3, (3, 28, 28), (0.5,) * 3, (0.2,) * 3, fast=True)
    samples = Samples(rng.integers(0, 256, (30, 3, 28, 28), dtype=np.uint8), rng.integers(0, 3, 30), None)
    model = build(spec)
    train(Train(0, 1, epochs=3, batch_size=8), initial_theta(spec, seed=0), 0, samples, model)
    print(hashlib.sha256(model.vector().tobytes()).hexdigest())
"""


def test_training_does_not_hang_on_how_the_processors_blas_rounds():
    """Products by PyTorch's BLAS once made the numbers of every run another processor's own."""
    found = []
    for way in ("AUTO", "COMPATIBLE"):  # as the processor likes it best, and as any could do it
        environment = {**os.environ, "MKL_CBWR": way}
        done = subprocess.run(
            [sys.executable, "-c", TRAINED], env=environment, capture_output=True, text=True, check=True
        )
        found.append(done.stdout)
    assert found[0] == found[1]


@pytest.mark.skipif(library.C is None, reason="no C compiler was here when the package was installed")
def test_memory_is_asked_of_the_library_in_use():
    """What one asked for is too little for one with wider tiles, or with sanitizers' gaps."""
    wider = MagicMock()
    wider.group_norm_workspace.return_value = 10**6
    wider.convolution_workspace.return_value = 10**6
    assert native._group_norm_workspace(library.C, 8) < native._group_norm_workspace(wider, 8) == 10**6
    sizes = (2, 5, 5, 3, 8, 1)
    assert native._convolution_sizes(library.C, *sizes)[1] < native._convolution_sizes(wider, *sizes)[1] == 10**6


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
