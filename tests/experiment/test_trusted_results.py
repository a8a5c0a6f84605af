"""Results that cannot drift silently: what was lost, altered or damaged is told, by the run and by whoever reads it."""

import errno
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import NoiseEngine
from safetensors.numpy import save

from feddiverse import files
from feddiverse.errors import RunError, UserError
from feddiverse.experiment import checkpoint, finished
from feddiverse.experiment.config import Config
from feddiverse.experiment.result import load_run
from feddiverse.experiment.study import StudyDirectory
from feddiverse.experiment.train import carry_out
from feddiverse.messages import Reply, Task, Vector
from feddiverse.report.results import load
from feddiverse.report.tables import all_tables

CONFIG = Config(rounds=6, evaluate_every=2, num_selected=3, seed=7, selector="everyone")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "whole"
    carry_out(CONFIG, out=out, engine=NoiseEngine)
    return out


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


class Killed(NoiseEngine):
    """The worker of client 5 is killed whenever it is asked in rounds 2 and 3."""

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        for reply in super().ask(task, theta, clients):
            lost = reply.client == 5 and task.round in (2, 3)
            yield Reply(5, failure="its worker process died 2 times", lost=True) if lost else reply


def test_answers_that_were_lost_make_a_result_incomplete(tmp_path: Path) -> None:
    result = carry_out(CONFIG, out=tmp_path / "run", engine=Killed)
    assert result.summary["incomplete"] == [{"round": 2, "clients": [5]}, {"round": 3, "clients": [5]}]
    assert load_run(tmp_path / "run").summary["incomplete"] == result.summary["incomplete"]
    notes = [note for table in all_tables(load(tmp_path / "run")) for note in table.notes]
    told = "run: Incomplete: answers of 1 clients (5) were lost in 2 rounds, first in round 2"
    assert any(note.startswith(told) for note in notes)


def test_a_whole_run_and_one_with_clients_that_always_fail_are_complete(run: Path, tmp_path: Path) -> None:
    class Broken(NoiseEngine):
        broken = frozenset({5})

    assert load_run(run).summary["incomplete"] == []
    assert carry_out(CONFIG, out=tmp_path / "broken", engine=Broken).summary["incomplete"] == []


def interrupted(out: Path, after: int = 3) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(CONFIG, out=out, engine=NoiseEngine, on_round=stop)


def test_a_config_changed_in_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    kept = file.read_text()
    file.write_text(kept.replace("lr = 0.02", "lr = 0.5"))
    changed = Config(**{**CONFIG.plain(), "lr": 0.5})
    with pytest.raises(UserError, match=r"config.toml was changed since this run began: lr \(0.02, not 0.5\); put it"):
        carry_out(changed, out=tmp_path / "run", engine=NoiseEngine)
    file.write_text(kept)
    assert carry_out(CONFIG, out=tmp_path / "run", engine=NoiseEngine).summary["rounds"] == 6


def test_a_config_changed_after_the_run_is_told(run: Path) -> None:
    file = run / "config.toml"
    file.write_text(file.read_text().replace("lr = 0.02", "lr = 0.5"))
    for read in (load_run, finished.read):
        with pytest.raises(UserError, match=r"config.toml was changed after the run: lr \(0.02, not 0.5\)"):
            read(run)


def test_any_flipped_bit_of_a_checkpoint_is_told(run: Path) -> None:
    file = run / "checkpoint.safetensors"
    whole = bytearray(file.read_bytes())
    for place in np.random.default_rng(0).integers(0, len(whole), 40):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(place) % 8
        with pytest.raises(UserError, match=r"is damaged"):
            checkpoint.unpack(bytes(damaged), file)


def test_a_checkpoint_from_before_there_were_checksums_is_read() -> None:
    snapshot = checkpoint.Snapshot(3, np.ones(2, np.float32), {"m": np.ones(2)}, {}, 0, 1.0)
    arrays: dict[str, Any] = {}
    state = {name: value for name, value in vars(snapshot).items() if name not in ("config", "balancer")}
    tree = json.dumps(checkpoint._flatten(state, "", arrays))
    assert checkpoint.unpack(save(arrays, metadata={"state": tree}), "here").theta.tolist() == [1, 1]
    tree = json.dumps(checkpoint._flatten(vars(snapshot) | {"config": {"seed": 1}}, "", arrays))
    with pytest.raises(UserError, match="its checksum is missing"):
        checkpoint.unpack(save(arrays, metadata={"state": tree}), "here")


def test_weights_of_another_run_are_told(run: Path) -> None:
    file = run / "checkpoint.safetensors"
    snapshot = checkpoint.unpack(file.read_bytes(), file)
    file.write_bytes(checkpoint.pack(checkpoint.Snapshot(**{**vars(snapshot), "theta": snapshot.theta + 1})))
    with pytest.raises(UserError, match="its weights are not those that its result tells of"):
        load_run(run)


def changed(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        file = run / "rounds.jsonl"
        file.write_text("".join(change(file.read_text().splitlines(keepends=True))))

    return damage


def with_value(name: str, value: str) -> Callable[[Path], None]:
    def replace(lines: list[str]) -> list[str]:
        record = json.loads(lines[3])
        record[name] = "VALUE"
        return [*lines[:3], json.dumps(record).replace('"VALUE"', value) + "\n", *lines[4:]]

    return changed(replace)


DAMAGES = {
    "reversed": changed(lambda lines: lines[::-1]),
    "one missing": changed(lambda lines: lines[:2] + lines[3:]),
    "the last missing": changed(lambda lines: lines[:-1]),
    "one twice": changed(lambda lines: [*lines[:3], lines[2], *lines[3:]]),
    "not a number": with_value("accuracy", "NaN"),
    "beyond one": with_value("accuracy", "7.5"),
    "no number": with_value("worst_group_accuracy", '"high"'),
    "no lines": changed(lambda lines: []),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_rounds_that_are_not_what_they_were_are_told(run: Path, damage: Callable[[Path], None]) -> None:
    damage(run)
    for read in (load_run, finished.read, load):
        with pytest.raises(UserError, match=r"is damaged|further"):
            read(run)


def test_a_run_is_not_resumed_from_rounds_that_are_not_what_they_were(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", after=4)
    DAMAGES["reversed"](tmp_path / "run")
    with pytest.raises(RunError, match="lacks rounds that the checkpoint counts on"):
        carry_out(CONFIG, out=tmp_path / "run", engine=NoiseEngine)


def test_a_finished_run_on_a_disk_that_cannot_be_written_to_is_shown(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(files, "take_lock", read_only)
    monkeypatch.setattr(files, "write", read_only)
    assert carry_out(CONFIG, out=run, engine=NoiseEngine).summary["rounds"] == 6


def test_a_second_study_in_the_same_folder_is_told(tmp_path: Path) -> None:
    with (
        StudyDirectory(tmp_path / "study").held(),
        pytest.raises(UserError, match=r"Another process is working on the study in .*; wait for it, or end it"),
        StudyDirectory(tmp_path / "study").held(),
    ):
        pass
    with StudyDirectory(tmp_path / "study").held():
        pass


@pytest.mark.parametrize(("name", "value"), [("retries", -1), ("worker_timeout", -1.0), ("worker_timeout", np.nan)])
def test_patience_that_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match="give numbers from 0"):
        carry_out(CONFIG, **{name: value})


def test_patience_is_for_workers_of_this_machine() -> None:
    with pytest.raises(UserError, match="are for the engine local"):
        carry_out(CONFIG, engine=NoiseEngine, retries=3)
