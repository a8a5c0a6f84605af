"""`feddiverse report`: one HTML page about a run, a study, or a folder of runs."""

from pathlib import Path

import typer

from feddiverse.errors import UserError


def report(
    directory: Path = typer.Argument(metavar="PATH", help="A run directory, a study, or a folder of runs."),
    out: Path | None = typer.Option(None, help="Where to write the page (default: report.html there)."),
    tables: Path | None = typer.Option(None, metavar="FOLDER", help="Also write tables as .md, .csv and .tex there."),
    figures: Path | None = typer.Option(None, metavar="FOLDER", help="Also write figures there, for a paper."),
    figure_format: str = typer.Option("pdf", help="Format of those figures: pdf, svg or png."),
    pictures: bool | None = typer.Option(
        None,
        "--pictures/--no-pictures",
        help="Show what clients differ in by training pictures (default: not your own, and where it takes seconds).",
        show_default=False,
    ),
    open_: bool = typer.Option(False, "--open", help="Show the page in a browser."),
) -> None:
    """Write one HTML page about a run or a study."""
    if figure_format not in {"pdf", "svg", "png"}:
        raise UserError(f"--figure-format must be pdf, svg or png, not '{figure_format}'.")

    from feddiverse.cli.console import out as console
    from feddiverse.cli.console import show_answers, strips
    from feddiverse.report import page
    from feddiverse.report.results import load
    from feddiverse.report.table import write_all
    from feddiverse.report.tables import all_tables

    results = load(directory)
    if not results.summaries:
        raise UserError(f"{directory} holds no finished run yet; go on with its study first.")
    path = out or (directory.parent if directory.is_file() else directory) / "report.html"
    written = page.write(results, path, strips(results, pictures))
    show_answers(results)
    if tables is not None:
        for table in all_tables(results):
            write_all(table, tables)
        console.say(f"Tables: {tables}")
    if figures is not None:
        page.save_figures(results, figures, figure_format)
        console.say(f"Figures: {figures}")
    console.say(f"Report: {written}", whole=True)
    if open_:
        typer.launch(written.resolve().as_uri())
