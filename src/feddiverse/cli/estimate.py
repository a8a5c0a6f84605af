"""`feddiverse estimate`: how near estimated triplets come to the truth, and what they cost."""

from typing import Any

import typer

from feddiverse.cli import table


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
    from feddiverse.cli.console import err, out, progress, show_table
    from feddiverse.experiment.config import from_mapping, parse_assignments
    from feddiverse.experiment.estimating import estimates
    from feddiverse.report.costs import estimators_table

    values: dict[str, Any] = {"federation": federation, "seed": seed, "pretraining_rounds": pretraining_rounds}
    if estimator != "all":
        values["estimator"] = estimator  # so that --set estimator.NAME=… reaches it
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
    title = f"{config.federation}: {found[0]['num_clients']} clients, T0 = {config.pretraining_rounds}"
    show_table(estimators_table({(each["estimator"], config.federation): [each] for each in found}, title))
    for each in found:
        for warning in each["warnings"]:
            err.print(f"{each['estimator']}: {warning}")
        for dimension, reason in each["undefined"].items():
            out.print(f"{each['estimator']}: r of {dimension.upper()} is undefined: {reason}.")
