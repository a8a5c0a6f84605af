"""`feddiverse discover`: what clients differ in, without labels."""

from pathlib import Path
from typing import Any

import typer

from feddiverse.cli import table
from feddiverse.errors import UserError


def discover(
    federation: str = typer.Argument(metavar="FEDERATION|CSV", help="Named federation, split:source, or FILE.csv."),
    out: Path | None = typer.Option(None, help="Folder to write to (default: discover/NAME)."),
    attributes: int = typer.Option(2, min=2, help="How many values of the attribute to tell apart."),
    pretraining_rounds: int = typer.Option(0, min=0, help="T0: rounds of FedAvg with every client before looking."),
    seed: int = typer.Option(0, min=0, help="Keys all randomness: same seed, same answer."),
    image_size: int | None = typer.Option(None, help="Side of photos in pixels."),
    data_dir: str | None = typer.Option(None, help="Where a photo set lies, if not in the cache."),
    client: str = table.CLIENT,
    label: str = table.LABEL,
    attribute: str = table.ATTRIBUTE,
    image: str = table.IMAGE,
    split: str = table.SPLIT,
    features: str = table.FEATURES,
    pictures: bool = typer.Option(True, "--pictures/--no-pictures", help="Whether the page may show samples."),
    set_: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Any config key; may be repeated."),
    workers: int = typer.Option(0, min=0, help="Worker processes (0: one a core). Does not change the result."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    json_: bool = typer.Option(False, "--json", help="Print discovery.json for programs."),
) -> None:
    """Find what clients differ in, without labels of it: a page to look at, and a table of samples."""
    import json

    from feddiverse.cli.console import err, progress
    from feddiverse.cli.console import out as console
    from feddiverse.experiment import discovery
    from feddiverse.experiment.config import parse_assignments

    settings: dict[str, Any] = {"image_size": image_size, "data_dir": data_dir}
    settings = {key: value for key, value in settings.items() if value is not None}
    settings |= table.settings(client, label, attribute, image, split, features)
    given = {
        "attributes": attributes,
        "pretraining_rounds": pretraining_rounds,
        "seed": seed,
        **settings,
        **parse_assignments(set_),
    }
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
    console.print(found.headline, highlight=False, markup=False)
    six = ((name.upper(), value) for name, value in found.metrics.items() if value is not None)
    console.print("By estimate: " + ", ".join(f"{name} {value:.3f}" for name, value in six), highlight=False)
    for warning in found.warnings:
        err.print(warning, highlight=False, markup=False)
    console.print(f"Look at it: {folder / 'index.html'}", highlight=False, markup=False, soft_wrap=True)
