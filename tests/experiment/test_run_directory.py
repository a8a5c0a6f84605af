"""Run directories: refused when foreign, safe on full disks, cut back to their checkpoint."""

import errno
import json
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from feddiverse import files
from feddiverse.errors import RunError, UserError
from feddiverse.experiment.checkpoint import Snapshot
from feddiverse.experiment.config import Config
from feddiverse.experiment.run_directory import RunDirectory, read_config, read_records, run_name

CONFIG = Config(rounds=4)


def snapshot(number: int) -> Snapshot:
    return Snapshot(number, np.zeros(2, np.float32), {}, {}, 0, 1.0)


def test_another_config_is_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run", CONFIG).close()
    assert read_config(tmp_path / "run") == CONFIG
    with pytest.raises(UserError, match=r"another config: seed \(0, not 5\), rounds \(4, not 9\)"):
        RunDirectory(tmp_path / "run", Config(rounds=9, seed=5))
    RunDirectory(tmp_path / "run", CONFIG).close()  # the same is welcome


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match=r"is not empty and no run directory \(it has thesis.tex\)"):
        RunDirectory(tmp_path, CONFIG)
    assert not (tmp_path / "config.toml").exists()


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match=r"Cannot write .*runs/a"):
        RunDirectory(tmp_path / "runs" / "a", CONFIG)


def test_no_two_processes_work_on_one_run(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from feddiverse.experiment.run_directory import *;"
        "RunDirectory(Path(sys.argv[1]), Config(rounds=4))"
    )
    with RunDirectory(tmp_path, CONFIG):
        other = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert "Another process is working on the run" in other.stderr
    assert subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode == 0


