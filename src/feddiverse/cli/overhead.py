"""`feddiverse overhead`."""

from typing import Any

import typer

from feddiverse.cli import options


def overhead(
    federation: str = typer.Option("digits-gsc", help="Named federation, split:source, or table:FILE.csv."),
    rounds: int = typer.Option(4, min=3, help="Rounds each method is run for."),
    seed: int = typer.Option(0, min=0, help="Keys all randomness."),
    set_: list[str] = options.SET,
    workers: int = typer.Option(0, min=0, help="Worker processes (0: one a core)."),
    paper_only: bool = typer.Option(False, "--paper-only", help="Only the rows the paper's Table II has."),
    json_: bool = options.JSON,
) -> None:
    """Measure what each way to select costs: the paper's Table II with bytes and seconds beside the formulas."""
    import json
    from dataclasses import asdict

    from feddiverse.cli.console import progress, show_table
    from feddiverse.experiment.config import parse_assignments
    from feddiverse.experiment.overhead import METHODS, measure
    from feddiverse.report.costs import overhead_tables
    from feddiverse.report.published import OVERHEAD

    values: dict[str, Any] = {"federation": federation, "seed": seed, **parse_assignments(set_)}
    methods = [name for name in METHODS if OVERHEAD[name].in_paper or not paper_only]
    costs = {}
    with progress() as bar:
        task = bar.add_task("Overhead", total=len(methods))
        for name, cost in measure(values, rounds, methods, workers, lambda name: bar.update(task, description=name)):
            costs[name] = cost
            bar.advance(task)
    if json_:
        plain = [
            {"method": {"name": name, "config": METHODS[name], **asdict(OVERHEAD[name])}, **asdict(cost)}
            for name, cost in costs.items()
        ]
        typer.echo(json.dumps(plain, ensure_ascii=False))
        return
    for table in overhead_tables({(name, federation): [cost] for name, cost in costs.items()}):
        show_table(table)
