"""The promise of bits, on real digits with real processes: any number of workers, Ctrl-C, and kill -9."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from feddiverse.experiment.config import Config
from feddiverse.experiment.run_directory import read_records
from feddiverse.experiment.train import carry_out

KEYS = {
    "rounds": 20,
    "num_selected": 2,
    "batch_size": 140,  # one step a client: what is tested is not how long training takes
    "evaluate_every": 10,
    "selector": "feddiverse",
    "estimator": "oracle",
}
CONFIG = Config(**KEYS)
OPTIONS = [f"--set={key}={value}" for key, value in KEYS.items()]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return carry_out(CONFIG, out=tmp_path_factory.mktemp("whole"), workers=2).summary


# What a terminal gives, whatever our parent does with Ctrl-C; and training that lasts for hours from some round on, so
# that however busy the machine is, a run does not get further before the signal reaches it.
PROGRAM = """
import signal, time
signal.signal(signal.SIGINT, {ctrl_c})
from feddiverse.cli import main
from feddiverse.client import tasks
from feddiverse.messages import Train

def train(task, *rest):
    time.sleep(0 if task.round < {held} else 3600)
    return tasks.train(task, *rest)

tasks.ANSWERS[Train] = train
main()
"""
NEVER = 1_000
PATIENCE = 800  # seconds: to be told what hangs before pytest ends the test


def start(
    arguments: Sequence[str | Path], held: int = NEVER, ctrl_c: str = "signal.default_int_handler"
) -> subprocess.Popen[str]:
    """`feddiverse run` in a process group of its own, held up in the round `held`."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            PROGRAM.format(held=held, ctrl_c=ctrl_c),
            "run",
            *map(str, arguments),
            "--json",
            "--workers",
            "2",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_round(out: Path, number: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while len(read_records(out)) < number:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.005)


@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_workers_gives_the_same_bits(expected: dict[str, Any], tmp_path: Path, workers: int) -> None:
    assert carry_out(CONFIG, out=tmp_path, workers=workers).theta_sha256 == expected["theta_sha256"]


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed_gives_the_same_bits(expected: dict[str, Any], tmp_path: Path) -> None:
    """Kill -9 of the whole process group, at random times after random rounds, and at the latest in the third one."""
    dice = random.Random(os.environ.get("FEDDIVERSE_KILL_SEED", "1"))
    out = tmp_path / "run"
    arguments: list[str | Path] = [*OPTIONS, "--out", out]
    for number in sorted(dice.sample(range(18), 4)):
        process = start(arguments, held=number + 3)
        wait_for_round(out, number, process)
        time.sleep(dice.uniform(0, 0.3))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert number <= len(read_records(out)) < number + 3
        if (out / "config.toml").exists():
            arguments = ["--resume", out]
    process = start(arguments)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["theta_sha256"] == expected["theta_sha256"]
    assert [record["round"] for record in read_records(out)] == list(range(1, 21))


@pytest.mark.slow
def test_ctrl_c_waits_for_no_client_and_says_how_to_go_on(expected: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start([*OPTIONS, "--out", out], held=4)
    wait_for_round(out, 3, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert stdout == ""
    assert f"go on with: feddiverse run --resume {out}" in stderr
    assert "Traceback" not in stderr
    assert len(read_records(out)) == 3
    process = start(["--resume", out])
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["theta_sha256"] == expected["theta_sha256"]


@pytest.mark.slow
def test_a_run_in_the_background_goes_on_at_ctrl_c(expected: dict[str, Any], tmp_path: Path) -> None:
    """Shells have background jobs ignore it, so that Ctrl-C for another program does not end them."""
    out = tmp_path / "run"
    process = start([*OPTIONS, "--out", out], ctrl_c="signal.SIG_IGN")
    wait_for_round(out, 3, process)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["theta_sha256"] == expected["theta_sha256"]


def test_triplets_are_recorded_beside_the_truth(expected: dict[str, Any]) -> None:
    triplets = json.loads((Path(expected["run_dir"]) / "triplets.json").read_text())
    assert triplets["estimator"] == "oracle"
    assert len(triplets["triplets"]) == 24
    assert triplets["evaluation_only"]["r"] == pytest.approx({"ci": 1, "ai": 1, "sc": 1})
    assert triplets["evaluation_only"]["mae"] == pytest.approx({"ci": 0, "ai": 0, "sc": 0})
    records = read_records(Path(expected["run_dir"]))
    assert [record["phase"] for record in records[:2]] == ["pretraining", "selected"]
    assert len(records[0]["selected"]) == 24
    assert records[1]["traffic"].keys() == {"true_matrix", "train"}
