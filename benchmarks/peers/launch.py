"""Start a peer, watch its rounds finish, and end it: seconds, processor seconds and memory of all its processes."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

POLL_S = 0.002
MEMORY_EVERY_S = 0.05
PATIENCE_S = 240.0  # without a finished round
PAUSE_S = 3.0  # between two looks at the peer
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}


class Failed(Exception):
    """The peer ended, or stood still, before its rounds were finished."""


class Paused(Exception):
    """We stood still ourselves (suspended, or starved): what was being measured means nothing."""


@dataclass
class Launch:
    """What one launch showed. `round_s` leaves the first round out: it is part of `first_round_s`."""

    first_round_s: float = 0.0
    round_s: list[float] = field(default_factory=list)
    cpu_s_per_round: float = 0.0
    peak_mb: float | None = None
    peak_own_mb: float | None = None  # without mapped files, whose pages the system may drop


def launch(
    command: Sequence[str],
    progress: Path,
    rounds: int,
    *,
    log: Path,
    env: dict[str, str] | None = None,
    with_memory: bool = False,
) -> Launch:
    """Run `command` until it has written `rounds` lines to `progress`, one a finished round.

    Memory is the proportional set size of the process tree, sampled; since sampling takes time of its own, a launch
    is either for memory or for seconds.
    """
    progress.unlink(missing_ok=True)
    with log.open("wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **ONE_THREAD, **(env or {})},
        )  # fmt: skip
    try:
        return _watch(process, progress, rounds, started, log, with_memory)
    finally:
        _end(process)


def _watch(
    process: subprocess.Popen[bytes], progress: Path, rounds: int, started: float, log: Path, with_memory: bool
) -> Launch:
    root = psutil.Process(process.pid)
    stamps: list[float] = []
    cpu: list[float] = []
    peak, own, next_sample, looked = 0.0, 0.0, started, started
    while len(stamps) < rounds:
        done, now = _lines(progress), time.monotonic()
        if now - looked > PAUSE_S:
            raise Paused
        looked = now
        if done > len(stamps):
            stamps += [now] * (done - len(stamps))
            cpu.append(cpu_seconds(root))
        if len(stamps) < rounds and (process.poll() is not None or now - (stamps or [started])[-1] > PATIENCE_S):
            if _lines(progress) >= rounds:
                continue
            raise Failed(f"it ended or stood still after {done} rounds: {_last_line(log)}")
        if with_memory and now >= next_sample:
            pages = pages_mb(root)
            peak, own = max(peak, sum(pages.values())), max(own, sum(pages.values()) - pages["Pss_File"])
            next_sample = time.monotonic() + MEMORY_EVERY_S
        time.sleep(POLL_S)
    return Launch(
        first_round_s=stamps[0] - started,
        round_s=[b - a for a, b in pairwise(stamps)],
        cpu_s_per_round=(cpu[-1] - cpu[0]) / max(rounds - 1, 1),
        peak_mb=peak if with_memory else None,
        peak_own_mb=own if with_memory else None,
    )


def family(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(root: psutil.Process) -> float:
    """Of the process, all its living descendants, and those that ended and were waited for."""
    total = 0.0
    for member in family(root):
        try:
            total += sum(member.cpu_times()[:4])  # user, system, and those of ended children
        except psutil.Error:
            continue
    return total


def proportional_mb(root: psutil.Process) -> float:
    """Proportional set size of the process and its descendants: a page that n processes share counts 1/n in each."""
    return sum(pages_mb(root).values())


def pages_mb(root: psutil.Process) -> dict[str, float]:
    """The same by kind of page: memory of their own, of mapped files, and shared."""
    found = dict.fromkeys(("Pss_Anon", "Pss_File", "Pss_Shmem"), 0.0)
    for member in family(root):
        try:
            rollup = Path(f"/proc/{member.pid}/smaps_rollup").read_text()
        except OSError:
            continue
        for line in rollup.splitlines():
            kind, _, rest = line.partition(":")
            if kind in found:
                found[kind] += int(rest.split()[0]) / 1000
    return found


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to stop, then stop whatever is left of its family."""
    try:
        members = family(psutil.Process(process.pid))
    except psutil.NoSuchProcess:
        members = []
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for member in members[1:]:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(members[1:], timeout=5)
