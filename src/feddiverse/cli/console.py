"""What commands share to talk to a person: a console, and progress bars that are silent when not on a terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment

from feddiverse.errors import printable

if TYPE_CHECKING:
    from feddiverse.report.page import Hidden
    from feddiverse.report.results import Results
    from feddiverse.report.table import Table


class SafeConsole(Console):
    """A console that shows what names of clients, files and classes say, and never obeys it (escape sequences)."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def say(self, text: str, *, whole: bool = False) -> None:
        """A text as it is. `whole`: on one line, however long, since it may be copied or read by a program."""
        self.print(text, highlight=False, markup=False, soft_wrap=whole)


out = SafeConsole()
err = SafeConsole(stderr=True)


def counted(number: int, thing: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def progress(*columns: ProgressColumn) -> Progress:
    """A bar on stderr, by default with what is done, elapsed and left; nothing at all when stderr is no terminal."""
    usual = (TextColumn("{task.completed:.0f}/{task.total:.0f}"), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(
        *(columns or (TextColumn("{task.description}"), BarColumn(), *usual)),
        console=err, disable=not err.is_terminal, transient=True, refresh_per_second=4,  # cores are for training
    )  # fmt: skip


def show_table(table: "Table") -> None:
    """A report's table on stdout: as it is where it fits, else one block a row; then its notes."""
    from feddiverse.report.table import to_rich, to_stacked_rich

    whole = to_rich(table)
    fits = out.measure(whole, options=out.options.update(max_width=1000)).maximum <= out.width
    out.print(whole if fits else to_stacked_rich(table))
    for note in table.notes:
        out.print(note, style="dim", highlight=False, markup=False)


def show_answers(results: "Results") -> None:
    """What results say, and the first thing to try next, for each federation."""
    from feddiverse.report.advice import steps
    from feddiverse.report.answer import answers

    for answer in answers(results):
        out.say(answer.sentence)
        for step in steps(results, answer.column)[:1]:
            out.say(f"Next: {step.why} {step.command}".rstrip(), whole=True)


def strips(results: "Results", pictures: bool | None) -> "dict[str, Hidden]":
    """What clients differ in, as pictures for the page; None: where that is quick and the pictures are public."""
    if pictures is False:
        return {}
    from feddiverse.report.hidden import look

    with err.status("Looking at what clients differ in (--no-pictures leaves this out)"):
        return look(results, asked=bool(pictures))
