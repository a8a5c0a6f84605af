"""The report: one HTML file that needs nothing else, opening with the answer.

Text from data reaches the page only through Jinja2's escaping; figures are SVG by matplotlib, which escapes too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from feddiverse import files
from feddiverse.experiment.finished import Run
from feddiverse.heterogeneity import measure
from feddiverse.report import advice, federation, figures, reproduce, svg, tables, templates
from feddiverse.report.answer import Answer, answers
from feddiverse.report.discovery import Strip
from feddiverse.report.results import Results
from feddiverse.report.statistics import percent, points
from feddiverse.report.svg import Drawing
from feddiverse.report.table import Table
from feddiverse.report.verdict import Verdict, judge

Rows = list[tuple[int, str, list[Run]]]  # place among the rows, name, runs


@dataclass(frozen=True)
class Panel:
    """One plot; `method`, if it is about one, is its place among the rows."""

    name: str
    drawing: Drawing
    method: int | None = None

    @property
    def svg(self) -> Markup:
        return Markup(svg.inline(self.drawing.figure, self.name))

    @property
    def points(self) -> list[list[Any]]:
        return self.drawing.points()


@dataclass(frozen=True)
class Illustration:
    """A figure with its words: `says` stands in for the plots where they cannot be seen."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    caption: str
    says: str


@dataclass(frozen=True)
class Hidden:
    """What clients were found to differ in, as strips of pictures."""

    headline: str
    strips: tuple[Strip, ...]
    values: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """All about one column, that is about one federation."""

    name: str
    anchor: str
    answer: Answer
    steps: tuple[advice.Step, ...]
    illustrations: tuple[Illustration, ...]
    hidden: Hidden | None
    about: str
    verdict: Verdict
    federation: Table


def write(results: Results, path: Path, hidden: Mapping[str, Hidden] | None = None) -> Path:
    """The page, written whole or not at all. `hidden`: of columns, what `hidden.look` found."""
    text = render(results, hidden)
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
            for panel in each.panels:
                written.append(folder / f"{panel.name}.{suffix}")
                svg.save(panel.drawing.figure, written[-1])
        written.append(folder / f"{stems[-1]}-federation.{suffix}")
        run = runs[0]
        of = {str(run.federation["name"]): (run.counts, measure(run.counts))}
        federation.draw(of, written[-1], run.client_names, _axes(run), attributes_known=run.attributes_known)
    return written


def render(results: Results, hidden: Mapping[str, Hidden] | None = None) -> str:
    """The page as text: the same results give the same bytes."""
    made = tables.all_tables(results)
    if len(results.columns) == 1:  # what it has is in the comparison, too
        made = [table for table in made if table.name != "accuracy" or len(made) == 1]
    return templates.get("page.html").render(
        results=results,
        version=version("feddiverse"),
        sections=sections(results, hidden or {}),
        tables=[table for table in made if not table.name.startswith("asked")],
        asked={table.name: table for table in made if table.name.startswith("asked")},
        methods=[(row, _swatch(results, row)) for row in results.rows] if results.view == "accuracy" else [],
        settings=reproduce.settings_tables(results),
        commands=reproduce.commands_table(results),
        environment=reproduce.environment_table(results),
    )


def _swatch(results: Results, row: str) -> str:
    colour = figures.colour_of(results, row)
    return f"c{svg.PALETTE.index(colour)}" if colour in svg.PALETTE else "ink"


def sections(results: Results, hidden: Mapping[str, Hidden]) -> list[Section]:
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
            steps=tuple(advice.steps(results, answer.column)),
            illustrations=tuple(illustrations(results, answer.column, f"s{index}")),
            hidden=hidden.get(answer.column),
            about=f"{len(run.counts):,} clients, {int(run.counts.sum()):,} samples",
            verdict=judge(measure(run.counts).six, attributes_known=run.attributes_known),
            federation=federation.clients_table(run, f"s{index}-clients", varies=varies),
        )
        found.append(section)
    return found


def illustrations(results: Results, column: str, prefix: str) -> list[Illustration]:
    """The figures of one column, each only where there is something to show."""
    rows = [(i, row, list(at.values())) for i, row in enumerate(results.rows) if (at := results.at(row, column))]
    drawn = _of_training(results, column, rows, prefix) if results.view == "accuracy" else []
    estimated = [(i, row, [r for r in runs if r.estimated_triplets is not None]) for i, row, runs in rows]
    estimated = [(i, row, runs) for i, row, runs in estimated if runs]
    if estimated and results.view != "overhead":
        drawn.append(_estimates(estimated, prefix))
    return drawn


def _of_training(results: Results, column: str, rows: Rows, prefix: str) -> list[Illustration]:
    drawn = [_groups(rows, prefix, results.yardstick)]
    estimated = [(i, row, [run.by_estimate for run in runs if run.by_estimate]) for i, row, runs in rows]
    # Every seed reads its own groups: a mean needs the same ones.
    same = [{tuple(run.tested_groups) for run in runs} for _, _, runs in estimated]
    alike = [each for each, groups in zip(estimated, same, strict=True) if len(groups) == 1]
    if alike:
        drawn.append(_groups(alike, f"{prefix}-estimated", "estimated group"))
    # Where nobody knows the groups, those that were read say more than classes.
    shown, what = (alike, "estimated group") if alike else (rows, results.yardstick)
    rebalanced = [(i, row, runs) for i, row, runs in shown if all(run.rebalanced for run in runs)]
    if rebalanced:
        drawn.append(_heads(rebalanced, prefix, what))
    if len(rows) > 1:
        drawn.append(
            Illustration(
                f"{prefix}-curves",
                f"{results.measured} of all methods",
                (Panel(f"{prefix}-curves", figures.accuracy_curves(results, column)),),
                "Mean over seeds; the band reaches from the lowest to the highest seed.",
                f"Line chart of {results.measured.lower()} over rounds on {column}. At the end: "
                + "; ".join(f"{s.row} {percent(s.accuracy)} %" for s in results.ranked(column)),
            )
        )
    compared = [(s.row, s.difference) for s in results.ranked(column) if s.difference is not None]
    if compared:
        drawn.append(
            Illustration(
                f"{prefix}-differences",
                "Difference to the baseline",
                (Panel(f"{prefix}-differences", figures.paired_differences(results, column)),),
                "Paired by seed: mean (dot), 95 % t interval (bar), each seed (tick). A bar that crosses zero shows "
                "no difference.",
                f"Differences to the baseline on {column}, in points: "
                + "; ".join(f"{row} {points(difference)}" for row, difference in compared),
            )
        )
    chosen = [(i, row, [run for run in runs if run.choices]) for i, row, runs in rows]
    chosen = [(i, row, runs) for i, row, runs in chosen if runs]
    if chosen:
        drawn += _of_selection(chosen, prefix)
    return drawn


