"""`carry_out` over a fake engine: what a run directory holds, and that interruptions leave no trace in the result."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import BrokenEngine, NoiseEngine
from safetensors.numpy import load_file

from feddiverse.errors import RunError, UserError
from feddiverse.experiment import train
from feddiverse.experiment.config import Config
from feddiverse.experiment.run_directory import RunDirectory, read_records
from feddiverse.experiment.train import carry_out

CONFIG = Config(rounds=6, evaluate_every=4, num_selected=3, seed=7)
TIMES = ("seconds", "selection_seconds", "traffic")


def execute(config: Config, out: Path, **how: Any) -> dict[str, Any]:
    """What the result of the run says."""
    return carry_out(config, out=out, **how).summary


def never(*_: object) -> Any:
    raise AssertionError("the run was computed again")


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("run") / "whole"
    return out, execute(CONFIG, out, engine=NoiseEngine)


def test_a_run_directory_is_complete(whole: tuple[Path, dict[str, Any]]) -> None:
    out, result = whole
    records = read_records(out)
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["accuracy"] is not None for record in records] == [False, False, False, True, False, True]
    for key in ("selected", "train_loss", "groups", "seconds", "bytes_down", "bytes_up", "failed", "phase", "traffic"):
        assert key in records[-1]
    assert json.loads((out / "result.json").read_text()) == result
    assert result["rounds"] == 6
    assert result["worst_group_accuracy"] == records[-1]["worst_group_accuracy"]
    assert result["run_dir"] == str(out)
    assert result["config"]["seed"] == 7
    theta = load_file(out / "checkpoint.safetensors")["theta"]
    assert theta.dtype == np.float32
    assert result["theta_sha256"] == hashlib.sha256(theta.tobytes()).hexdigest()
    environment = json.loads((out / "environment.json").read_text())
    assert {"feddiverse", "torch", "numpy", "python", "checkpoint", "data"} <= set(environment)
    federation = json.loads((out / "federation.json").read_text())
    assert federation["name"] == "digits-gsc"
    assert federation["num_selected"] == 3
    assert np.array(federation["counts"]).shape == (24, 2, 2)
    assert sum(result["selection"]["times_chosen"]) == 6 * 3
    assert not (out / "triplets.json").exists()  # uniform estimates nothing
    assert not any(str(Path.home()) in p.read_text() for p in out.glob("*.json") if "run_dir" not in p.read_text())


def test_a_finished_run_is_not_run_again(whole: tuple[Path, dict[str, Any]]) -> None:
    out, result = whole
    before = {path: path.stat().st_mtime_ns for path in out.iterdir() if path.name != ".lock"}
    assert execute(CONFIG, out, engine=never) == result
    assert execute(CONFIG, out, engine=never, resume=True) == result
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_directory_of_another_config_is_refused(whole: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(UserError, match=r"another config: seed \(7, not 8\)"):
        execute(Config(rounds=6, evaluate_every=4, num_selected=3, seed=8), whole[0], engine=never)


@pytest.mark.parametrize("aggregator", ["fedavgm", "fednova", "fedyogi"])
@pytest.mark.parametrize("stop", [1, 3, 6])
def test_interrupted_and_resumed_gives_the_same_bits(tmp_path: Path, aggregator: str, stop: int) -> None:
    config = Config(rounds=6, evaluate_every=4, num_selected=3, selector="round_robin", aggregator=aggregator)
    expected = execute(config, tmp_path / "whole", engine=NoiseEngine)
    engines: list[NoiseEngine] = []

    def opened(*arguments: Any) -> NoiseEngine:
        engines.append(NoiseEngine(*arguments))
        return engines[-1]

    def interrupt(record: dict[str, Any]) -> None:
        if record["round"] == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(config, tmp_path / "parts", engine=opened, on_round=interrupt)
    assert engines[0].closed
    rounds_seen: list[int] = []
    result = execute(
        config, tmp_path / "parts", engine=NoiseEngine, on_round=lambda r: rounds_seen.append(r["round"]), resume=True
    )
    assert rounds_seen == list(range(stop + 1, 7))  # the last finished round was saved on the way out
    assert result["theta_sha256"] == expected["theta_sha256"]
    assert without_times(read_records(tmp_path / "parts")) == without_times(read_records(tmp_path / "whole"))


def test_seconds_add_up_over_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(train.time, "perf_counter", lambda: now[0])

    def slow(stop: int) -> Any:
        def on_round(record: dict[str, Any]) -> None:
            now[0] += 100
            if record["round"] == stop:
                raise KeyboardInterrupt

        return on_round

    with pytest.raises(KeyboardInterrupt):
        execute(CONFIG, tmp_path, engine=NoiseEngine, on_round=slow(3))
    # The checkpoint of round 3 was made before its callback's 100 s: two of the three count.
    assert execute(CONFIG, tmp_path, engine=NoiseEngine, on_round=slow(0))["seconds"] == pytest.approx(500, abs=20)


def test_resume_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no run in"):
        execute(CONFIG, tmp_path / "none", engine=never, resume=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("checkpoint", "/no/such/file.pt", "There is no checkpoint file and no finished run /no/such/file.pt"),
        ("federation", "nowhere-gsc", "nowhere"),
        ("selector", "nobody", "nobody"),
    ],
)
def test_a_run_that_cannot_start_leaves_no_directory(tmp_path: Path, key: str, value: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        execute(Config(**{"model": "cnn", key: value}), tmp_path / "runs" / "a", engine=NoiseEngine)
    assert not (tmp_path / "runs" / "a").exists()


def test_mobilenet_without_its_weights_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddiverse.data.sources.find", lambda name: None)
    with pytest.raises(
        UserError, match=r"run 'feddiverse fetch mobilenet'.*or start from scratch with --checkpoint none"
    ):
        execute(Config(model="mobilenet"), tmp_path / "a", engine=NoiseEngine)


def test_data_that_changed_between_sessions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="3 rounds in a row"):
        execute(CONFIG, tmp_path, engine=BrokenEngine)
    environment = json.loads((tmp_path / "environment.json").read_text())
    environment["data"]["fingerprint"] = "0" * 64
    (tmp_path / "environment.json").write_text(json.dumps(environment))
    with pytest.raises(UserError, match="The data changed since this run began"):
        execute(CONFIG, tmp_path, engine=NoiseEngine)
    assert (tmp_path / "checkpoint.safetensors").exists()


def test_a_run_that_lost_its_clients_goes_on_when_they_are_back(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No client sent usable weights in 3 rounds in a row"):
        execute(CONFIG, tmp_path, engine=BrokenEngine)
    records = read_records(tmp_path)
    assert len(records) == 3
    assert len(records[0]["failed"]) == 3
    assert "the model stays as it was" in records[0]["warnings"][-1]
    with pytest.raises(RunError):
        execute(CONFIG, tmp_path, engine=BrokenEngine)
    assert execute(CONFIG, tmp_path, engine=NoiseEngine)["rounds"] == 6


def test_a_run_that_ends_without_clients_has_no_result_however_often_it_is_asked(tmp_path: Path) -> None:
    config = replace(CONFIG, rounds=3)
    for _ in range(2):
        with pytest.raises(RunError, match="usable weights"):
            execute(config, tmp_path, engine=BrokenEngine)
    assert not (tmp_path / "result.json").exists()


def test_a_disk_that_is_full_from_the_start_leaves_a_run_that_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(rounds=2, evaluate_every=1, num_selected=2, selector="fake_engine:Warned")
    with monkeypatch.context() as patched:

        def full(self: object, snapshot: object) -> None:
            raise UserError("Cannot write it: no space left")

        patched.setattr(RunDirectory, "write_checkpoint", full)
        with pytest.raises(UserError, match="no space left"):
            execute(config, tmp_path / "a", engine=NoiseEngine)
    assert execute(config, tmp_path / "a", engine=NoiseEngine)["rounds"] == 2


def test_going_on_with_another_torch_is_told(tmp_path: Path) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(CONFIG, tmp_path, engine=NoiseEngine, on_round=interrupt)
    environment = json.loads((tmp_path / "environment.json").read_text())
    now, environment["torch"] = environment["torch"], "1.0"
    (tmp_path / "environment.json").write_text(json.dumps(environment))
    execute(CONFIG, tmp_path, engine=NoiseEngine)
    warnings = [warning for record in read_records(tmp_path) for warning in record["warnings"]]
    assert [w for w in warnings if f"torch 1.0, now {now}" in w] == [w for w in warnings if "other software" in w]
    assert sum("other software" in warning for warning in warnings) == 1


def test_a_full_disk_in_the_middle_is_told_and_the_run_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import os

    from feddiverse import files

    expected = execute(CONFIG, tmp_path / "whole", engine=NoiseEngine)
    real = os.fsync

    def fill_up(record: dict[str, Any]) -> None:
        def full(descriptor: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        if record["round"] == 3:
            monkeypatch.setattr(files.os, "fsync", full)

    with pytest.raises(UserError, match="No space left on device; what was there is kept"):
        execute(CONFIG, tmp_path / "parts", engine=NoiseEngine, on_round=fill_up)
    monkeypatch.setattr(files.os, "fsync", real)
    assert execute(CONFIG, tmp_path / "parts", engine=NoiseEngine)["theta_sha256"] == expected["theta_sha256"]


def test_engines_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no engine 'cloud'; choose one of local, flower"):
        execute(CONFIG, tmp_path / "a", engine="cloud")
    assert not (tmp_path / "a").exists()


def test_what_a_users_own_selector_finds_is_recorded_and_its_warnings_told_once(tmp_path: Path) -> None:
    config = Config(rounds=5, evaluate_every=1, num_selected=2, selector="fake_engine:Warned")

    def interrupt(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(config, tmp_path, engine=NoiseEngine, on_round=interrupt)
    execute(config, tmp_path, engine=NoiseEngine)
    assert [record["warnings"] for record in read_records(tmp_path)] == [["all clients look alike"], [], [], [], []]
    found = json.loads((tmp_path / "triplets.json").read_text())["evaluation_only"]
    assert found["truth"]["0"] == pytest.approx([0.531, 0, 0], abs=1e-3)
    assert found["mae"]["ci"] == pytest.approx((0.031 + 0) / 2, abs=1e-3)
