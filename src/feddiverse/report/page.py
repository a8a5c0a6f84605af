"""The report: one HTML file that needs nothing else, opening with the answer.

Text from data reaches the page only through Jinja2's escaping; figures are SVG by matplotlib, which escapes too.
"""

import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from markupsafe import Markup

from feddiverse import files
from feddiverse.experiment.finished import Run
from feddiverse.heterogeneity import measure
from feddiverse.report import federation, figures, reproduce, svg, tables, templates
from feddiverse.report.answer import Answer, answers
from feddiverse.report.results import Results
from feddiverse.report.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Illustration:
    """A figure with its words: `says` stands in for the picture where it cannot be seen."""

    name: str
    figure: "Figure"
    caption: str
    says: str

    @property
    def svg(self) -> Markup:
        return Markup(svg.inline(self.figure, self.name))


@dataclass(frozen=True)
class Section:
    """All about one column, that is about one federation."""

    name: str
    anchor: str
    answer: Answer
    illustrations: tuple[Illustration, ...]
    at_a_glance: Markup
    federation: Table
    metrics: Table


def write(results: Results, path: Path) -> Path:
    """The page, written whole or not at all."""
    text = render(results)
    with files.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, text.encode())
    return path


def save_figures(results: Results, folder: Path, suffix: str) -> list[Path]:
    """Every figure of the page as a file of its own."""
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    stems: list[str] = []
    for column in results.columns:
        if not (runs := _runs(results, column)):
            continue
        stem = re.sub(r"[\W_]+", "-", column.lower()).strip("-") or "column"
        stems.append(f"{stem}-{len(stems)}" if stem in stems else stem)
        for each in illustrations(results, column, stems[-1]):
            written.append(folder / f"{each.name}.{suffix}")
            svg.save(each.figure, written[-1])
        written.append(folder / f"{stems[-1]}-federation.{suffix}")
        _draw_federation(runs[0], written[-1])
    return written


def render(results: Results) -> str:
    """The page as text: the same results give the same bytes."""
    return templates.get("page.html").render(
        results=results,
        version=version("feddiverse"),
        sections=sections(results),
        tables=tables.all_tables(results),
        settings=reproduce.settings_tables(results),
        commands=reproduce.commands_table(results),
        environment=reproduce.environment_table(results),
    )


def sections(results: Results) -> list[Section]:
    """One per column that has runs."""
    found = []
    for index, answer in enumerate(answers(results)):
        runs = _runs(results, answer.column)
        run = runs[0]
        varies = any(not np.array_equal(run.counts, other.counts) for other in runs)
        section = Section(
            name=answer.column,
            anchor=f"s{index}",
            answer=answer,
            illustrations=tuple(illustrations(results, answer.column, f"s{index}")),
            at_a_glance=_at_a_glance(run, f"s{index}-federation"),
            federation=federation.clients_table(run, f"s{index}-clients", varies=varies),
            metrics=federation.metrics_table(run, f"s{index}-metrics"),
        )
        found.append(section)
    return found


def illustrations(results: Results, column: str, prefix: str) -> list[Illustration]:
    """The figures of one column, each only where there is something to show."""
    rows = [(row, list(results.at(row, column).values())) for row in results.rows if results.at(row, column)]
    drawn = _of_training(results, column, rows, prefix) if results.view == "accuracy" else []
    estimated = [(row, [r for r in runs if r.estimated_triplets is not None]) for row, runs in rows]
    estimated = [(row, runs) for row, runs in estimated if runs]
    if estimated and results.view != "overhead":
        drawn.append(
            Illustration(
                f"{prefix}-estimates",
                figures.estimation_scatter(estimated),
                "Estimated against true triplets, one mark per client and seed; on the dashed line an estimate is "
                "right. The truth is known in experiments only and never used to select.",
                "Scatter plots of estimated against true CI, AI and SC for " + ", ".join(row for row, _ in estimated),
            )
        )
    return drawn


def _of_training(results: Results, column: str, rows: list[tuple[str, list[Run]]], prefix: str) -> list[Illustration]:
    drawn = [
        Illustration(
            f"{prefix}-curves",
            figures.accuracy_curves(results, column),
            f"{results.measured} over rounds: mean over seeds; the band reaches from the lowest to the highest seed.",
            f"Line chart of {results.measured.lower()} over rounds on {column}. At the end: "
            + "; ".join(f"{s.row} {tables.percent(s.accuracy)} %" for s in results.ranked(column)),
        )
    ]
    compared = [(s.row, s.difference) for s in results.ranked(column) if s.difference is not None]
    if compared:
        drawn.append(
            Illustration(
                f"{prefix}-differences",
                figures.paired_differences(results, column),
                "Difference to the baseline, paired by seed: mean (dot), 95 % t interval (bar), each seed (tick). "
                "A bar that crosses zero is within the noise of seeds.",
                f"Differences to the baseline on {column}, in points: "
                + "; ".join(f"{row} {tables.points(difference)}" for row, difference in compared),
            )
        )
    chosen = [(row, runs) for row, runs in rows if any(run.choices for run in runs)]
    if chosen:
        drawn += _of_selection(chosen, prefix)
    return drawn


def _of_selection(chosen: list[tuple[str, list[Run]]], prefix: str) -> list[Illustration]:
    known = all(run.attributes_known for _, runs in chosen for run in runs)
    return [*([_triangles(chosen, prefix)] if known else []), _shares(chosen, prefix, known)]


def _triangles(chosen: list[tuple[str, list[Run]]], prefix: str) -> Illustration:
    return Illustration(
        f"{prefix}-triangles",
        figures.selection_triangles(chosen),
        "Clients between class imbalance (CI), attribute imbalance (AI) and spurious correlation (SC), by their "
        "true triplets. A disc’s area and number: that kind’s share of all selections. The ring: its share of "
        "clients, which is what uniform selection gives.",
        "Ternary plots of the clients’ triplets with how often each kind was selected; "
        + "; ".join(f"{row}: {runs[0].selection.effective_clients:.1f} effective clients" for row, runs in chosen),
    )


def _shares(chosen: list[tuple[str, list[Run]]], prefix: str, known: bool) -> Illustration:
    what = "(class, attribute) groups" if known else "classes"
    return Illustration(
        f"{prefix}-shares",
        figures.group_shares([(row, runs[0]) for row, runs in chosen]),
        f"What each round trains on: shares of the {what} in the pooled data of the chosen "
        "clients, first seed. Dashed: equal shares.",
        "Stacked shares per round; mean share of the rarest: "
        + "; ".join(f"{row} {100 * runs[0].selection.smallest_share.mean():.1f} %" for row, runs in chosen),
    )


def _runs(results: Results, column: str) -> list[Run]:
    return [run for row in results.rows for run in results.at(row, column).values()]


def _at_a_glance(run: Run, prefix: str) -> Markup:
    """The figure of `feddiverse measure --plot`: the clients' matrices beside the six metrics."""
    with TemporaryDirectory() as folder, mpl.rc_context(svg.STYLE):
        path = Path(folder) / "federation.svg"
        _draw_federation(run, path)
        return Markup(svg.adapted(path.read_text("utf-8"), prefix))


def _draw_federation(run: Run, path: Path) -> None:
    of = {str(run.federation["name"]): (run.counts, measure(run.counts))}
    federation.draw(of, path, run.client_names, attributes_known=run.attributes_known)