def _groups(rows: Rows, prefix: str, what: str) -> Illustration:
    ends = []
    for _, row, runs in rows:
        accuracies = np.mean([run.group_accuracies for run in runs], axis=0)
        named = zip(runs[0].tested_groups, accuracies.tolist(), strict=True)
        each = ", ".join(f"({runs[0].group_name(y, a)}) {100 * value:.1f} %" for (y, a), value in named)
        ends.append(f"{row}: {each}")
    return Illustration(
        f"{prefix}-groups",
        f"Accuracy of every {what}",
        tuple(Panel(f"{prefix}-groups-{i}", figures.group_curves(row, runs, i), i) for i, row, runs in rows),
        f"Over rounds, mean over seeds. Thick: the {what} whose mean is lowest at the end."
        + (" Diamond: the worst one with the last layer solved anew." if any(r.rebalanced for r in _all(rows)) else ""),
        f"Line charts of every {what}’s accuracy over rounds. At the end: {'; '.join(ends)}",
    )


def _heads(rows: Rows, prefix: str, what: str) -> Illustration:
    unlabelled = {
        "estimated group": " Nobody labelled these groups.",
        "group": " No attribute label was used for that.",
    }
    return Illustration(
        f"{prefix}-heads",
        "Trained and rebalanced last layer",
        tuple(Panel(f"{prefix}-heads-{i}", figures.heads(row, runs, i), i) for i, row, runs in rows),
        f"Accuracy of every {what}, mean over seeds: as trained (ring) and with the last layer solved anew, every "
        f"hidden group of equal weight (disc).{unlabelled.get(what, '')}",
        f"Every {what}’s accuracy with the trained and with the rebalanced last layer; worst {what}: "
        + "; ".join(
            f"{row} {100 * np.mean([run.worst_accuracy for run in runs]):.1f} % and "
            f"{100 * np.mean([run.worst_rebalanced or 0 for run in runs]):.1f} %"
            for _, row, runs in rows
        ),
    )


def _of_selection(chosen: Rows, prefix: str) -> list[Illustration]:
    known = all(run.attributes_known for _, _, runs in chosen for run in runs)
    return [*([_triangles(chosen, prefix)] if known else []), _shares(chosen, prefix, known)]


def _triangles(chosen: Rows, prefix: str) -> Illustration:
    return Illustration(
        f"{prefix}-triangles",
        "Which kinds of clients were asked",
        tuple(Panel(f"{prefix}-triangles-{i}", figures.selection_triangle(row, runs, i), i) for i, row, runs in chosen),
        "Clients between class imbalance (CI), attribute imbalance (AI) and spurious correlation (SC), by their true "
        "triplets. A disc’s area and number: that kind’s share of all selections. The ring: its share of clients, "
        "which is what uniform selection gives.",
        "Ternary plots of the clients’ triplets with how often each kind was selected; "
        + "; ".join(f"{row}: {runs[0].selection.effective_clients:.1f} effective clients" for _, row, runs in chosen),
    )


def _shares(chosen: Rows, prefix: str, known: bool) -> Illustration:
    what = "(class, attribute) groups" if known else "classes"
    return Illustration(
        f"{prefix}-shares",
        "What each round trains on",
        tuple(Panel(f"{prefix}-shares-{i}", figures.group_shares(row, runs[0], i), i) for i, row, runs in chosen),
        f"Shares of the {what} in the pooled data of the chosen clients, first seed. Dashed: equal shares.",
        "Stacked shares per round; mean share of the rarest: "
        + "; ".join(f"{row} {100 * runs[0].selection.smallest_share.mean():.1f} %" for _, row, runs in chosen),
    )


def _estimates(estimated: Rows, prefix: str) -> Illustration:
    return Illustration(
        f"{prefix}-estimates",
        "Estimated against true triplets",
        tuple(
            Panel(f"{prefix}-estimates-{name.lower()}", figures.estimation_scatter(dimension, estimated))
            for dimension, name in enumerate(figures.NAMES)
        ),
        "One mark per client and seed; on the dashed line an estimate is right. The truth is known in experiments only "
        "and never used to select.",
        "Scatter plots of estimated against true CI, AI and SC for " + ", ".join(row for _, row, _ in estimated),
    )


def _all(rows: Rows) -> list[Run]:
    return [run for _, _, runs in rows for run in runs]


def _runs(results: Results, column: str) -> list[Run]:
    return [run for row in results.rows for run in results.at(row, column).values()]


def _axes(run: Run) -> tuple[list[str], list[str]]:
    """What classes and attributes are called."""
    return run.federation["class_names"], run.federation["attribute_names"]
