"""Figures over rounds and seeds: accuracy curves with bands, paired differences, what a round trains on.

Each function returns a matplotlib `Figure` (no global state, no window) drawn for print and for the page alike.
"""

import textwrap
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from feddiverse.report.results import LEVELS, Results
from feddiverse.report.runs import Run
from feddiverse.report.svg import DASHES, INK, MUTED, PALETTE, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

P = ParamSpec("P")


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


def wrapped(name: str) -> str:
    """A panel's title in short lines."""
    return textwrap.fill(name, 20, break_long_words=False)


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
    axes.set(xlabel="Round", ylabel="Worst-group accuracy (%)")
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
                each = 100 * (run.worst_group_accuracy - theirs[seed].worst_group_accuracy)
                axes.plot(each, height, marker="|", markersize=9, color=INK, alpha=0.7)
        axes.plot(100 * difference.mean, height, marker="o", markersize=7, color=colour)
    axes.set_yticks(range(len(compared)), [s.row for s in compared])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(axis="y", visible=False)
    axes.set_ylim(-0.6, len(compared) - 0.4)
    axes.set_xlabel("Difference in worst-group accuracy (percentage points)")
    return figure


@styled
def group_shares(rows: Sequence[tuple[str, Run]]) -> Figure:
    """What each round trains on: the share of every (class, attribute) group, stacked, one panel a row."""
    lines, columns = panel_grid(len(rows))
    figure = Figure(figsize=(7.2, 1.1 + 1.75 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat[len(rows) :]:
        axes.remove()
    for axes, (row, run) in zip(panels.flat, rows, strict=False):
        _stack(axes, run)
        axes.set_title(wrapped(row), fontsize=9)
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
    rounds = np.array([r["round"] for r in run.rounds if r["phase"] == "selected"])
    num_classes, num_attributes = shares.shape[1:]
    groups = shares.reshape(len(shares), -1).T
    names = [
        f"{run.federation['class_names'][y]}, {run.federation['attribute_names'][a]}"
        for y in range(num_classes)
        for a in range(num_attributes)
    ]
    bands = np.vstack([np.zeros(len(rounds)), groups.cumsum(axis=0)])
    for index, name in enumerate(names):  # a class is a hue, an attribute a shade of it
        y, a = divmod(index, num_attributes)
        shade = 0.9 - 0.6 * a / max(num_attributes - 1, 1)
        colour = PALETTE[y % len(PALETTE)]
        axes.fill_between(rounds, bands[index], bands[index + 1], color=colour, alpha=shade, linewidth=0, label=name)
    for edge in range(1, len(groups)):  # where the edges would lie if all groups were equal
        axes.axhline(100 * edge / len(groups), color=INK, linewidth=0.7, linestyle=(0, (2, 2)))
    axes.set(ylim=(0, 100), xlim=(rounds.min(), max(rounds.max(), rounds.min() + 1)))
    axes.grid(visible=False)
    axes.set_yticks([0, 25, 50, 75, 100])
