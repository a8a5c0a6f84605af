"""The figures of a report: accuracy over rounds, paired differences, what a round trains on, which clients were chosen,
how near estimated triplets come to the true ones.

Each function returns a matplotlib `Figure` (no global state, no window) drawn for print and for the page alike.
"""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from feddiverse.experiment.finished import Floats, Run
from feddiverse.experiment.truth import correlation
from feddiverse.report.results import LEVELS, Results
from feddiverse.report.svg import DASHES, GRID, INK, MARKERS, MUTED, PALETTE, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

P = ParamSpec("P")
T = TypeVar("T")

# The corners of the triangle of triplets: CI left, AI right, SC on top.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
NAMES = ("CI", "AI", "SC")
AREA = 1000  # of a disc that has all selections, in square points


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draws in our style without touching anybody else's."""

    @wraps(draw)
    def within(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return within


def panel_grid(num: int) -> tuple[int, int]:
    """Lines and columns for `num` panels: up to four beside each other, without a lonely one below."""
    columns = 4 if num == 4 or num > 6 else min(3, num)
    return -(-num // columns), columns


def _panels(panels: Any, rows: Sequence[tuple[str, T]]) -> Iterator[tuple["Axes", T]]:
    """A panel for each row, with its title in short lines; those left over are taken away."""
    for axes in panels.flat[len(rows) :]:
        axes.remove()
    for axes, (row, content) in zip(panels.flat, rows, strict=False):
        axes.set_title(textwrap.fill(row, 20, break_long_words=False), fontsize=9)
        yield axes, content


def colour_of(results: Results, row: str) -> str:
    """A row keeps its colour in every figure; baselines are drawn in ink."""
    others = [r for r in results.rows if r not in set(results.baselines.values())]
    return PALETTE[others.index(row) % len(PALETTE)] if row in others else INK


@styled
def accuracy_curves(results: Results, column: str) -> Figure:
    """Worst-group accuracy over rounds: mean over seeds, band from the lowest to the highest seed."""
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    axes = figure.subplots()
    lowest = 100.0
    for index, row in enumerate(results.rows):
        runs = list(results.at(row, column).values())
        if not runs:
            continue
        rounds = sorted(set.intersection(*(set(run.curve[0].tolist()) for run in runs)))
        curves = 100 * np.array([run.curve[1][np.isin(run.curve[0], rounds)] for run in runs])
        colour = colour_of(results, row)
        if len(runs) > 1:
            axes.fill_between(rounds, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        axes.plot(
            rounds, curves.mean(axis=0), color=colour, linestyle=DASHES[index % len(DASHES)], label=row, linewidth=1.8
        )
        lowest = min(lowest, float(np.percentile(curves.mean(axis=0), 10)))
    for level in LEVELS:
        axes.axhline(100 * level, color=MUTED, linewidth=0.6, linestyle=(0, (1, 3)))
    axes.set(xlabel="Round", ylabel=f"{results.measured} (%)")
    axes.set_ylim(bottom=max(0.0, lowest - 5), top=min(101.0, axes.get_ylim()[1]))
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return figure


@styled
def paired_differences(results: Results, column: str) -> Figure:
    """How much better than its baseline each row is, with its 95 % interval; every seed as a dot."""
    compared = [s for s in results.ranked(column) if s.difference is not None][::-1]
    figure = Figure(figsize=(7.2, 0.75 + 0.42 * max(len(compared), 1)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color=INK, linewidth=1)
    for height, summary in enumerate(compared):
        difference, colour = summary.difference, colour_of(results, summary.row)
        assert difference is not None
        if difference.low is not None and difference.high is not None:
            axes.plot([100 * difference.low, 100 * difference.high], [height, height], color=colour, linewidth=2.5)
        theirs = results.at(results.baselines[summary.row], column)
        for seed, run in results.at(summary.row, column).items():
            if seed in theirs:
                each = 100 * (run.worst_accuracy - theirs[seed].worst_accuracy)
                axes.plot(each, height, marker="|", markersize=9, color=INK, alpha=0.7)
        axes.plot(100 * difference.mean, height, marker="o", markersize=7, color=colour)
    axes.set_yticks(range(len(compared)), [s.row for s in compared])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(axis="y", visible=False)
    axes.set_ylim(-0.6, len(compared) - 0.4)
    axes.set_xlabel(f"Difference in {results.measured.lower()} (percentage points)")
    return figure


@styled
def group_shares(rows: Sequence[tuple[str, Run]]) -> Figure:
    """What each round trains on: the share of every (class, attribute) group, stacked, one panel a row."""
    lines, columns = panel_grid(len(rows))
    figure = Figure(figsize=(7.2, 1.1 + 1.75 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes, run in _panels(panels, rows):
        _stack(axes, run)
    for axes in panels[:, 0]:
        axes.set_ylabel("Share (%)")
    for axes in panels.flat[max(0, len(rows) - columns) : len(rows)]:
        axes.set_xlabel("Round")
        axes.tick_params(labelbottom=True)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
    return figure


def _stack(axes: "Axes", run: Run) -> None:
    shares = 100 * run.pooled_shares
    rounds = run.result["rounds"] + 1 - np.arange(len(shares), 0, -1)  # the last ones: pre-training comes first
    num_attributes = shares.shape[2]
    groups = shares.reshape(len(shares), -1).T
    bands = np.vstack([np.zeros(len(rounds)), groups.cumsum(axis=0)])
    for index, name in enumerate(run.group_names):  # a class is a hue, an attribute a shade of it
        y, a = divmod(index, num_attributes)
        shade = 0.9 - 0.6 * a / max(num_attributes - 1, 1)
        colour = PALETTE[y % len(PALETTE)]
        axes.fill_between(rounds, bands[index], bands[index + 1], color=colour, alpha=shade, linewidth=0, label=name)
    for edge in range(1, len(groups)):  # where the edges would lie if all groups were equal
        axes.axhline(100 * edge / len(groups), color=INK, linewidth=0.7, linestyle=(0, (2, 2)))
    axes.set(ylim=(0, 100), xlim=(rounds.min(), max(rounds.max(), rounds.min() + 1)))
    axes.grid(visible=False)
    axes.set_yticks([0, 25, 50, 75, 100])


def ternary(triplets: Floats) -> Floats:
    """[n, 3] triplets → [n, 2] points of the triangle: L1-normalised, as FedDiverse compares them (Sec. IV-B, step 2).

    A triplet of zeros has no direction and lies in the middle.
    """
    total = triplets.sum(axis=1, keepdims=True)
    weights = np.where(total > 0, triplets / np.where(total > 0, total, 1), 1 / 3)
    return np.asarray(weights @ CORNERS)


def kinds(triplets: Floats) -> list[NDArray[np.int64]]:
    """Clients of one kind, that is with the same triplet to three digits, together."""
    _, kind = np.unique(triplets.round(3), axis=0, return_inverse=True)
    return [np.flatnonzero(kind.ravel() == i) for i in range(kind.max() + 1)]


@styled
def selection_triangles(rows: Sequence[tuple[str, Sequence[Run]]]) -> Figure:
    """Per row: each kind of client as a disc whose area is its share of all selections, over all seeds; a ring shows
    the share it would have under uniform selection. A disc beyond its ring: chosen more often than by chance."""
    lines, columns = panel_grid(len(rows))
    figure = Figure(figsize=(7.2, 0.3 + 6.6 / columns * lines), layout="constrained")
    for axes, runs in _panels(figure.subplots(lines, columns, squeeze=False), rows):
        _triangle(axes)
        _discs(axes, runs)
    return figure


def _discs(axes: "Axes", runs: Sequence[Run]) -> None:
    truth = np.concatenate([run.true_triplets for run in runs])  # a split made by rule differs from seed to seed
    times = np.concatenate([run.selection.times_chosen for run in runs])
    total = max(int(times.sum()), 1)
    points = ternary(truth)
    for members in sorted(kinds(truth), key=len, reverse=True):
        x, y = points[members[0]]
        share, by_chance = times[members].sum() / total, len(members) / len(truth)
        axes.scatter(x, y, s=AREA * share, color=PALETTE[0], alpha=0.55, linewidth=0)
        axes.scatter(x, y, s=AREA * by_chance, facecolor="none", edgecolor=INK, linewidth=1)
        above = (0, 3 + np.sqrt(AREA * max(share, by_chance) / np.pi))
        axes.annotate(f"{100 * share:.0f} %", (x, y), above, textcoords="offset points", ha="center", fontsize=8)


def _triangle(axes: "Axes") -> None:
    outline = CORNERS[[0, 1, 2, 0]]
    axes.plot(*outline.T, color=MUTED, linewidth=1, zorder=0)
    for step in (0.25, 0.5, 0.75):
        for i in range(3):
            a, b, c = np.roll(np.arange(3), i)
            start = step * CORNERS[a] + (1 - step) * CORNERS[b]
            stop = step * CORNERS[a] + (1 - step) * CORNERS[c]
            axes.plot(*np.stack([start, stop]).T, color=GRID, linewidth=0.6, zorder=0)
    for name, corner, beside in zip(NAMES, CORNERS, ((0, -20), (0, -20), (26, 4)), strict=True):
        axes.annotate(name, tuple(corner), beside, textcoords="offset points", ha="center", va="center", color=MUTED)
    axes.set_aspect("equal")
    axes.set(xlim=(-0.22, 1.22), ylim=(-0.22, 1.12))
    axes.axis("off")


@styled
def estimation_scatter(rows: Sequence[tuple[str, Sequence[Run]]]) -> Figure:
    """Estimated against true CI, AI and SC, a marker a client and seed; on the diagonal an estimate is right."""
    figure = Figure(figsize=(7.2, 3.1), layout="constrained")
    for panel, axes in enumerate(figure.subplots(1, 3, sharey=True)):
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (3, 2)))
        for index, (row, runs) in enumerate(rows):
            true = np.concatenate([run.true_triplets[:, panel] for run in runs])
            found = [run.estimated_triplets for run in runs]
            estimated = np.concatenate([each[:, panel] for each in found if each is not None])
            known = np.isfinite(estimated)
            r = correlation(estimated[known], true[known])
            label = row if panel == 0 else None
            colour, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
            axes.scatter(true, estimated, s=26, color=colour, marker=marker, alpha=0.55, linewidth=0, label=label)
            words = "r not defined" if r is None else f"r = {r:.2f}".replace("-", "−")
            height = 0.94 - 0.09 * index
            axes.scatter(0.05, height, s=26, color=colour, marker=marker, linewidth=0, transform=axes.transAxes)
            axes.text(0.09, height, words, transform=axes.transAxes, va="center", fontsize=9)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel=f"true {NAMES[panel]}")
        axes.set_aspect("equal")
        if panel == 0:
            axes.set_ylabel("estimated")
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    return figure
