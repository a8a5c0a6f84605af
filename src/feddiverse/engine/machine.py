"""What this machine offers: cores we may use, and accelerators."""

import math
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from feddiverse.errors import UserError

DEVICES = ("auto", "cpu", "cuda", "mps")


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores this process may run on: its affinity, and no more than a container's quota of processor time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _quota(cgroup))))


def workers_for(clients: int, cores: int) -> int:
    """How many workers train so many clients of one size soonest: one a core, or more where that leaves cores idle.

    Nine clients on eight cores: with eight workers the ninth client begins when the others are done, and seven cores
    wait for it. Nine workers that share the cores are done in 9/8 of a client's time. Each needs memory of its own, so
    it must be worth it.
    """
    sharing, worth_it = 1.1, 0.9  # what is lost to sharing a core: 1.1 to 1.2 with 3 clients and 3 workers on 2 cores

    def seconds(workers: int) -> float:
        at_once = min(workers, clients)
        return math.ceil(clients / at_once) * max(1.0, sharing * at_once / cores if at_once > cores else 1.0)

    best = min(range(cores, 2 * cores + 1), key=seconds)
    return best if clients > cores and seconds(best) <= worth_it * seconds(cores) else cores


def _quota(cgroup: Path) -> float:
    """Processors a control group allows (version 2: `cpu.max`, version 1: two files); infinite without a limit."""
    try:
        try:
            limit, period = (cgroup / "cpu.max").read_text().split()
        except OSError:
            limit = (cgroup / "cpu/cpu.cfs_quota_us").read_text()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text()
        processors = int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no control groups here, or "max"
        return math.inf
    return processors if processors > 0 else math.inf


def one_blas_thread() -> AbstractContextManager[Any]:
    """NumPy's and SciPy's products in one thread, as in the workers.

    A server's matrices are small: more threads wait for each other longer than they compute, ten times as long on a
    busy machine. And the bits would depend on the number of cores.
    """
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[Any] = threadpool_limits(1, "blas")
    return limits


def choose_device(wanted: str) -> str:
    """`auto` is the best there is; anything else must be there."""
    if wanted not in DEVICES:
        raise UserError(f"There is no device {wanted!r}: use one of {', '.join(DEVICES)}.")
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return next(device for device, is_there in there.items() if is_there)
    if not there[wanted]:
        raise UserError(f"Device {wanted} is not available on this machine: use --device cpu or auto.")
    return wanted
