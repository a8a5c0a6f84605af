"""`feddiverse study`: the paper's tables, or one's own grid, as many runs in one directory."""

import functools
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from feddiverse.cli import options
from feddiverse.errors import UserError

if TYPE_CHECKING:
    from feddiverse.experiment.side_by_side import Watch
    from feddiverse.experiment.study import Planned, Study, StudyDirectory


def study(
    name: str = typer.Argument("", metavar="NAME|FILE.toml", help="A study's name or your own grid; none: list them."),
    preset: str = typer.Option("quick", help="quick: the embedded digits, minutes; paper: the paper's setting."),
    source: str = typer.Option("", help="Run the splits on these pictures instead: digits, cmnist, …"),
    seeds: str = typer.Option("", help="Seeds, such as 0,1,2 (the default)."),
    federations: str = typer.Option("", help="Only these columns, separated by commas."),
    methods: str = typer.Option("", help="Only these rows, separated by commas."),
    set_: list[str] = options.SET_FOR_ALL,
    out: Path | None = typer.Option(None, help="Study directory (default: studies/<name of the study>)."),
    reuse: list[Path] = typer.Option([], metavar="PATH", help="Take finished runs of equal config from this study."),
    workers: int = options.WORKERS,
    at_once: int = options.AT_ONCE,
    retries: int | None = options.RETRIES,
    worker_timeout: float | None = options.WORKER_TIMEOUT,
    device: str = options.DEVICE,
    dry_run: bool = options.DRY_RUN,
    json_: bool = options.TABLE_AS_JSON,
    pictures: bool | None = typer.Option(
        None, "--pictures/--no-pictures", help="Whether the report shows training pictures.", show_default=False
    ),
    tensorboard: bool = typer.Option(False, help="Also write TensorBoard files into each run directory."),
    mlflow: bool = typer.Option(False, help="Also log every run to MLflow."),
    wandb: bool = typer.Option(False, help="Also write Weights & Biases files into each run directory."),
) -> None:
    """Run a grid of runs and show its table."""
    if not name:
        _list()
        return
    from feddiverse.experiment.config import parse_assignments

    planned = _planned(name, preset, source, seeds).with_settings(parse_assignments(set_)).only(methods, federations)
    make(
        planned, out or Path("studies") / _default_name(planned.name, name, preset, source), reuse=reuse,
        workers=workers, at_once=at_once, device=device, dry_run=dry_run, as_json=json_, pictures=pictures,
        tensorboard=tensorboard, mlflow=mlflow, wandb=wandb, retries=retries, worker_timeout=worker_timeout,
    )  # fmt: skip


