"""What commands share to talk to a person: a console, and progress bars that are silent when not on a terminal."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

out = Console()
err = Console(stderr=True)


def progress() -> Progress:
    """A bar on stderr with what is done, elapsed and left; nothing at all when stderr is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        disable=not err.is_terminal,
        transient=True,
    )
