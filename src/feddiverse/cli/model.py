"""`feddiverse export` and `feddiverse predict`: the trained model of a run, in a file and in use."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import typer

from feddiverse.cli import options
from feddiverse.errors import UserError

HEAD = typer.Option("", help="trained or rebalanced; by default the rebalanced one if the run has one.")


def export(
    run: Path = typer.Argument(..., metavar="RUN", help="A finished run directory."),
    out: Path | None = typer.Option(None, metavar="FILE", help="Where to write (default: RUN/model.safetensors)."),
    head: str = HEAD,
) -> None:
    """Write a run's model as named tensors (safetensors), with class names, size and normalisation."""
    from feddiverse.experiment.result import load_run, open_model

    path = out or run / "model.safetensors"
    if path.suffix != ".safetensors":
        raise UserError(f"'{path}' must end in .safetensors.")
    load_run(run)  # says so if it is not finished
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent} to write into.")
    typer.echo(open_model(run, head=head).save(path))


def predict(
    model: Path = typer.Argument(..., metavar="RUN|FILE", help="A finished run directory, or an exported model."),
    pictures: list[Path] = typer.Argument(..., metavar="PICTURE…", help="Picture files."),
    head: str = HEAD,
    csv_: bool = typer.Option(False, "--csv", help="Print CSV: picture, class, probability."),
    json_: bool = options.JSON,
) -> None:
    """Tell the class of pictures by a trained model."""
    import numpy as np

    from feddiverse.data.pictures import decode
    from feddiverse.experiment.result import open_model

    if csv_ and json_:
        raise UserError("Choose one of --csv and --json.")
    opened = open_model(model, head=head)
    shape = tuple(opened.about["shape"])
    if opened.about["mean"] is None or len(shape) != 3 or shape[0] != 3:
        raise UserError(f"The model of {model} takes arrays of shape {shape}, no pictures: use Result.predict.")
    if missing := next((picture for picture in pictures if not picture.is_file()), None):
        raise UserError(f"There is no picture {missing}.")
    chances = opened.probabilities(np.stack([decode(picture, shape[1]) for picture in pictures]))
    rows: list[dict[str, Any]] = [
        {"picture": str(picture), "class": opened.about["class_names"][int(chance.argmax())],
         "probability": round(float(chance.max()), 4)}
        for picture, chance in zip(pictures, chances, strict=True)
    ]  # fmt: skip
    if json_:
        typer.echo(json.dumps(rows, ensure_ascii=False))
    elif csv_:
        writer = csv.DictWriter(sys.stdout, ["picture", "class", "probability"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        for row in rows:
            typer.echo(f"{row['picture']}: {row['class']} ({row['probability']:.1%})")
