"""Figures of the clients' triplets: where clients lie between CI, AI and SC and how often each kind was chosen;
how near estimated triplets come to the true ones."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from feddiverse.experiment.truth import correlation
from feddiverse.report.figures import panel_grid, styled, wrapped
from feddiverse.report.runs import Run
from feddiverse.report.svg import GRID, INK, MARKERS, MUTED, PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

# The corners of the triangle: CI left, AI right, SC on top.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
NAMES = ("CI", "AI", "SC")
AREA = 1000  # of a disc that has all selections, in square points


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
    panels = figure.subplots(lines, columns, squeeze=False)
    for axes in panels.flat[len(rows) :]:
        axes.remove()
    for axes, (row, runs) in zip(panels.flat, rows, strict=False):
        _triangle(axes)
        _discs(axes, runs)
        axes.set_title(wrapped(row), fontsize=9)
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
    for name, corner, (dx, dy), side in zip(
        NAMES, CORNERS, ((0, -20), (0, -20), (26, 4)), ("center", "center", "center"), strict=True
    ):
        axes.annotate(name, tuple(corner), (dx, dy), textcoords="offset points", ha=side, va="center", color=MUTED)
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
            estimated = np.concatenate([_estimated(run)[:, panel] for run in runs])
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


def _estimated(run: Run) -> Floats:
    assert run.estimated_triplets is not None
    return run.estimated_triplets
