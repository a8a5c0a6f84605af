"""Runs at the same time, each in a process of its own: what is told of them, and what happens when one dies."""

import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from feddiverse.errors import UserError
from feddiverse.experiment.side_by_side import Watch, side_by_side


def perform(run: str, path: Path, watch: Watch) -> None:
    """A run whose name says what becomes of it."""
    watch({"round": 1, "process": os.getpid()})
    if run.startswith("mistake"):
        raise UserError("no such file")
    if run.startswith("bug"):
        raise KeyError("nothing")
    if run.startswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if run.startswith("warns"):
        logging.getLogger("feddiverse.engine").warning("a worker is silent")
    while run.startswith("waits") and not path.exists():  # for what another run writes
        time.sleep(0.01)
    path.write_text(run)
    watch({"round": 2, "process": os.getpid()})


def make(names: list[str], folder: Path, at_once: int) -> tuple[dict[str, str | None], dict[str, list[dict[str, Any]]]]:
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    runs = [(name, folder / name.split("-")[-1]) for name in names]
    return dict(side_by_side(runs, perform, lambda run: told[run].append, at_once)), told


def test_runs_are_made_at_the_same_time_and_their_rounds_told_here(tmp_path: Path) -> None:
    outcomes, told = make(["waits-a", "b", "c-a"], tmp_path, 2)  # the first ends only if the others go past it
    assert outcomes == {"waits-a": None, "b": None, "c-a": None}
    assert next(iter(outcomes)) == "b"
    assert [[record["round"] for record in records] for records in told.values()] == [[1, 2]] * 3
    processes = {name: {record["process"] for record in records} for name, records in told.items()}
    assert processes["b"] == processes["c-a"] != processes["waits-a"]
    assert os.getpid() not in set.union(*processes.values())


def test_whatever_becomes_of_one_run_the_others_are_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outcomes, _ = make(["mistake", "killed", "bug", "warns-a", "b"], tmp_path, 2)
    assert outcomes == {
        "mistake": "no such file",
        "killed": "its process died (killed, or out of memory)",
        "bug": "KeyError: 'nothing'",
        "warns-a": None,
        "b": None,
    }
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    assert "a worker is silent" in caplog.text


def test_whoever_stops_waiting_leaves_no_process_behind(tmp_path: Path) -> None:
    names = [("waits-a", tmp_path / "a"), ("b", tmp_path / "b")]
    runs = side_by_side(names, perform, lambda run: lambda record: None, 2)
    assert next(runs) == ("b", None)
    assert len(multiprocessing.active_children()) == 2
    runs.close()  # as Ctrl-C does
    assert multiprocessing.active_children() == []
