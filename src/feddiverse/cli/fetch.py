"""`feddiverse fetch`."""

from pathlib import Path

import typer

from feddiverse.errors import UserError


def fetch(
    name: str = typer.Argument(help="mnist, mobilenet, waterbirds or spawrious."),
    given: Path | None = typer.Option(
        None, "--from", metavar="PATH", help="Your own copy instead of a download: a file, an archive or a folder."
    ),
    hub: str | None = typer.Option(
        None, "--hub", metavar="OWNER/NAME", help="The repository on the Hugging Face hub (waterbirds, spawrious)."
    ),
) -> None:
    """Fetch data or weights into the cache, checked before they enter it."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from feddiverse.cli import console
    from feddiverse.data import fetching
    from feddiverse.data.sources import FILES, NAMES

    if name not in NAMES:
        raise UserError(f"There is nothing called '{name}' to fetch: choose {', '.join(NAMES[:-1])} or {NAMES[-1]}.")
    if hub is not None and (name in FILES or given is not None):
        raise UserError("--hub goes with waterbirds and spawrious, and not with --from: leave it out.")
    speed = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with console.progress(TextColumn("{task.description}"), BarColumn(), *speed) as bar:
        task = bar.add_task(f"Fetching {name}", total=None)
        path = fetching.fetch(
            name,
            lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
            given,
            hub,
        )
    console.out.say(f"{name}: {path}", whole=True)
