"""TensorBoard, MLflow and Weights & Biases get every round, read back by their own readers."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from feddiverse import errors
from feddiverse.errors import UserError
from feddiverse.experiment import trackers
from feddiverse.experiment.config import Config, to_toml


def record(round: int) -> dict[str, Any]:
    groups = [{"class": 0, "attribute": 1, "correct": 9, "count": 10, "accuracy": 0.9}]
    return {"round": round, "train_loss": 1 / round, "accuracy": 0.95, "worst_group_accuracy": 0.9, "groups": groups,
            "seconds": 0.5, "bytes_down": 10, "bytes_up": None}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(to_toml(Config(rounds=3)))
    return tmp_path / "run"


def test_tensorboard_reads_what_was_tracked(run: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    track = trackers.tracker("tensorboard", run)
    for t in (1, 2, 3):
        track(record(t))
    events = loader.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    seen = [(e.step, e.value) for e in events.Scalars("train_loss")]
    assert seen == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert events.Scalars("group_accuracy/class0_attribute1")[0].value == pytest.approx(0.9)


def test_a_run_that_goes_on_hides_what_tensorboard_had_beyond_its_checkpoint(run: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = trackers.tracker("tensorboard", run)
    for t in (1, 2, 3):
        first(record(t))
    (older,) = (run / "tensorboard").iterdir()
    older.rename(older.with_name("events.out.tfevents.0"))  # read first, whatever the clock's resolution
    second = trackers.tracker("tensorboard", run)  # the checkpoint was that of round 1
    for t in (2, 3):
        second(record(t) | {"train_loss": 7.0})
    events = loader.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train_loss")] == [(1, 1.0), (2, 7.0), (3, 7.0)]


@pytest.mark.slow  # importing MLflow alone takes seconds
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_reads_what_was_tracked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(run.parent)
    track = trackers.tracker("mlflow", run)
    for t in (1, 2, 3):
        track(record(t))
    client = MlflowClient(tracking_uri=(run.parent / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("feddiverse")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["aggregator"] == "fedavgm"
    history = client.get_metric_history(found.info.run_id, "train_loss")
    assert [(m.step, m.value) for m in history] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]


def test_a_run_that_goes_on_stays_one_run_of_mlflow(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(run.parent)
    trackers.tracker("mlflow", run)(record(1))
    second_sitting = trackers.tracker("mlflow", run)
    for t in (2, 3):
        second_sitting(record(t))
    client = MlflowClient(tracking_uri=(run.parent / "mlruns").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("feddiverse").experiment_id])
    assert found.info.status == "FINISHED"
    history = client.get_metric_history(found.info.run_id, "train_loss")
    assert [m.step for m in history] == [1, 2, 3]
    assert all(m.timestamp > 1_600_000_000_000 for m in history)  # milliseconds: not of 1970


@pytest.mark.slow  # importing wandb and starting its service take seconds
@pytest.mark.filterwarnings("ignore")  # its own
def test_wandb_keeps_every_round_offline_also_of_a_run_that_goes_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(run / "cache"))
    monkeypatch.setenv("WANDB_MODE", "online")  # whatever it says, nothing is sent
    track = trackers.tracker("wandb", run)
    for t in (1, 2, 3):
        track(record(t))
    (file,) = (run / "wandb").glob("offline-run-*/*.wandb")
    history = read_wandb(file)
    assert [(row["_step"], row["train_loss"]) for row in history] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert history[-1]["group_accuracy/class0_attribute1"] == 0.9

    (run / "rounds.jsonl").write_text("".join(json.dumps(record(t)) + "\n" for t in (1, 2)))
    second_sitting = trackers.tracker("wandb", run)
    for t in (2, 3):
        second_sitting(record(t))
    latest = (run / "wandb" / "latest-run").resolve()
    (file,) = latest.glob("*.wandb")
    assert [row["_step"] for row in read_wandb(file)] == [1, 2, 3]


def read_wandb(file: Path) -> list[dict[str, Any]]:
    """The history in an offline file, once the process that writes it has come to its end."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    deadline = time.monotonic() + 60
    while True:
        store, lines = DataStore(), []
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            lines.append(Record.FromString(data))
        if lines and lines[-1].WhichOneof("record_type") == "exit":
            break
        assert time.monotonic() < deadline, "the run was never finished"
        time.sleep(0.05)
    items = [line.history.item for line in lines if line.WhichOneof("record_type") == "history"]
    return [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in row} for row in items]


def test_a_missing_extra_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(trackers, "import_module", missing)
    with pytest.raises(UserError, match=r"pip install --constraint \S+/constraints.txt 'feddiverse\[mlflow\]'\.$"):
        trackers.tracker("mlflow", run)


def test_who_installed_a_wheel_is_told_of_no_file_of_the_repository(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert errors.CONSTRAINTS.is_file()  # here
    monkeypatch.setattr(errors, "CONSTRAINTS", tmp_path / "constraints.txt")
    assert errors.how_to_install("hub") == "pip install 'feddiverse[hub]'"
