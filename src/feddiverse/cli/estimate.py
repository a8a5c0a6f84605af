"""`feddiverse estimate`: how near estimated triplets come to the truth, and what they cost."""

from typing import TYPE_CHECKING, Any

import typer

from feddiverse.cli import table

if TYPE_CHECKING:
    from rich.table import Table


def estimate(
    federation: str = typer.Option("digits-gsc", help="Named federation, split:source, or a table FILE.csv."),
    estimator: str = typer.Option(
        "all", help="paper, consensus, oracle, package.module:Class, or all of the first three."
    ),
    pretraining_rounds: int = typer.Option(1, min=0, help="T0: rounds of FedAvg with every client before estimating."),
    seed: int = typer.Option(0, min=0, help="Keys all randomness: same seed, same numbers."),
    data_dir: str | None = typer.Option(None, help="Where a photo set lies, if not in the cache."),
    client: str = table.CLIENT,
    label: str = table.LABEL,
    attribute: str = table.ATTRIBUTE,
    image: str = table.IMAGE,
    split: str = table.SPLIT,
    features: str = table.FEATURES,
    set_: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Any config key; may be repeated."),
    workers: int = typer.Option(0, min=0, help="Worker processes (0: one a core). Does not change the result."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    json_: bool = typer.Option(False, "--json", help="Print JSON for programs: an object, or a list of them for all."),
) -> None:
    """Compare estimated triplets with the truth: correlation, error, attribute accuracy, seconds and bytes."""
    import json

    from feddiverse import registry
    from feddiverse.cli.console import err, out, progress
    from feddiverse.experiment.config import from_mapping, parse_assignments
    from feddiverse.experiment.estimating import estimates

    values: dict[str, Any] = {"federation": federation, "seed": seed, "pretraining_rounds": pretraining_rounds}
    if data_dir is not None:
        values["data_dir"] = data_dir
    values |= table.settings(client, label, attribute, image, split, features)
    config = from_mapping({**values, **parse_assignments(set_)})
    names = registry.names(registry.ESTIMATOR) if estimator == "all" else (estimator,)
    with progress() as bar:
        task = bar.add_task("Reading the data", total=len(names))
        found = []
        for comparison in estimates(
            config, names, workers=workers, device=device, tell=lambda what: bar.update(task, description=what)
        ):
            found.append(comparison)
            bar.advance(task)
    if json_:
        typer.echo(json.dumps(found if estimator == "all" else found[0], allow_nan=False))
        return
    out.print(_table(config.federation, found))
    out.print("error: mean absolute; attr.: share of samples whose attribute was read right; the rest per client")
    for comparison in found:
        for warning in comparison["warnings"]:
            err.print(f"{comparison['estimator']}: {warning}")
        for dimension, reason in comparison["undefined"].items():
            out.print(f"{comparison['estimator']}: r of {dimension.upper()} is undefined: {reason}.")


def _table(federation: str, found: list[dict[str, Any]]) -> "Table":
    from rich.table import Table

    table = Table(title=f"{federation}: {found[0]['num_clients']} clients, T0 = {found[0]['pretraining_rounds']}")
    table.add_column("Estimator")
    for header in ("r: CI, AI, SC", "error: same", "attr.", "seconds", "bytes up"):
        table.add_column(header, justify="right")
    for row in found:
        r = " ".join("–" if number is None else f"{number:.3f}" for number in row["r"].values())
        error = " ".join(f"{number:.2f}" for number in row["mae"].values())
        accuracy = row["attribute_accuracy"]
        attribute = "–" if accuracy is None else f"{accuracy:.3f}"
        table.add_row(row["estimator"], r, error, attribute, f"{row['seconds']:.2f}", f"{row['bytes_up']:,.0f}")
    return table