def make(
    planned: "Study",
    out: Path,
    *,
    workers: int,
    device: str,
    dry_run: bool,
    as_json: bool,
    at_once: int = 1,
    reuse: Sequence[Path] = (),
    pictures: bool | None = None,
    retries: int | None = None,
    worker_timeout: float | None = None,
    **tracked: bool,
) -> None:
    """Make the runs of a study that are not made yet, and show its table; `dry_run`: say what there is to do.

    `at_once`: so many runs at the same time, which share the workers.
    """
    from feddiverse.cli.study_display import Display, show_grid
    from feddiverse.engine.machine import choose_device, usable_cores
    from feddiverse.experiment.opening import check_names
    from feddiverse.experiment.study import StudyDirectory, carry_out, finished_runs
    from feddiverse.experiment.trackers import trackers

    directory = StudyDirectory(out)
    for run in planned.runs:
        check_names(run.config)  # names that nothing answers to are told now, not hours later
    elsewhere = finished_runs(reuse)
    shared = max(1, (workers or usable_cores()) // at_once)
    workers = workers if at_once == 1 else shared
    directory.refuse_to_mix(planned)
    if dry_run:
        show_grid(planned, directory, shared, elsewhere, at_once)
        return
    choose_device(device)  # this and the next line only to be told now what is not there
    trackers(directory.path, **tracked)
    with directory.held():
        directory.plan(planned, shlex.join(["feddiverse", *sys.argv[1:]]))
        taken = [run for run in planned.runs if not directory.is_done(run) and run.config.effective in elsewhere]
        for run in taken:
            elsewhere[run.config.effective].save(directory.run_path(run))

        perform = functools.partial(
            _perform, tracked=tracked, workers=workers, device=device, retries=retries, worker_timeout=worker_timeout
        )
        with Display(planned, directory, shared, len(taken), at_once) as display:
            for run, why in carry_out(planned, directory, perform, display.on_round, at_once):
                display.finished(run, why)
        _conclude(directory, as_json, pictures)
    if display.failures:
        display.show_failures()
        raise typer.Exit(1)


def _perform(run: "Planned", path: Path, watch: "Watch", *, tracked: dict[str, bool], **settings: Any) -> None:
    """Make one run, in this process or in one of its own."""
    from feddiverse.experiment import train
    from feddiverse.experiment.trackers import trackers

    watchers = [watch, *trackers(path, **tracked)]

    def on_round(record: dict[str, Any]) -> None:
        for each in watchers:
            each(record)

    train.carry_out(run.config, out=path, on_round=on_round, **settings)


def _list() -> None:
    from rich.table import Table

    from feddiverse.cli.console import out as console
    from feddiverse.experiment.grids import STUDIES

    table = Table("study", "what it shows", title="Studies")
    for name, build in STUDIES.items():
        table.add_row(name, (build.__doc__ or "").splitlines()[0])
    table.add_row("FILE.toml", "Your own grid: see docs/studies.md.")
    console.print(table)


def _planned(name: str, preset: str, source: str, seeds: str) -> "Study":
    from feddiverse import registry
    from feddiverse.experiment.grids import PRESETS, SEEDS, STUDIES, from_toml

    if preset not in PRESETS:
        raise UserError(f"There is no preset '{preset}'; choose {' or '.join(PRESETS)}.")
    numbers = seeds_in(seeds)
    if name.endswith(".toml"):
        if source or preset != "quick":
            raise UserError("--preset and --source are for the paper's studies; a grid of your own names its pictures.")
        return from_toml(Path(name), numbers)
    if name not in STUDIES:
        known, hint = ", ".join(STUDIES), registry.nearest(name, STUDIES)
        raise UserError(f"There is no study '{name}'{hint}. Studies are {known}, or a file that ends in .toml.")
    return STUDIES[name](preset, source, SEEDS if numbers is None else numbers)


def _default_name(study: str, name: str, preset: str, source: str) -> str:
    """A folder of its own for each preset and source, whose numbers must not mix."""
    if name.endswith(".toml") or study == "quickstart":
        return study
    return "-".join(part for part in (study, preset, source) if part)


def seeds_in(text: str) -> list[int] | None:
    """The numbers of `--seeds`; None where it was not given."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise UserError(f"--seeds takes whole numbers separated by commas, such as 0,1,2, not '{text}'.")
    return list(dict.fromkeys(int(word) for word in words)) or None


def _conclude(directory: "StudyDirectory", as_json: bool, pictures: bool | None) -> None:
    """The table, what it says, and where the report is."""
    from feddiverse.cli.console import out as console
    from feddiverse.cli.console import show_answers, show_table, strips
    from feddiverse.report import answer, page, tables
    from feddiverse.report.results import load
    from feddiverse.report.table import write_all

    results = load(directory.path)
    if not results.summaries:
        return
    made = tables.all_tables(results)
    for table in made:
        write_all(table, directory.path / "tables")
    written = page.write(results, directory.path / "report.html", strips(results, pictures))
    if as_json:
        answers = [each.sentence for each in answer.answers(results)]
        said = {"report": str(written), "answers": answers, **tables.as_json(results)}
        typer.echo(json.dumps(said, ensure_ascii=False))
        return
    if results.view == "accuracy":  # with one column the full comparison fits a terminal
        marked = [table for table in made if table.name in ("estimated", "heads")]
        made = [made[0] if len(results.columns) > 1 or len(made) < 3 else made[1], *marked]
    for table in made:
        show_table(table)
    console.print()
    show_answers(results)
    console.say(f"Report: {written}", whole=True)
