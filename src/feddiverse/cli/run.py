"""`feddiverse run`: one training run, shown live, written to a run directory."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from feddiverse.cli import options
from feddiverse.errors import UserError

if TYPE_CHECKING:
    from feddiverse.experiment.config import Config


def run(
    federation: str | None = typer.Option(None, help="Named federation, split:source, or a table FILE.csv."),
    selector: str | None = typer.Option(None, help="Who is asked each round: uniform, feddiverse, pow_d, …"),
    aggregator: str | None = typer.Option(
        None, "--aggregator", "--optimizer", help="How updates are combined: fedavgm, fedavg, fednova, fedprox, …"
    ),
    estimator: str | None = typer.Option(None, help="How feddiverse learns triplets: consensus, paper, oracle."),
    rounds: int | None = typer.Option(None, help="Rounds of training, pre-training included."),
    seed: int | None = typer.Option(None, help="Keys all randomness: same seed, same bits."),
    model: str | None = options.MODEL,
    checkpoint: str | None = typer.Option(None, help="Weights to start from: a file, a run directory, or none."),
    clients_per_round: int | None = options.CLIENTS_PER_ROUND,
    lr: float | None = typer.Option(None, help="Learning rate of the clients."),
    epochs: int | None = typer.Option(None, help="Epochs a client trains each round."),
    batch_size: int | None = typer.Option(None, help="Samples in a client's batch."),
    image_size: int | None = options.IMAGE_SIZE,
    data_dir: str | None = options.DATA_DIR,
    client: str = options.CLIENT,
    label: str = options.LABEL,
    attribute: str = options.ATTRIBUTE,
    image: str = options.IMAGE,
    split: str = options.SPLIT,
    features: str = options.FEATURES,
    config: Path | None = typer.Option(None, help="TOML file of config keys."),
    set_: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Any config key, or a parameter of a part (selector.NAME=…)."
    ),
    recipe: str | None = typer.Option(
        None, help="balanced: hidden groups count equally; auto: or classes; robust: bounds on liars."
    ),
    draw: str | None = typer.Option(None, help="How clients draw samples: plain, or balanced over hidden groups."),
    rebalance: bool = typer.Option(False, "--rebalance", help="Solve the last layer anew, hidden groups equal."),
    out: Path | None = typer.Option(None, help="Run directory (default: runs/<name of the run>)."),
    resume: Path | None = typer.Option(
        None, metavar="DIR", help="Go on with the run in this directory; with more --rounds, train it further."
    ),
    workers: int = options.WORKERS,
    retries: int | None = options.RETRIES,
    worker_timeout: float | None = options.WORKER_TIMEOUT,
    device: str = options.DEVICE,
    engine: str = options.ENGINE,
    json_: bool = options.RESULT_AS_JSON,
    tensorboard: bool = typer.Option(
        False, "--tensorboard", help="Also write TensorBoard files into the run directory."
    ),
    mlflow: bool = typer.Option(False, "--mlflow", help="Also log to MLflow."),
    wandb: bool = typer.Option(False, "--wandb", help="Also write Weights & Biases files into the run directory."),
) -> None:
    """Train one federation and write a run directory. All keys for --set are listed in docs/running.md."""
    given = options.given(
        federation=federation, selector=selector, aggregator=aggregator, estimator=estimator,
        rounds=rounds, seed=seed, model=model, checkpoint=checkpoint, num_selected=clients_per_round,
        lr=lr, epochs=epochs, batch_size=batch_size, image_size=image_size, data_dir=data_dir,
        recipe=recipe, draw=draw, rebalance=rebalance or None,
    )  # fmt: skip
    given |= options.columns(client, label, attribute, image, split, features)
    settings, directory = _settings(given, config, set_, out, resume)

    from feddiverse.cli.live import Live
    from feddiverse.experiment.trackers import trackers
    from feddiverse.experiment.train import carry_out

    watchers = trackers(directory, tensorboard=tensorboard, mlflow=mlflow, wandb=wandb)
    with Live(settings, directory) as live:

        def on_round(record: dict[str, Any]) -> None:
            for watch in (live.show, *watchers):
                watch(record)

        try:
            result = carry_out(
                settings, out=directory, workers=workers, device=device, engine=engine, on_round=on_round,
                resume=resume is not None, retries=retries, worker_timeout=worker_timeout,
            )  # fmt: skip
        except KeyboardInterrupt:
            live.interrupted()
            os._exit(130)  # all is written, workers are gone; taking torch down in order could take seconds
    if json_:
        typer.echo(json.dumps(result.summary))
    else:
        live.finished(result.summary)


def _settings(
    given: dict[str, Any], file: Path | None, assignments: list[str], out: Path | None, resume: Path | None
) -> "tuple[Config, Path]":
    """The config and its directory. Later wins: file, options, `--set`.

    With `--resume` all must agree with the run, but for more `rounds`: these train it further.
    """
    from feddiverse.experiment.config import differences, from_mapping, parse_assignments, read_toml
    from feddiverse.experiment.run_directory import read_config, run_name

    values = {**(read_toml(file) if file else {}), **given, **parse_assignments(assignments)}
    if resume is None:
        config = from_mapping(values)
        return config, out or Path("runs") / run_name(config)
    if out not in (None, resume):
        raise UserError("--resume names the run directory already: leave --out away.")
    there = read_config(resume)
    config = from_mapping({**there.plain(), **values})  # wrong keys and values are told as always
    same_rounds = {} if config.rounds < there.rounds else {"rounds": there.rounds}
    if differing := differences(there.plain(), {**config.plain(), **same_rounds}):
        raise UserError(
            f"The run in {resume} has another config: {', '.join(differing)}; start a new run without --resume."
        )
    return config, resume
