"""`feddiverse federations`."""

from typing import Any

import typer


def federations(json: bool = typer.Option(False, "--json", help="Print JSON for programs.")) -> None:
    """List the named federations and what is missing to use them."""
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
        out.print(f"To use {source}: {missing}", highlight=False)
