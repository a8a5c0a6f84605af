"""Cores and devices."""

import os

import pytest
import torch

from feddiverse.engine.machine import choose_device, usable_cores, workers_for
from feddiverse.errors import UserError

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, CORES),
        ({"cpu.max": "max 100000\n"}, CORES),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "150000 100000\n"}, min(2, CORES)),
        ({"cpu.max": "6400000 100000\n"}, CORES),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, CORES),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu.max": "damaged"}, CORES),
    ],
)
def test_cores_are_those_we_may_use(files, expected, tmp_path):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == expected


@pytest.mark.parametrize(
    ("cuda", "mps", "best"), [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")]
)
def test_auto_is_the_best_device_there_is(cuda, mps, best, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device("auto") == best
    assert choose_device("cpu") == "cpu"
    if not cuda:
        with pytest.raises(UserError, match="cuda is not available"):
            choose_device("cuda")
    with pytest.raises(UserError, match="no device 'tpu'"):
        choose_device("tpu")


@pytest.mark.parametrize(
    ("clients", "cores", "workers"),
    [
        (9, 1, 1),
        (9, 2, 2),  # five turns, or four and a half of workers that share cores: not worth another process
        (3, 2, 3),
        (9, 8, 9),
        (9, 6, 9),
        (8, 8, 8),
        (16, 8, 8),
        (3, 8, 8),  # a worker starts when there is work for it
        (100, 8, 8),
    ],
)
def test_workers_share_cores_where_some_would_be_idle(clients, cores, workers):
    assert workers_for(clients, cores) == workers
