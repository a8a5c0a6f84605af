"""`feddiverse rebalance`: the last layer of a finished run solved anew, every hidden group of equal weight."""

from pathlib import Path

import typer

from feddiverse.cli import options


def rebalance(
    run: Path = typer.Argument(..., metavar="RUN", help="A finished run directory."),
    reading: str | None = typer.Option(None, help="Model that reads the hidden groups: start, or the run's final one."),
    weights: str | None = typer.Option(None, help="What counts equally: groups, classes, samples, auto, true_groups."),
    head: str | None = typer.Option(None, help="How the layer is solved: ridge, or as published fed3r, ccvr."),
    dimensions: int | None = typer.Option(None, help="Features beyond so many are projected at random."),
    views: int | None = typer.Option(None, help="Copies of each picture, changed as in training, to solve from too."),
    flip: bool | None = typer.Option(None, "--flip/--no-flip", help="Copies are mirrored at random."),
    crop_padding: int | None = typer.Option(None, help="Copies are shifted at random by up to so many pixels."),
    workers: int = options.WORKERS,
    device: str = options.DEVICE,
    engine: str = options.ENGINE,
    json_: bool = options.RESULT_AS_JSON,
) -> None:
    """Solve the last layer of a trained model anew, without labels of the groups. The trained one is kept too."""
    import json

    from feddiverse.cli.console import err, progress
    from feddiverse.cli.console import out as console
    from feddiverse.cli.live import clock, reached
    from feddiverse.experiment.rebalancing import rebalance as solve

    given = options.given(
        rebalance_reading=reading,
        rebalance_weights=weights,
        rebalance_head=head,
        rebalance_dimensions=dimensions,
        rebalance_views=views,
        flip=flip,
        crop_padding=crop_padding,
    )
    with progress() as bar:
        bar.add_task(f"Rebalancing {run}", total=None)
        result = solve(run, workers=workers, device=device, engine=engine, **given)
    if json_:
        typer.echo(json.dumps(result.summary))
        return
    for warning in result.summary.get("warnings", ()):
        err.say(f"Warning: {warning}")
    assert result.rebalanced is not None
    console.say(f"Trained:    {reached(result.summary)}.")
    console.say(
        f"Rebalanced: {reached(result.rebalanced)}, in {clock(result.rebalanced['seconds'])}; see {run}.", whole=True
    )
