"""`feddiverse estimate`: how near estimated triplets come to the truth, and what they cost."""

import typer

from feddiverse.cli import options


def estimate(
    federation: str = typer.Option("digits-gsc", help="Named federation, split:source, or a table FILE.csv."),
    estimator: str = typer.Option(
        "all", help="paper, consensus, oracle, package.module:Class, or all of the first three."
    ),
    pretraining_rounds: int = typer.Option(1, min=0, help="T0: rounds of FedAvg with every client before estimating."),
    seed: int = typer.Option(0, min=0, help="Keys all randomness: same seed, same numbers."),
    data_dir: str | None = options.DATA_DIR,
    client: str = options.CLIENT,
    label: str = options.LABEL,
    attribute: str = options.ATTRIBUTE,
    image: str = options.IMAGE,
    split: str = options.SPLIT,
    features: str = options.FEATURES,
    set_: list[str] = options.SET,
    workers: int = options.WORKERS,
    device: str = options.DEVICE,
    json_: bool = typer.Option(False, "--json", help="Print JSON for programs: an object, or a list of them for all."),
) -> None:
    """Compare estimated triplets with the truth: correlation, error, attribute accuracy, seconds and bytes."""
    import json

    from feddiverse import registry
    from feddiverse.cli.console import err, out, progress, show_table
    from feddiverse.experiment.config import from_mapping, parse_assignments
    from feddiverse.experiment.estimating import estimates
    from feddiverse.report.costs import estimators_table

    values = options.given(
        federation=federation, seed=seed, pretraining_rounds=pretraining_rounds, data_dir=data_dir,
        estimator=None if estimator == "all" else estimator,  # so that --set estimator.NAME=… reaches it
    )  # fmt: skip
    values |= options.columns(client, label, attribute, image, split, features)
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
            err.say(f"{each['estimator']}: {warning}", whole=True)
        for dimension, reason in each["undefined"].items():
            out.say(f"{each['estimator']}: r of {dimension.upper()} is undefined: {reason}.")
