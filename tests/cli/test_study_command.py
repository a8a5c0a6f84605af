"""`feddiverse study` and `feddiverse report` as a user types them, on a grid of seconds."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feddiverse.cli import app
from feddiverse.errors import UserError

GRID = """
title = "Tiny"
seeds = [0]
baseline = "plain"
[base]
federation = "digits-gsc"
rounds = 3
num_selected = 2
evaluate_every = 3
[rows.plain]
selector = "uniform"
[rows.robin]
selector = "round_robin"
"""


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(GRID)
    return tmp_path / "tiny.toml"


def feddiverse(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from feddiverse.cli import main; main()", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


# Training lasts for hours once this file is there, so that nothing more is done before the kill.
HELD = """
import time
from pathlib import Path
from feddiverse.cli import main
from feddiverse.client import tasks
from feddiverse.messages import Train

def train(*question):
    time.sleep(3600 if Path({file!r}).exists() else 0)
    return tasks.train(*question)

tasks.ANSWERS[Train] = train
main()
"""


def start_held(file: Path, *words: str, cwd: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", HELD.format(file=str(file)), *words]
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


@pytest.mark.slow
def test_a_study_killed_in_the_middle_goes_on_and_gives_the_same_weights(grid: Path, tmp_path: Path) -> None:
    first = tmp_path / "killed" / "runs" / "digits-gsc-plain-seed0" / "result.json"
    killed = start_held(first, "study", str(grid), "--out", "killed", "--workers", "1", cwd=tmp_path)
    while not first.exists():
        assert killed.poll() is None
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    before = first.stat().st_mtime_ns
    resumed = feddiverse(
        "study", str(grid), "--out", "killed", "--workers", "1", "--json", "--no-pictures", cwd=tmp_path
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "1 of 2 runs are done already" in resumed.stderr
    assert first.stat().st_mtime_ns == before
    said = json.loads(resumed.stdout)
    assert [cell["method"] for cell in said["cells"]] == ["plain", "robin"]
    assert (tmp_path / "killed" / "report.html").exists()
    assert (tmp_path / "killed" / "tables" / "comparison.tex").exists()

    whole = feddiverse("study", str(grid), "--out", "whole", "--methods", "robin", "--no-pictures", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert "robin reaches" in whole.stdout.replace("\n", " ")
    results = [tmp_path / name / "runs" / "digits-gsc-robin-seed0" / "result.json" for name in ("killed", "whole")]
    assert len({json.loads(path.read_text())["theta_sha256"] for path in results}) == 1


@pytest.mark.slow
def test_runs_at_the_same_time_give_the_same_weights_and_can_be_taken_over(grid: Path, tmp_path: Path) -> None:
    words = ["study", str(grid), "--workers", "2", "--no-pictures"]
    for out, at_once in (("one", "1"), ("two", "2")):
        made = feddiverse(*words, "--out", out, "--at-once", at_once, cwd=tmp_path)
        assert made.returncode == 0, made.stderr
    assert "left on 1 worker each, 2 at once" in made.stderr
    assert "2/2 runs" in made.stderr

    def weights(out: str) -> list[str]:
        files = sorted((tmp_path / out / "runs").glob("*/result.json"))
        return [json.loads(file.read_text())["theta_sha256"] for file in files]

    assert len(weights("one")) == 2
    assert weights("two") == weights("one")
    taken = feddiverse(
        *words, "--out", "three", "--reuse", "two", "--set", "rebalance_weights=groups", "--at-once", "2", cwd=tmp_path
    )
    assert "2 of 2 runs are done already (2 taken from other studies)" in taken.stderr, taken.stderr
    assert taken.returncode == 0, taken.stderr
    assert "Report: three/report.html" in taken.stdout
    assert weights("three") == weights("one")


@pytest.mark.slow
def test_a_failing_run_is_listed_and_the_others_are_made(grid: Path, tmp_path: Path) -> None:
    grid.write_text(GRID + '[rows.broken]\ncheckpoint = "nowhere.pt"\n')
    done = feddiverse("study", str(grid), "--out", "s", cwd=tmp_path)
    assert done.returncode == 1
    assert "1 run failed" in done.stderr
    assert "digits-gsc-broken-seed0: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "Report: s/report.html" in done.stdout


def test_dry_run_shows_the_grid_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        app, ["study", "selection", "--dry-run", "--methods", "feddiverse, pow-d", "--seeds", "5"]
    )
    assert done.exit_code == 0, done.output
    assert "12 runs in studies/selection-quick, about" in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_study_takes_a_table_and_tells_first_if_it_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('[base]\nfederation = "table:mine.csv"\n[rows.plain]\nselector = "uniform"\n')
    with pytest.raises(UserError, match=r"There is no file mine\.csv"):
        CliRunner().invoke(app, ["study", "mine.toml", "--dry-run"], catch_exceptions=False)
    Path("mine.csv").write_text("image,class,attribute,client,split\na.png,0,0,k,train\nb.png,0,0,,test\n")
    done = CliRunner().invoke(app, ["study", "mine.toml", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "3 runs in studies/mine" in done.output


def test_without_a_name_studies_are_listed() -> None:
    done = CliRunner().invoke(app, ["study"])
    assert all(name in done.output for name in ("quickstart", "selection", "optimizers", "ablation", "FILE.toml"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["study", "selektion"], "There is no study 'selektion' (did you mean 'selection'?)"),
        (["study", "selection", "--preset", "slow"], "There is no preset 'slow'"),
        (["study", "selection", "--seeds", "a,b"], "--seeds takes whole numbers"),
        (["study", "selection", "--federations", "mars"], "The study has no federation 'mars'"),
        (["study", "selection", "--set", "rouns=3", "--dry-run"], "did you mean 'rounds'"),
        (["study", "selection", "--set", "selector=oort"], "would undo what the study compares"),
        (["study", "quickstart", "--set", "federation=gai:digits"], "would undo what the study compares"),
        (["study", "quickstart", "--set", "seed=9"], "given by --seeds"),
        (["study", "quickstart", "--set", "model=nosuch"], "There is no model 'nosuch'"),
        (["study", "quickstart", "--set", "model=:x"], "The model ':x' cannot be imported"),
        (["study", "quickstart", "--set", "estimator=.a:x"], "The estimator '.a:x' cannot be imported"),
        (["study", "quickstart", "--set", "estimator=concensus"], "There is no estimator 'concensus'"),
        (["study", "quickstart", "--device", "nosuch"], "There is no device 'nosuch'"),
        (["study", "quickstart", "--reuse", "nowhere"], "nowhere is no study to take runs from"),
        (["study", "quickstart", "--out", "a-file"], "a-file is a file"),
        (["study", "mine.toml", "--source", "cmnist"], "--preset and --source are for the paper's studies"),
        (["study", "mine.toml"], "There is no selector 'unifrom' (did you mean 'uniform'?)"),
        (["report", "nowhere"], "nowhere is not a directory"),
        (["report", "."], ". holds no finished run"),
        (["report", ".", "--figure-format", "gif"], "--figure-format must be pdf, svg or png"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    words: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a-file").touch()
    Path("mine.toml").write_text('[rows.typo]\nselector = "unifrom"\n')
    with pytest.raises(UserError) as told:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert complaint in str(told.value)
    assert {path.name for path in tmp_path.iterdir()} == {"a-file", "mine.toml"}  # told before anything is made
