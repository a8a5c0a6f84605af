"""The time left is judged by what was done in this sitting."""

import io
from pathlib import Path

import pytest

from feddiverse.cli import study_display
from feddiverse.cli.console import SafeConsole
from feddiverse.experiment.study import Planned, Study, StudyDirectory


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(study_display.time, "monotonic", lambda: now[0])
    return now


def display_of_three_equal_runs(folder: Path) -> tuple[study_display.Display, tuple[Planned, ...]]:
    settings = {"federation": "digits-gsc", "rounds": 10}
    runs = tuple(Planned("Uniform random", "digits-gsc", seed, settings) for seed in range(3))
    return study_display.Display(Study("own", "Own", runs), StudyDirectory(folder), 1, 0), runs


def test_rounds_of_an_earlier_sitting_do_not_count_as_speed(tmp_path, clock, capsys):
    display, runs = display_of_three_equal_runs(tmp_path)
    show = display.on_round(runs[0])
    for round_ in (9, 10):  # eight were made before
        clock[0] += 60
        show({"round": round_})
    display.finished(runs[0], None)
    assert "in 2 min, left about 20 min" in capsys.readouterr().err


def test_a_run_that_fails_at_once_does_not_make_the_others_look_short(tmp_path, clock, capsys):
    display, runs = display_of_three_equal_runs(tmp_path)
    display.on_round(runs[0])
    display.finished(runs[0], "no data")
    assert "FAILED, left about ?" in capsys.readouterr().err
    show = display.on_round(runs[1])
    for round_ in range(1, 11):
        clock[0] += 60
        show({"round": round_})
    display.finished(runs[1], None)
    assert "in 10 min, left about 10 min" in capsys.readouterr().err


def test_a_reason_is_told_when_it_first_comes_and_once_at_the_end(tmp_path, clock, capsys):
    display, runs = display_of_three_equal_runs(tmp_path)
    for run, why in zip(runs, ("no data", "no data", "no memory"), strict=True):
        display.on_round(run)
        display.finished(run, why)
    said = capsys.readouterr().err
    assert [said.count(why) for why in ("no data", "no memory")] == [1, 1]
    assert said.index("seed0 FAILED") < said.index("no data") < said.index("seed1 FAILED")
    display.show_failures()
    first, _, last = (run.name for run in runs)
    assert capsys.readouterr().err.splitlines()[1:] == [f"  {first} and 1 more: no data", f"  {last}: no memory"]


def test_runs_at_the_same_time_count_together(tmp_path, clock, capsys):
    display, runs = display_of_three_equal_runs(tmp_path)
    first, second = display.on_round(runs[0]), display.on_round(runs[1])
    for round_ in range(1, 11):
        clock[0] += 60
        first({"round": round_})
        if round_ <= 5:
            second({"round": round_})
    display.finished(runs[0], None)  # 15 rounds in 10 min, and 15 are left
    assert "in 10 min, left about 10 min" in capsys.readouterr().err


def test_a_grid_shows_whole_names_however_narrow_the_terminal(tmp_path, monkeypatch):
    out = SafeConsole(width=60, file=io.StringIO())
    monkeypatch.setattr(study_display, "out", out)
    row = "FedDiverse with the paper’s estimator and a guard against asking the same few clients"
    run = Planned(row, "digits-gsc", 0, {"federation": "digits-gsc", "rounds": 10})
    study_display.show_grid(Study("own", "Own", (run,)), StudyDirectory(tmp_path), 1)
    lines = [line.split("│") for line in out.file.getvalue().splitlines() if line.startswith("│")]
    assert "".join(cells[1].strip() for cells in lines) == run.name