def test_a_forked_worker_that_outlives_the_run_does_not_hold_it(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    done = fork.Event()
    with RunDirectory(tmp_path, CONFIG):
        worker = fork.Process(target=done.wait)
        worker.start()
    RunDirectory(tmp_path, CONFIG).close()
    done.set()
    worker.join()


def test_a_killed_run_is_free_even_while_a_worker_it_forked_lives(tmp_path: Path) -> None:
    """A lock of the whole process family would hold the run until the last worker is gone."""
    code = (
        "import os, sys, time; from pathlib import Path; from feddiverse.experiment.run_directory import *\n"
        "directory = RunDirectory(Path(sys.argv[1]), Config(rounds=4))\n"
        "if os.fork(): time.sleep(600)\n"
        "print(os.getpid(), flush=True)\n"  # said by the worker: by then it has let go of what it inherited
        "sys.stdin.read(); os._exit(0)"  # lives until its standard input ends
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        worker = int(owner.stdout.readline())
        with pytest.raises(UserError, match="Another process is working on the run"):
            RunDirectory(tmp_path, CONFIG)
        owner.kill()
        owner.wait()
        os.kill(worker, 0)  # still there
        RunDirectory(tmp_path, CONFIG).close()


def test_closing_in_another_thread_frees_the_run(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path, CONFIG)
    closer = threading.Thread(target=directory.close)
    closer.start()
    closer.join()
    RunDirectory(tmp_path, CONFIG).close()


def test_lines_after_the_checkpoint_and_torn_ones_are_cut_off(tmp_path: Path) -> None:
    with RunDirectory(tmp_path, CONFIG) as directory:
        assert directory.go_back_to_checkpoint() is None
        for number in range(1, 4):
            directory.append({"round": number})
        directory.write_checkpoint(snapshot(2))
    with (tmp_path / "rounds.jsonl").open("a") as stream:
        stream.write('{"round": 4, "sele')
    assert [record["round"] for record in read_records(tmp_path)] == [1, 2, 3]
    with RunDirectory(tmp_path, CONFIG) as directory:
        assert directory.go_back_to_checkpoint().round == 2
        directory.append({"round": 3, "again": True})
    assert read_records(tmp_path) == [{"round": 1}, {"round": 2}, {"round": 3, "again": True}]


@pytest.mark.parametrize("line", ["5", '"x"', "[]", "{}", "null"])
def test_a_line_that_is_no_record_is_cut_off_too(tmp_path: Path, line: str) -> None:
    with RunDirectory(tmp_path, CONFIG) as directory:
        directory.append({"round": 1})
        directory.write_checkpoint(snapshot(1))
    with (tmp_path / "rounds.jsonl").open("a") as stream:
        stream.write(line + "\n")
    with RunDirectory(tmp_path, CONFIG) as directory:
        assert directory.go_back_to_checkpoint().round == 1
    assert read_records(tmp_path) == [{"round": 1}]


@pytest.mark.parametrize("content", ["5", "[]", "{}", "{"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    with RunDirectory(tmp_path, CONFIG) as directory:
        (tmp_path / "result.json").write_text(content)
        with pytest.raises(UserError, match=r"result.json is damaged"):
            directory.read_json("result.json")


def test_without_a_checkpoint_everything_starts_again(tmp_path: Path) -> None:
    with RunDirectory(tmp_path, CONFIG) as directory:
        directory.append({"round": 1})
    with RunDirectory(tmp_path, CONFIG) as directory:
        assert directory.go_back_to_checkpoint() is None
    assert read_records(tmp_path) == []


def test_a_checkpoint_that_counts_on_missing_lines_is_told(tmp_path: Path) -> None:
    with RunDirectory(tmp_path, CONFIG) as directory:
        directory.append({"round": 1})
        directory.write_checkpoint(snapshot(2))
        with pytest.raises(RunError, match="lacks rounds that the checkpoint counts on"):
            directory.go_back_to_checkpoint()


def test_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunDirectory(tmp_path, CONFIG) as directory:
        directory.append({"round": 1})
        directory.write_checkpoint(snapshot(1))
        before = (tmp_path / "checkpoint.safetensors").read_bytes()

        def full(descriptor: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(files.os, "fsync", full)
        with pytest.raises(UserError, match=r"Cannot write .*: No space left on device; what was there is kept"):
            directory.write_checkpoint(snapshot(2))
        with pytest.raises(UserError, match=r"Cannot write .*result.json: No space left on device"):
            directory.write_json("result.json", {})
        assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
        assert sorted(p.name for p in tmp_path.iterdir()) == [
            ".lock",
            "checkpoint.safetensors",
            "config.toml",
            "rounds.jsonl",
        ]


def test_a_line_that_does_not_fit_is_not_written_in_part(tmp_path: Path) -> None:
    """A real limit of the operating system: no file may grow beyond 4,000 bytes."""
    with RunDirectory(tmp_path, CONFIG) as directory:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        directory.append({"round": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
        try:
            with pytest.raises(UserError, match=r"Cannot write .*rounds.jsonl"):
                directory.append({"round": 2, "text": "x" * 5000})
            with pytest.raises(UserError, match=r"Cannot write .*federation.json: File too large"):
                directory.write_json("federation.json", {"text": "x" * 5000})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "rounds.jsonl").read_text() == '{"round": 1}\n'
    assert not (tmp_path / "federation.json").exists()


def test_json_is_replaced_whole_and_never_nan(tmp_path: Path) -> None:
    with RunDirectory(tmp_path, CONFIG) as directory:
        directory.write_json("x.json", {"a": 1})
        with pytest.raises(ValueError, match="Out of range float"):
            directory.write_json("x.json", {"a": float("nan")})
        assert directory.read_json("x.json") == {"a": 1}
        assert directory.read_json("y.json") is None
        (tmp_path / "x.json").write_text("{")
        with pytest.raises(UserError, match=r"x.json is damaged"):
            directory.read_json("x.json")


def test_names_say_what_differs_from_the_defaults() -> None:
    assert run_name(Config()) == run_name(Config(rounds=100, lr=0.02)) == "digits-gsc-uniform-seed0"
    assert run_name(Config(federation="cmnist-gsc", rounds=5, seed=3)) == "cmnist-gsc-uniform-seed3-rounds5"
    assert run_name(Config(aggregator="fedavg")) == "digits-gsc-uniform-fedavg-seed0"
    assert run_name(Config(federation="table:/some/where/patients.csv")).startswith("patients-uniform-seed0")
    assert "/" not in run_name(Config(checkpoint="/some/where.pt"))
    long = [Config(data_dir="/a" * 40, lr=lr) for lr in (0.1, 0.2)]
    assert len({run_name(config) for config in long}) == 2
    assert all(re.fullmatch(r"digits-gsc-uniform-seed0-[0-9a-f]{8}", run_name(config)) for config in long)
    assert run_name(Config(lr=0.1)) != run_name(Config(lr=0.2))


def test_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no run in .*: it has no config.toml"):
        read_config(tmp_path)
    (tmp_path / "config.toml").write_text("round = 3")
    with pytest.raises(UserError, match=r"Unknown key 'round' in .*config.toml \(did you mean 'rounds'\?\)"):
        read_config(tmp_path)


def test_records_are_plain_json_lines(tmp_path: Path) -> None:
    with RunDirectory(tmp_path, CONFIG) as directory:
        directory.append({"round": 1, "name": "θ"})
    assert [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text("utf-8").splitlines()] == [
        {"round": 1, "name": "θ"}
    ]
