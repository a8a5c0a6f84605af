"""`feddiverse overhead`."""

import math
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from feddiverse.experiment.overhead import Cost


def overhead(
    federation: str = typer.Option("digits-gsc", help="Named federation, split:source, or table:FILE.csv."),
    rounds: int = typer.Option(4, min=3, help="Rounds each method is run for."),
    seed: int = typer.Option(0, min=0, help="Keys all randomness."),
    set_: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Any config key; may be repeated."),
    workers: int = typer.Option(0, min=0, help="Worker processes (0: one a core)."),
    paper_only: bool = typer.Option(False, "--paper-only", help="Only the rows the paper's Table II has."),
    json_: bool = typer.Option(False, "--json", help="Print JSON for programs."),
) -> None:
    """Measure what each way to select costs: the paper's Table II with bytes and seconds beside the formulas."""
    import json

    from feddiverse.cli.console import out, progress
    from feddiverse.experiment.config import parse_assignments
    from feddiverse.experiment.overhead import METHODS, measure

    values: dict[str, Any] = {"federation": federation, "seed": seed, **parse_assignments(set_)}
    methods = tuple(method for method in METHODS if method.in_paper or not paper_only)
    costs = []
    with progress() as bar:
        task = bar.add_task("Overhead", total=len(methods))
        for cost in measure(values, rounds, methods, workers, lambda name: bar.update(task, description=name)):
            costs.append(cost)
            bar.advance(task)
    if json_:
        typer.echo(json.dumps([cost.plain() for cost in costs], ensure_ascii=False))
        return
    first = costs[0]
    out.print(
        f"{federation}: K = {first.num_clients} clients, κ = {first.num_selected} chosen, {rounds} rounds. Measured:"
    )
    out.print("what goes beyond training κ clients a round; once: up to the first choice, with T0's extra training.")
    out.print("Formulas are those of the paper's Table II; in italics ours, where it has none.")
    for table in (_communication(costs), _computation(costs), _by_kind(costs)):
        out.print(table)


def _communication(costs: "list[Cost]") -> "Table":
    from rich.table import Table

    table = Table(title="Communication")
    for header in ("Method", "Frequency", "Overhead"):
        table.add_column(header)
    for header in ("down once", "up once", "down a round", "up a round", "in all"):
        table.add_column(header, justify="right")
    for cost in costs:
        table.add_row(
            cost.method.name, *_formulas(cost, cost.method.frequency, cost.method.communication),
            size(cost.first["bytes_down"]), size(cost.first["bytes_up"]),
            size(cost.each["bytes_down"]), size(cost.each["bytes_up"]),
            size(cost.extra["bytes_down"] + cost.extra["bytes_up"]),
        )  # fmt: skip
    return table


def _computation(costs: "list[Cost]") -> "Table":
    from rich.table import Table

    table = Table(title="Computation, in seconds")
    for header in ("Method", "Client", "once", "a round", "in all", "Server (∀t)", "a round", "in all"):
        table.add_column(header, justify="left" if header[0].isupper() else "right")
    for cost in costs:
        client, server = _formulas(cost, cost.method.client, cost.method.server)
        table.add_row(
            cost.method.name, client, f"{cost.first['client_seconds']:.2f}", f"{cost.each['client_seconds']:.2f}",
            f"{cost.extra['client_seconds']:.2f}", server, f"{cost.server_seconds_each:.4f}",
            f"{cost.server_seconds:.3f}",
        )  # fmt: skip
    return table


def _formulas(cost: "Cost", *formulas: str) -> list[str]:
    return [formula if cost.method.in_paper else f"[italic]{formula}[/]" for formula in formulas]


def _by_kind(costs: "list[Cost]") -> "Table":
    from rich.table import Table

    table = Table(title=f"All messages of {costs[0].rounds} rounds, by kind")
    for header in ("Method", "Kind"):
        table.add_column(header)
    for header in ("messages", "down", "up", "client s", "down a round", "up a round", "client s a round"):
        table.add_column(header, justify="right")
    for cost in costs:
        for kind, row in cost.kinds.items():
            table.add_row(
                cost.method.name, kind, f"{row['messages']:.0f}", size(row["bytes_down"]), size(row["bytes_up"]),
                f"{row['client_seconds']:.2f}", size(row["bytes_down"] / cost.rounds),
                size(row["bytes_up"] / cost.rounds), f"{row['client_seconds'] / cost.rounds:.2f}",
            )  # fmt: skip
        table.add_section()
    return table


def size(num_bytes: float) -> str:
    """Bytes as a person reads them, with four digits."""
    power = 0 if abs(num_bytes) < 1 else min(3, int(math.log10(abs(num_bytes)) / 3))
    return f"{num_bytes / 1000**power:.4g} {('B', 'kB', 'MB', 'GB')[power]}"
