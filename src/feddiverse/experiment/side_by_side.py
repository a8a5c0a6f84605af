"""Runs of a study side by side, each in a process with workers of its own.

A round of nine clients keeps no more than nine workers busy, and at its end all wait for the last one: on many cores
several runs at a time are done sooner than one after the other. What each of them gives is the same.
"""

import logging
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from feddiverse.errors import UserError

log = logging.getLogger("feddiverse.engine")

Watch = Callable[[dict[str, Any]], None]
"""Called with each round's record."""
Perform = Callable[[Any, Path, Watch], None]
"""Makes one run in its directory; raises when it cannot. What goes to another process must be picklable."""


@dataclass(eq=False)
class Lane:
    """A process that makes one run after the other, our end of its pipe, and the run it is at."""

    process: SpawnProcess
    pipe: Connection
    run: Any = None


def outcome(perform: Perform, run: Any, path: Path, watch: Watch) -> str | None:
    """Make the run; why it failed, or None. Whatever a run dies of, the study goes on."""
    try:
        perform(run, path, watch)
    except Exception as error:
        return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return None


def side_by_side(
    runs: Iterable[tuple[Any, Path]], perform: Perform, watch: Callable[[Any], Watch], at_once: int
) -> Iterator[tuple[Any, str | None]]:
    """Each run with why it failed, or None, as they are done. `watch(run)` is told of its rounds, in this process."""
    waiting = deque(runs)
    lanes = [_start(perform) for _ in range(min(at_once, len(waiting)))]
    watches: dict[Any, Watch] = {}

    def give(lane: Lane) -> None:
        lane.run = None
        if waiting:
            lane.run, path = waiting.popleft()
            watches[lane] = watch(lane.run)
            lane.pipe.send((lane.run, path))

    try:
        for lane in lanes:
            give(lane)
        while busy := {lane.pipe: lane for lane in lanes if lane.run is not None}:
            for pipe in wait(list(busy)):
                lane = busy[pipe]  # type: ignore[index]
                match _receive(lane):
                    case "round", record:
                        watches[lane](record)
                    case "warning", text:
                        log.warning("%s", text)
                    case "over", why:
                        run = lane.run
                        give(lane)
                        yield run, why
                    case None:
                        lanes.remove(lane)
                        _end(lane)
                        if waiting:
                            lanes.append(_start(perform))
                            give(lanes[-1])
                        yield lane.run, "its process died (killed, or out of memory)"
    finally:
        for lane in lanes:
            _end(lane)


def _start(perform: Perform) -> Lane:
    # A fresh process rather than a fork: ours may have threads, and a GPU cannot be used in a fork.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(perform, theirs, os.getpid()))
    process.start()
    theirs.close()  # so that the pipe ends when the process does
    return Lane(process, ours)


def _receive(lane: Lane) -> tuple[str, Any] | None:
    """What it says; None: it is gone."""
    try:
        said: tuple[str, Any] = lane.pipe.recv()
        return said
    except (EOFError, OSError):
        return None


def _end(lane: Lane) -> None:
    """At once if it is at a run, which can go on later from its checkpoint."""
    lane.pipe.close()
    if lane.run is not None:
        lane.process.kill()
    lane.process.join()
    lane.process.close()


def _serve(perform: Perform, pipe: Connection, parent: int) -> None:
    """The process: make runs until there are no more, or the parent is gone."""
    from feddiverse.engine.worker import end_with  # not before: whoever lists studies needs no engine

    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    logging.getLogger("feddiverse").addHandler(logging.NullHandler())
    log.addHandler(_ToParent(pipe))
    while True:
        try:
            run, path = pipe.recv()
        except EOFError:
            return
        pipe.send(("over", outcome(perform, run, path, lambda record: pipe.send(("round", record)))))


class _ToParent(logging.Handler):
    """Warnings that cannot wait for the end of a round."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(logging.WARNING)
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        self._pipe.send(("warning", record.getMessage()))
