"""Trackers people already use, fed with each round's record: TensorBoard event files, MLflow's local file store,
Weights & Biases' offline runs."""

import json
import math
import os
import time
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from feddiverse.errors import UserError, how_to_install

Track = Callable[[dict[str, Any]], None]


def tracker(kind: str, directory: Path) -> Track:
    """A function to call with each round's record of the run in `directory`."""
    return {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}[kind](directory)


def trackers(directory: Path, **wanted: bool) -> list[Track]:
    """One of each kind that is wanted."""
    return [tracker(kind, directory) for kind, on in wanted.items() if on]


def scalars(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a round's record, each group's accuracy by its own name."""
    for key in (
        "train_loss",
        "accuracy",
        "worst_class_accuracy",
        "worst_group_accuracy",
        "worst_estimated_group_accuracy",
        "seconds",
        "bytes_down",
        "bytes_up",
    ):
        if record.get(key) is not None and math.isfinite(record[key]):
            yield key, float(record[key])
    for group in record.get("groups") or []:
        if group["accuracy"] is not None:  # a group without test samples has none
            yield f"group_accuracy/class{group['class']}_attribute{group['attribute']}", float(group["accuracy"])


def _require(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(f"--{extra} needs a package that is not installed: {how_to_install(extra)}.") from error


def _tensorboard(directory: Path) -> Track:
    """Event files under `<run>/tensorboard`, each round on disk as soon as it is done."""
    writers = _require("torch.utils.tensorboard", "tensorboard")
    opened: list[Any] = []

    def track(record: dict[str, Any]) -> None:
        if not opened:  # only now does the run directory exist
            # A run that goes on hides what an earlier sitting wrote beyond its checkpoint.
            opened.append(writers.SummaryWriter(directory / "tensorboard", purge_step=record["round"]))
        for tag, value in scalars(record):
            opened[0].add_scalar(tag, value, record["round"])
        opened[0].flush()

    return track


def _mlflow(directory: Path) -> Track:
    """An MLflow run, named as the run directory, in the file store `mlruns/` of the working directory, or wherever
    `MLFLOW_TRACKING_URI` points to."""
    # MLflow 3 wants to be asked for its file store; and a run reports to nobody but its owner.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    _require("mlflow", "mlflow")
    client_module = _require("mlflow.tracking", "mlflow")
    entities = _require("mlflow.entities", "mlflow")
    state: dict[str, Any] = {}

    def begin() -> None:
        config = tomllib.loads((directory / "config.toml").read_text("utf-8"))
        store = os.environ.get("MLFLOW_TRACKING_URI") or (Path.cwd() / "mlruns").as_uri()
        client = client_module.MlflowClient(tracking_uri=store)
        found = client.get_experiment_by_name("feddiverse")
        experiment = found.experiment_id if found else client.create_experiment("feddiverse")
        params, tags = {key: str(value) for key, value in config.items()}, {"run_dir": str(directory.resolve())}

        def is_ours(run: Any) -> bool:
            interrupted = run.info.status != "FINISHED" and run.data.tags.get("run_dir") == tags["run_dir"]
            return bool(interrupted and run.data.params == params)

        # A run that goes on after an interruption stays one run.
        run = next(filter(is_ours, client.search_runs([experiment])), None)
        if run is None:
            run = client.create_run(experiment, run_name=directory.name, tags=tags)
            client.log_batch(run.info.run_id, params=[entities.Param(key, value) for key, value in params.items()])
        state.update(client=client, run_id=run.info.run_id, rounds=config["rounds"])

    def track(record: dict[str, Any]) -> None:
        if not state:
            begin()
        now = time.time_ns() // 1_000_000
        metrics = [entities.Metric(key, value, now, record["round"]) for key, value in scalars(record)]
        state["client"].log_batch(state["run_id"], metrics=metrics)
        if record["round"] == state["rounds"]:
            state["client"].set_terminated(state["run_id"])

    return track


def _wandb(directory: Path) -> Track:
    """An offline run of Weights & Biases, named as the run directory, in its folder `wandb/`; `wandb sync` sends it.

    Offline there is no going on with a run: one that was interrupted gets a second file, with all its rounds.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # a run reports to nobody but its owner
    wandb = _require("wandb", "wandb")
    state: dict[str, Any] = {}

    def begin(first: int) -> None:
        config = tomllib.loads((directory / "config.toml").read_text("utf-8"))
        settings = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True,
            x_disable_meta=True, x_save_requirements=False,
        )  # fmt: skip
        run = wandb.init(
            project="feddiverse", name=directory.name, dir=directory, config=config, mode="offline",
            reinit="create_new", settings=settings,
        )  # fmt: skip
        state.update(run=run, rounds=config["rounds"])
        if first > 1:
            for line in (directory / "rounds.jsonl").read_text("utf-8").splitlines():
                if (earlier := json.loads(line))["round"] < first:
                    log(earlier)

    def log(record: dict[str, Any]) -> None:
        state["run"].log(dict(scalars(record)), step=record["round"], commit=True)

    def track(record: dict[str, Any]) -> None:
        if not state:
            begin(record["round"])
        log(record)
        if record["round"] == state["rounds"]:
            state["run"].finish()

    return track
