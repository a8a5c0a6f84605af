"""`feddiverse federations`, and `feddiverse federations export`."""

from pathlib import Path
from typing import Any

import typer

from feddiverse.cli import options

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None, suggest_commands=False)


@app.callback()
def federations(context: typer.Context, json: bool = options.JSON) -> None:
    """List the named federations and what is missing to use them; export one for others to use."""
    if context.invoked_subcommand is None:
        _list(json)


@app.command()
def export(
    federation: str = options.FEDERATION,
    out: Path = typer.Option(..., help="Folder to write to."),
    seed: int = typer.Option(0, min=0, help="Seed of the split."),
    pictures: bool = typer.Option(False, "--pictures", help="Copy a photo set's pictures too."),
    image_size: int = typer.Option(0, min=0, help="Side of photos in pixels, to be written down."),
    data_dir: str = typer.Option("", help="Where a photo set lies, if not in the cache."),
    client: str = options.CLIENT,
    label: str = options.LABEL,
    attribute: str = options.ATTRIBUTE,
    image: str = options.IMAGE,
    split: str = options.SPLIT,
) -> None:
    """Write who has what as one CSV, which `feddiverse run` reads back to the same bits."""
    from feddiverse.cli.console import out as console
    from feddiverse.data import open_federation
    from feddiverse.data.names import full_name
    from feddiverse.data.sharing import export as write

    columns = options.columns(client, label, attribute, image, split).get("columns", "")
    opened = open_federation(full_name(federation), seed, image_size=image_size, data_dir=data_dir, columns=columns)
    path = write(opened, out, seed=seed, pictures=pictures)
    sentence = (
        f"{opened.num_clients} clients, {opened.counts.sum():,} samples and {len(opened.test_ids):,} to test on in"
        f" {path}; the same bits: feddiverse run --federation {path} --seed {seed}"
    )
    console.say(sentence, whole=True)


def _list(json: bool) -> None:
    from feddiverse.data import missing
    from feddiverse.data.names import FEDERATIONS, split_of

    rows = []
    for name, (split, source) in FEDERATIONS.items():
        made = split_of(name)
        num_clients, num_classes, num_attributes = made.counts.shape
        rows.append(
            {
                "name": name,
                "split": split,
                "source": source,
                "clients": num_clients,
                "selected": made.num_selected,
                "samples": int(made.counts.sum()),
                "classes": num_classes,
                "attributes": num_attributes,
                "missing": missing(source),
            }
        )
    if json:
        from json import dumps

        typer.echo(dumps(rows, indent=2))
    else:
        _print(rows)


def _print(rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    from feddiverse.cli.console import out

    table = Table("federation", "split:source", box=box.SIMPLE_HEAD)
    for heading in ("clients", "a round", "samples"):
        table.add_column(heading, justify="right")
    table.add_column("ready")
    for row in rows:
        numbers = (f"{row[key]:,}" for key in ("clients", "selected", "samples"))
        ready = "yes" if row["missing"] is None else "no"
        table.add_row(row["name"], f"{row['split']}:{row['source']}", *numbers, ready)
    out.print(table)
    out.print("Any split runs on any source that has its classes: name it split:source, such as gai:digits.")
    for source, missing in {row["source"]: row["missing"] for row in rows if row["missing"]}.items():
        out.say(f"To use {source}: {missing}")
