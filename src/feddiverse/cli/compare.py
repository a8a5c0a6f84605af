"""`feddiverse compare`: which method suits this federation, or one's own table, best."""

from pathlib import Path
from typing import Any

import typer

from feddiverse.cli import study, table


def compare(
    federation: str = typer.Argument(metavar="FEDERATION|CSV", help="Named federation, split:source, or FILE.csv."),
    seeds: str = typer.Option("", help="Seeds, such as 0,1,2 (the default)."),
    methods: str = typer.Option("", help="Only these, separated by commas."),
    rounds: int | None = typer.Option(None, help="Rounds of training (default: 50; photos 30)."),
    clients_per_round: int | None = typer.Option(None, help="How many clients are asked each round."),
    holdout: float | None = typer.Option(None, help="Share of its own samples each client keeps for evaluation only."),
    model: str | None = typer.Option(None, help="mobilenet, cnn, mlp, or package.module:factory."),
    image_size: int | None = typer.Option(None, help="Side of photos in pixels (default for a table: 64)."),
    data_dir: str | None = typer.Option(None, help="Where a photo set lies, if not in the cache."),
    client: str = table.CLIENT,
    label: str = table.LABEL,
    attribute: str = table.ATTRIBUTE,
    image: str = table.IMAGE,
    split: str = table.SPLIT,
    features: str = table.FEATURES,
    set_: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="A config key for all runs; may be repeated."
    ),
    out: Path | None = typer.Option(None, help="Study directory (default: studies/compare-<name>)."),
    workers: int = typer.Option(0, min=0, help="Worker processes (0: one a core). Does not change the result."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show the runs and the expected time; run nothing."),
    json_: bool = typer.Option(False, "--json", help="Print the table's numbers as JSON on stdout."),
) -> None:
    """Compare uniform selection, pow-d, FedDiverse and FedDiverse with balanced groups, over seeds, in a report."""
    from feddiverse.experiment.config import parse_assignments
    from feddiverse.experiment.discovery import folder_of
    from feddiverse.experiment.grids import SEEDS, comparison

    given: dict[str, Any] = {
        "rounds": rounds, "num_selected": clients_per_round, "holdout": holdout, "model": model,
        "image_size": image_size, "data_dir": data_dir,
    }  # fmt: skip
    given = {key: value for key, value in given.items() if value is not None}
    given |= table.settings(client, label, attribute, image, split, features)
    planned = comparison(federation, given, study.seeds_in(seeds) or SEEDS)
    planned = planned.with_settings(parse_assignments(set_)).only(methods)
    name = folder_of(planned.runs[0].config.federation)
    study.make(
        planned, out or Path("studies") / f"compare-{name}", workers=workers, device=device, dry_run=dry_run,
        as_json=json_,
    )  # fmt: skip
