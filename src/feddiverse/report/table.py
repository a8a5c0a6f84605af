"""One small table type, written as Rich text, Markdown, CSV or LaTeX (and by the page's template as HTML)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from feddiverse import files

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Mark = Literal["", "best", "second"]


@dataclass(frozen=True)
class Cell:
    """What is shown, the number behind it (for sorting and CSV), what stands small beside it, and further numbers.

    On a page `bar` (from 0 to 1) draws a bar of that length under the text, `shade` colours the cell.
    """

    text: str
    value: float | None = None
    mark: Mark = ""
    beside: str = ""
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    bar: float | None = None
    shade: float | None = None


@dataclass(frozen=True)
class Table:
    """The first column names the row. `name` is the file's stem; `notes` say by which rules the numbers came about."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def is_numeric(self, column: int) -> bool:
        """Whether a column holds numbers, so that it is set flush right and sorted as such."""
        return any(row[column].value is not None or row[column].numbers for row in self.rows)


def to_rich(table: Table) -> "RichTable":
    """For a terminal; notes are for the caller to print, in the full width."""
    from rich.markup import escape
    from rich.table import Table as RichTable

    rich = RichTable(title=escape(table.title))
    for index, name in enumerate(table.columns):
        rich.add_column(escape(name), justify="right" if table.is_numeric(index) else "left")
    for row in table.rows:
        rich.add_row(*(_rich(cell, "\n") for cell in row))
    return rich


def to_stacked_rich(table: Table) -> "RichTable":
    """For a terminal too narrow for all columns: one block a row, a line a column."""
    from rich.markup import escape
    from rich.table import Table as RichTable

    rich = RichTable(title=escape(table.title), show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in table.rows:
        rich.add_row(f"[bold]{escape(row[0].text)}[/bold]", "")
        for head, cell in zip(table.columns[1:], row[1:], strict=True):
            rich.add_row("  " + escape(head), _rich(cell, "  "))
    return rich


def _rich(cell: Cell, between: str) -> str:
    from rich.markup import escape

    style = {"best": "[bold]{}[/bold]", "second": "[underline]{}[/underline]", "": "{}"}
    beside = f"{between}[dim]{escape(cell.beside)}[/dim]" if cell.beside else ""
    return style[cell.mark].format(escape(cell.text)) + beside


def to_markdown(table: Table) -> str:
    """GitHub's Markdown."""
    style = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}

    def line(texts: list[str]) -> str:
        return "| " + " | ".join(texts) + " |"

    def shown(cell: Cell) -> str:
        text = style[cell.mark].format(_markdown(cell.text))
        return f"{text} ({_markdown(cell.beside)})" if cell.beside else text

    rules = ["---:" if table.is_numeric(i) else "---" for i in range(len(table.columns))]
    lines = [f"### {_markdown(table.title)}", "", line([_markdown(c) for c in table.columns]), line(rules)]
    lines += [line([shown(cell) for cell in row]) for row in table.rows]
    lines += ["", *(_markdown(note) + "  " for note in table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def to_csv(table: Table) -> str:
    """Numbers where a cell has some, with its further numbers in columns of their own; words elsewhere."""
    import pandas  # here, since it takes half a second

    columns: list[tuple[str, list[str | float | None]]] = []
    for i, name in enumerate(table.columns):
        cells = [row[i] for row in table.rows]
        columns.append((files.safe_cell(name), [_csv_value(cell) for cell in cells]))
        for key in dict.fromkeys(key for cell in cells for key in cell.numbers):
            columns.append((files.safe_cell(f"{name} {key}"), [cell.numbers.get(key) for cell in cells]))
    values = zip(*(column for _, column in columns), strict=True)
    frame = pandas.DataFrame(values, columns=[head for head, _ in columns], dtype=object)
    return str(frame.to_csv(index=False, lineterminator="\n"))


def _csv_value(cell: Cell) -> str | float:
    if cell.value is not None or cell.text == "–":
        return "" if cell.value is None else cell.value
    return files.safe_cell(cell.text)


def to_latex(table: Table) -> str:
    """A booktabs table."""
    import pandas

    style = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}

    def shown(cell: Cell) -> str:
        text = style[cell.mark] % _latex(cell.text)
        text = "{}" + text if text[:1] in {"[", "*"} else text  # else the rule or line break before would take it
        return rf"{text} {{\scriptsize ({_latex(cell.beside)})}}" if cell.beside else text

    cells = [[shown(cell) for cell in row] for row in table.rows]
    frame = pandas.DataFrame(cells, columns=[_latex(name) for name in table.columns])
    aligned = "".join("r" if table.is_numeric(i) else "l" for i in range(len(table.columns)))
    text = frame.style.hide(axis="index").to_latex(
        caption=_latex(" ".join([table.title.rstrip(".") + ".", *table.notes])), label=f"tab:{table.name}",
        column_format=aligned, hrules=True, position_float="centering",
    )  # fmt: skip
    return str(text)


def write_all(table: Table, folder: Path) -> list[Path]:
    """The table as .md, .csv and .tex in `folder`."""
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, render in {"md": to_markdown, "csv": to_csv, "tex": to_latex}.items():
        path = folder / f"{table.name}.{suffix}"
        files.write(path, render(table).encode())
        written.append(path)
    return written


def _markdown(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", text)


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "…": r"\dots{}", "–": "--",
    "’": "'", "±": r"$\pm$", "−": r"$-$", "×": r"$\times$", "·": r"$\cdot$", "²": r"$^2$", "<": r"$<$", ">": r"$>$",
    "|": r"$|$", "≥": r"$\geq$", "≤": r"$\leq$", "≠": r"$\neq$", "∈": r"$\in$", "∉": r"$\notin$", "∀": r"$\forall$",
    "→": r"$\to$", "κ": r"$\kappa$", "θ": r"$\theta$", "µ": r"$\mu$", "Σ": r"$\Sigma$",
    **{c: "\\" + c for c in "&%$#_{}"},
}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)
