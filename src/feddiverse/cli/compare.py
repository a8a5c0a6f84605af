"""`feddiverse compare`: which method suits this federation, or one's own table, best."""

from pathlib import Path

import typer

from feddiverse.cli import options, study


def compare(
    federation: str = options.FEDERATION,
    seeds: str = typer.Option("", help="Seeds, such as 0,1,2 (the default)."),
    methods: str = typer.Option("", help="Only these, separated by commas."),
    rounds: int | None = typer.Option(None, help="Rounds of training (default: 50; photos 30)."),
    clients_per_round: int | None = options.CLIENTS_PER_ROUND,
    holdout: float | None = typer.Option(None, help="Share of its own samples each client keeps for evaluation only."),
    model: str | None = options.MODEL,
    image_size: int | None = typer.Option(None, help="Side of photos in pixels (default for a table: 64)."),
    data_dir: str | None = options.DATA_DIR,
    client: str = options.CLIENT,
    label: str = options.LABEL,
    attribute: str = options.ATTRIBUTE,
    image: str = options.IMAGE,
    split: str = options.SPLIT,
    features: str = options.FEATURES,
    set_: list[str] = options.SET_FOR_ALL,
    out: Path | None = typer.Option(None, help="Study directory (default: studies/compare-<name>)."),
    workers: int = options.WORKERS,
    at_once: int = options.AT_ONCE,
    device: str = options.DEVICE,
    dry_run: bool = options.DRY_RUN,
    json_: bool = options.TABLE_AS_JSON,
) -> None:
    """Compare uniform selection, pow-d, FedDiverse and FedDiverse with balanced groups, over seeds, in a report."""
    from feddiverse.experiment.config import parse_assignments
    from feddiverse.experiment.discovery import folder_of
    from feddiverse.experiment.grids import SEEDS, comparison

    given = options.given(
        rounds=rounds, num_selected=clients_per_round, holdout=holdout, model=model, image_size=image_size,
        data_dir=data_dir,
    )  # fmt: skip
    given |= options.columns(client, label, attribute, image, split, features)
    planned = comparison(federation, given, study.seeds_in(seeds) or SEEDS)
    planned = planned.with_settings(parse_assignments(set_)).only(methods)
    name = folder_of(planned.runs[0].config.federation)
    study.make(
        planned, out or Path("studies") / f"compare-{name}", workers=workers, at_once=at_once, device=device,
        dry_run=dry_run, as_json=json_,
    )  # fmt: skip
