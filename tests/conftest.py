"""What holds for every test: the same numbers each time and in any order, on a slow or busy machine too.

Properties are tested on the same examples each time; with FEDDIVERSE_FUZZ=1 (`make
properties`) on new ones and on more.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and torch: `make test` has a process a core already

import pytest
import torch
from hypothesis import HealthCheck, register_random, settings

ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", ANY_MACHINE, derandomize=True)
settings.register_profile("fuzz", ANY_MACHINE, max_examples=1000, print_blob=True)
settings.load_profile("fuzz" if os.environ.get("FEDDIVERSE_FUZZ") else "same")


# Hypothesis starts Python's and NumPy's generators anew for every example, and now PyTorch's too.
class Torch:
    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


TORCH = Torch()
register_random(TORCH)  # which does not keep it


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order() -> None:
    torch.manual_seed(0)
