"""Tries cases in processes of their own: what each comes to, how long it takes, how much memory."""

import contextlib
import io
import multiprocessing
import os
import re
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil

from feddiverse import cli
from feddiverse.errors import RunError, UserError

Rng = np.random.Generator
Case = Callable[[Rng, Path], None]
"""Makes one input in an empty folder and gives it to us. What it raises is judged: a `UserError` or `RunError` is an
answer, anything else is a finding."""

GOOD = ("taken", "refused")
BAD = ("unexpected", "hang", "died", "too large")
SECONDS = 120.0  # of processor time, until a case counts as a hang: other jobs of the machine make none
WAITING = 600.0  # seconds without an end, whatever it does
MEMORY = 2 << 30  # bytes
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what a terminal would obey


class Finding(Exception):
    """What should not have happened, though nothing was raised."""


@dataclass
class Tally:
    """What the cases of one family came to. `findings`: case → what happened."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    slowest: float = 0.0  # processor seconds of one case
    peak: int = 0  # bytes

    @property
    def num_bad(self) -> int:
        return sum(self.outcomes[kind] for kind in BAD)


def command(*arguments: str) -> None:
    """A command of ours, in this process; raises what it ended with."""
    shown, told = io.StringIO(), io.StringIO()
    argv, sys.argv = sys.argv, ["feddiverse", *arguments]
    code: object = 0
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(told):
            cli.main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.argv = argv
    said = told.getvalue()
    if any(word in said for word in ("Unexpected", "Your own code failed", "Traceback", "Aborted")):
        raise Finding(said[-400:])
    if OBEYED.search(shown.getvalue() + said):
        raise Finding("a sequence that a terminal obeys was shown")
    if code:
        raise UserError(said[-200:])


def run_family(case: Case, seed: int, numbers: Sequence[int]) -> Tally:
    """Try `case` for each number. A case that hangs or dies takes nobody with it."""
    tally, left, started = Tally(), list(numbers), time.monotonic()
    while left:
        for number, kind, what, peak, seconds in _batch(case, seed, tuple(left)):
            tally.outcomes[kind] += 1
            tally.peak = max(tally.peak, peak)
            tally.slowest = max(tally.slowest, seconds)
            if kind in BAD:
                tally.findings[number] = what
            left.remove(number)
    tally.seconds = time.monotonic() - started
    return tally


def _batch(case: Case, seed: int, numbers: Sequence[int]) -> Iterator[tuple[int, str, str, int, float]]:
    """One process for all of them, until one of them ends it. Number, kind, what, bytes, processor seconds of each."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(case, seed, numbers, theirs))
    child.start()
    theirs.close()
    try:
        for number in numbers:
            try:
                if why := _hang(ours, child.pid):
                    yield number, "hang", why, 0, SECONDS
                    return
                kind, what, peak, seconds = ours.recv()
            except EOFError:
                child.join()
                yield number, "died", f"exit code {child.exitcode}", 0, 0.0
                return
            yield number, kind, what, peak, seconds
            if kind == "too large":
                return  # its peak would be counted to the next ones too
    finally:
        for process in _tree(child.pid)[::-1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        child.join()
        ours.close()


def _hang(answer: Connection, pid: int | None) -> str | None:
    """Wait for an answer; why there will be none."""
    begun, before = time.monotonic(), _processor_seconds(pid)
    while not answer.poll(1.0):
        if _processor_seconds(pid) - before > SECONDS:
            return f"no end after {SECONDS:.0f} s of processor time"
        if time.monotonic() - begun > WAITING:
            return f"no end after {WAITING:.0f} s"
    return None


def _processor_seconds(pid: int | None) -> float:
    """Of a process and all that it started, ended or not."""
    total = 0.0
    for process in _tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _tree(pid: int | None) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _work(case: Case, seed: int, numbers: Sequence[int], answer: Connection) -> None:
    os.setsid()
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for as long as this process lives)
    home = os.getcwd()
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)  # what is written by default is written here
            before = _used()
            kind, what = _outcome(case, np.random.default_rng([seed, number]), Path(folder))
            os.chdir(home)
        usages = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        peak = max(usages) << 10
        if peak > MEMORY:
            kind, what = "too large", f"{peak / 2**30:.1f} GB ({kind} {what})"
        answer.send((kind, what, peak, _used() - before))


def _used() -> float:
    """Processor seconds of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _outcome(case: Case, rng: Rng, folder: Path) -> tuple[str, str]:
    try:
        case(rng, folder)
    except (UserError, RunError) as error:
        text = str(error)
        return ("refused", "") if len(text) > 10 else ("unexpected", f"no sentence: {text!r}")
    except BaseException as error:
        return "unexpected", "".join(traceback.format_exception(error)[-3:])[-700:]
    return "taken", ""
