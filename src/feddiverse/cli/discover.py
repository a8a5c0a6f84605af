"""`feddiverse discover`: what clients differ in, without labels."""

from pathlib import Path

import typer

from feddiverse.cli import options
from feddiverse.errors import UserError


def discover(
    federation: str = options.FEDERATION,
    out: Path | None = typer.Option(None, help="Folder to write to (default: discover/NAME)."),
    attributes: int = typer.Option(2, min=2, help="How many values of the attribute to tell apart."),
    pretraining_rounds: int = typer.Option(0, min=0, help="T0: rounds of FedAvg with every client before looking."),
    seed: int = typer.Option(0, min=0, help="Keys all randomness: same seed, same answer."),
    image_size: int | None = options.IMAGE_SIZE,
    data_dir: str | None = options.DATA_DIR,
    client: str = options.CLIENT,
    label: str = options.LABEL,
    attribute: str = options.ATTRIBUTE,
    image: str = options.IMAGE,
    split: str = options.SPLIT,
    features: str = options.FEATURES,
    pictures: bool = typer.Option(True, "--pictures/--no-pictures", help="Whether the page may show samples."),
    set_: list[str] = options.SET,
    workers: int = options.WORKERS,
    device: str = options.DEVICE,
    json_: bool = typer.Option(False, "--json", help="Print discovery.json for programs."),
) -> None:
    """Find what clients differ in, without labels of it: a page to look at, and a table of samples."""
    import json

    from feddiverse.cli.console import err, progress
    from feddiverse.cli.console import out as console
    from feddiverse.experiment import discovery
    from feddiverse.experiment.config import parse_assignments

    given = options.given(
        attributes=attributes, pretraining_rounds=pretraining_rounds, seed=seed, image_size=image_size,
        data_dir=data_dir,
    )  # fmt: skip
    given |= options.columns(client, label, attribute, image, split, features) | parse_assignments(set_)
    if own := [key for key in ("federation", "workers", "device", "tell") if key in given]:
        raise UserError(f"'{own[0]}' is no config key to --set here: it is an argument or option of its own.")
    with progress() as bar:
        task = bar.add_task("Reading the data", total=None)
        found = discovery.discover(
            federation, workers=workers, device=device, tell=lambda what: bar.update(task, description=what), **given
        )
    folder = found.save(out or Path("discover") / discovery.folder_of(found.federation.name), pictures=pictures)
    if json_:
        typer.echo(json.dumps(found.report(), allow_nan=False))
        return
    console.say(found.headline)
    six = ((name.upper(), value) for name, value in found.metrics.items() if value is not None)
    console.say("By estimate: " + ", ".join(f"{name} {value:.3f}" for name, value in six))
    for warning in found.warnings:
        err.say(warning)
    console.say(f"Look at it: {folder / 'index.html'}", whole=True)
