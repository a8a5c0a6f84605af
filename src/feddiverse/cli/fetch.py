"""`feddiverse fetch`."""

from pathlib import Path

import typer

from feddiverse.cli import console
from feddiverse.errors import UserError


def fetch(
    name: str = typer.Argument(help="mnist, mobilenet, waterbirds or spawrious."),
    given: Path | None = typer.Option(
        None, "--from", metavar="PATH", help="Your own copy: a file, an archive or a folder."
    ),
) -> None:
    """Fetch data or weights into the cache, checked by size and SHA-256."""
    from feddiverse.data import fetching
    from feddiverse.data.sources import NAMES

    if name not in NAMES:
        raise UserError(f"There is nothing called '{name}' to fetch: choose {', '.join(NAMES[:-1])} or {NAMES[-1]}.")
    with console.progress() as progress:
        task = progress.add_task(f"Fetching {name} (bytes)", total=None)
        path = fetching.fetch(name, given, lambda done: progress.advance(task, done))
    console.out.print(f"{name}: {path}", soft_wrap=True, highlight=False)
