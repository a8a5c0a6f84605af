"""The figures of a report: accuracy over rounds, paired differences, what a round trains on, which clients were chosen,
how near estimated triplets come to the true ones.

Each function returns a `Drawing`: a matplotlib `Figure` (no global state, no window) with the values in it. All are
as wide as a phone shows without shrinking their text; a page sets two beside each other where there is room.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import groupby
from typing import TYPE_CHECKING, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from feddiverse.experiment.finished import Floats, Run
from feddiverse.experiment.truth import correlation
from feddiverse.report.results import Results
from feddiverse.report.statistics import FEWEST_SEEDS
from feddiverse.report.svg import DASHES, GRID, INK, MARKERS, MUTED, PALETTE, STYLE, Drawing, Mark, belongs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

P = ParamSpec("P")

WIDTH = 4.2  # inches
# The corners of the triangle of triplets: CI left, AI right, SC on top.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
NAMES = ("CI", "AI", "SC")
AREA = 1600  # of a disc that has all selections, in square points
MOST_LABELS = 8
LABELLED = 0.03  # of all selections
SMALL = 9.5  # the smallest text, in points
LEGEND_WIDTH = 40  # letters of names that fit beside each other


def styled(draw: Callable[P, Drawing]) -> Callable[P, Drawing]:
    """Draws in our style without touching anybody else's."""

    @wraps(draw)
    def within(*args: P.args, **kwargs: P.kwargs) -> Drawing:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return within


def _start(height: float) -> tuple[Drawing, "Axes"]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return Drawing(figure), figure.subplots()


def colour_of(results: Results, row: str) -> str:
    """A row keeps its colour in every figure; baselines are drawn in ink."""
    others = [r for r in results.rows if r not in set(results.baselines.values())]
    return PALETTE[others.index(row) % len(PALETTE)] if row in others else INK


def _shared_rounds(runs: Sequence[Run]) -> tuple[list[float], list[NDArray[np.bool_]]]:
    """The evaluated rounds that all runs have, and which of each run's these are."""
    rounds = sorted(set.intersection(*(set(run.curve[0].tolist()) for run in runs)))
    return rounds, [np.isin(run.curve[0], rounds) for run in runs]


@styled
def accuracy_curves(results: Results, column: str) -> Drawing:
    """Worst-group accuracy over rounds: mean over seeds, band from the lowest to the highest seed."""
    drawing, axes = _start(3.3)
    lowest = 100.0
    for index, row in enumerate(results.rows):
        runs = list(results.at(row, column).values())
        if not runs:
            continue
        rounds, which = _shared_rounds(runs)
        curves = 100 * np.array([run.curve[1][own] for run, own in zip(runs, which, strict=True)])
        mean, colour = curves.mean(axis=0), colour_of(results, row)
        if len(runs) > 1:
            band = axes.fill_between(rounds, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.15, lw=0)
            belongs(band, index)
        (line,) = axes.plot(rounds, mean, color=colour, linestyle=DASHES[index % len(DASHES)], label=row, linewidth=2)
        belongs(line, index)
        lowest = min(lowest, float(np.percentile(mean, 10)))
        for t, value, each in zip(rounds, mean, curves.T, strict=True):
            several = f" ({each.min():.1f} to {each.max():.1f})" if len(each) > 1 else ""
            drawing.marks.append(Mark(axes, t, value, f"{row}, round {t:.0f}: {value:.1f} %{several}", index))
    for level in results.levels:
        axes.axhline(100 * level, color=MUTED, linewidth=0.6, linestyle=(0, (1, 3)))
    axes.set(xlabel="Round", ylabel=f"{results.measured} (%)")
    axes.set_ylim(bottom=max(0.0, lowest - 5), top=min(101.0, axes.get_ylim()[1]))
    drawing.figure.legend(loc="outside lower left", ncols=_legend_columns(results.rows), fontsize=SMALL)
    return drawing


def _legend_columns(names: Sequence[str]) -> int:
    """Two where there are many names, and short enough ones; a column is filled before the next."""
    half = (len(names) + 1) // 2
    widths = [max(map(len, part), default=0) for part in (names[:half], names[half:])]
    return 2 if len(names) > 3 and sum(widths) <= LEGEND_WIDTH else 1


@styled
def group_curves(run_row: str, runs: Sequence[Run], method: int) -> Drawing:
    """Accuracy of every group over rounds with one method, mean over seeds: the worst one at the end drawn thick.

    In ink, where there is one: the worst group of the model with its last layer solved anew.
    """
    first = runs[0]
    groups, (rounds, which) = first.tested_groups, _shared_rounds(runs)
    drawing, axes = _start(3.0 + 0.2 * -(-(len(groups) + 1) // 2))
    curves = 100 * np.mean([run.group_curves[own] for run, own in zip(runs, which, strict=True)], axis=0)  # [t, g]
    worst = int(np.argmin(curves[-1]))
    for index, (y, a) in enumerate(groups):
        name, emphasis = first.group_name(y, a), index == worst
        axes.plot(
            rounds, curves[:, index], color=PALETTE[y % len(PALETTE)], linestyle=DASHES[a % len(DASHES)],
            linewidth=3 if emphasis else 1.3, alpha=1 if emphasis else 0.8, zorder=4 if emphasis else 2,
            label=f"{name} (worst)" if emphasis else name,
        )  # fmt: skip
        drawing.marks += [
            Mark(axes, t, value, f"{name}, round {t:.0f}: {value:.1f} %", method)
            for t, value in zip(rounds, curves[:, index], strict=True)
        ]
    end = curves[-1, worst]
    axes.annotate(f"{end:.0f} %", (rounds[-1], end), (5, 0), textcoords="offset points", va="center", fontsize=SMALL,
                  fontweight="bold")  # fmt: skip
    drawing.marks += _rebalanced_curve(axes, runs, method)
    axes.set(xlabel="Round", ylabel="Accuracy (%)", ylim=(0, 101))
    axes.margins(x=0.02)
    axes.set_title(run_row, loc="left", fontweight="bold", wrap=True)
    drawing.figure.legend(loc="outside lower left", ncols=2, fontsize=SMALL, columnspacing=1)
    return drawing


def _rebalanced_curve(axes: "Axes", runs: Sequence[Run], method: int) -> list[Mark]:
    """Mean over seeds at the rounds that all of them have; none where no run was rebalanced."""
    by_round = [dict(zip(*map(np.ndarray.tolist, run.rebalanced_curve), strict=True)) for run in runs]
    rounds = sorted(set.intersection(*(set(each) for each in by_round)))
    if not rounds:
        return []
    worst = [100 * float(np.mean([each[t] for each in by_round])) for t in rounds]
    axes.plot(rounds, worst, color=INK, linestyle=(0, (2, 1.5)), linewidth=2, zorder=5, marker="D", markersize=5,
              markevery=[-1], clip_on=False, label="worst, rebalanced")  # fmt: skip
    return [
        Mark(axes, t, value, f"worst group, rebalanced, round {t:.0f}: {value:.1f} %", method)
        for t, value in zip(rounds, worst, strict=True)
    ]


@styled
def heads(row: str, runs: Sequence[Run], method: int) -> Drawing:
    """Every group's accuracy with the trained last layer (ring) and with the one solved anew (disc), mean of seeds."""
    names = [runs[0].group_name(y, a) for y, a in runs[0].tested_groups]
    before = 100 * np.mean([run.group_accuracies for run in runs], axis=0)
    after = 100 * np.mean([run.rebalanced_group_accuracies for run in runs], axis=0)
    drawing, axes = _start(1.35 + 0.3 * len(names))
    order = np.argsort(-before)
    for height, index in enumerate(order.tolist()):
        name, old, new = names[index], before[index], after[index]
        colour = PALETTE[2] if new >= old else PALETTE[1]
        axes.plot([old, new], [height, height], color=colour, linewidth=3)
        axes.plot(old, height, "o", markersize=7, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.5)
        axes.plot(new, height, "o", markersize=8, color=colour)
        drawing.marks += [
            Mark(axes, old, height, f"{name}, trained: {old:.1f} %", method),
            Mark(axes, new, height, f"{name}, rebalanced: {new:.1f} %", method),
        ]
    axes.set_yticks(range(len(order)), [names[i] for i in order])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(axis="y", visible=False)
    lowest = float(min(before.min(), after.min()))
    axes.set(ylim=(-0.6, len(names) - 0.4), xlim=(max(0.0, lowest - 8), 101), xlabel="Accuracy (%)")
    axes.set_title(row, loc="left", fontweight="bold", wrap=True)
    return drawing


@styled
def paired_differences(results: Results, column: str) -> Drawing:
    """How much better than its baseline each row is, with its 95 % interval; every seed as a tick."""
    compared = [s for s in results.ranked(column) if s.difference is not None][::-1]
    drawing, axes = _start(0.95 + 0.5 * max(len(compared), 1))
    axes.axvline(0, color=INK, linewidth=1)
    labels = []
    for height, summary in enumerate(compared):
        difference, colour = summary.difference, colour_of(results, summary.row)
        assert difference is not None
        method = results.rows.index(summary.row)
        says = f"{summary.row}: {100 * difference.mean:+.1f} points"
        if difference.low is not None and difference.high is not None and difference.n >= FEWEST_SEEDS:
            ends = [100 * difference.low, 100 * difference.high]
            (bar,) = axes.plot(ends, [height, height], color=colour, linewidth=3)
            belongs(bar, method)
            says += f" ({ends[0]:+.1f} to {ends[1]:+.1f})"
        theirs = results.at(results.baselines[summary.row], column)
        for seed, run in results.at(summary.row, column).items():
            if seed in theirs:
                each = 100 * (run.worst_accuracy - theirs[seed].worst_accuracy)
                (tick,) = axes.plot(each, height, marker="|", markersize=10, color=INK, alpha=0.7)
                belongs(tick, method)
                drawing.marks.append(Mark(axes, each, height, f"{summary.row}, seed {seed}: {each:+.1f}", method))
        (dot,) = axes.plot(100 * difference.mean, height, marker="o", markersize=8, color=colour)
        belongs(dot, method)
        labels.append((axes.annotate(summary.row, (0, height), (0, 9), xycoords=("axes fraction", "data"),
                                     textcoords="offset points", fontsize=SMALL), method))  # fmt: skip
        drawing.marks.append(Mark(axes, 100 * difference.mean, height, says, method))
    low, high = axes.get_xlim()
    for label, method in labels:  # on the side where the line of zero is not
        belongs(label, method)
        if -low < 0.5 * (high - low):
            label.set(x=0, horizontalalignment="right")
            label.xy = (1, label.xy[1])
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylim(-0.5, len(compared) - 0.2)
    axes.set_xlabel(f"{results.measured}, points to baseline")
    return drawing


@styled
def group_shares(row: str, run: Run, method: int) -> Drawing:
    """What each round trains on: the share of every (class, attribute) group, stacked."""
    shares = 100 * run.pooled_shares
    rounds = run.result["rounds"] + 1 - np.arange(len(shares), 0, -1)  # the last ones: pre-training comes first
    groups = shares.reshape(len(shares), -1).T
    drawing, axes = _start(2.6 + 0.2 * -(-len(groups) // 2))
    bands = np.vstack([np.zeros(len(rounds)), groups.cumsum(axis=0)])
    for index, name in enumerate(run.group_names):  # a class is a hue, an attribute a shade of it
        y, a = divmod(index, shares.shape[2])
        shade = 0.9 - 0.6 * a / max(shares.shape[2] - 1, 1)
        colour = PALETTE[y % len(PALETTE)]
        axes.fill_between(rounds, bands[index], bands[index + 1], color=colour, alpha=shade, linewidth=0, label=name)
        middles = (bands[index] + bands[index + 1]) / 2
        drawing.marks += [
            Mark(axes, float(t), middle, f"{name}, round {t}: {share:.1f} %", method)
            for t, middle, share in zip(rounds.tolist(), middles.tolist(), groups[index].tolist(), strict=True)
        ]
    for edge in range(1, len(groups)):  # where the edges would lie if all groups were equal
        axes.axhline(100 * edge / len(groups), color=INK, linewidth=0.7, linestyle=(0, (2, 2)))
    axes.set(
        ylim=(0, 100), xlim=(rounds.min(), max(rounds.max(), rounds.min() + 1)), xlabel="Round", ylabel="Share (%)"
    )
    axes.grid(visible=False)
    axes.set_yticks([0, 25, 50, 75, 100])
    axes.set_title(row, loc="left", fontweight="bold", wrap=True)
    drawing.figure.legend(loc="outside lower left", ncols=2, fontsize=SMALL, columnspacing=1)
    return drawing


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
def selection_triangle(row: str, runs: Sequence[Run], method: int) -> Drawing:
    """Each kind of client as a disc whose area is its share of all selections, over all seeds; a ring shows the share
    it would have under uniform selection. A disc beyond its ring: chosen more often than by chance."""
    drawing, axes = _start(WIDTH * 0.86)
    _triangle(axes)
    truth = np.concatenate([run.true_triplets for run in runs])  # a split made by rule differs from seed to seed
    times = np.concatenate([run.selection.times_chosen for run in runs])
    names = [name for run in runs for name in run.client_names]
    total = max(int(times.sum()), 1)
    points = ternary(truth)
    placed: list[tuple[float, float]] = []
    for members in sorted(kinds(truth), key=lambda members: -times[members].sum()):
        x, y = points[members[0]]
        share, by_chance = times[members].sum() / total, len(members) / len(truth)
        axes.scatter(x, y, s=AREA * share, color=PALETTE[0], alpha=0.55, linewidth=0)
        axes.scatter(x, y, s=AREA * by_chance, facecolor="none", edgecolor=INK, linewidth=1)
        who = (
            names[members[0]]
            if len(set(members % len(runs[0].counts))) == 1
            else f"{len(members) // len(runs)} clients"
        )
        says = f"{who}: {100 * share:.1f} % of selections, {100 * by_chance:.1f} % of clients"
        drawing.marks.append(Mark(axes, x, y, says, method))
        # The largest get a number, wherever it does not cover another one.
        if (
            share >= LABELLED
            and len(placed) < MOST_LABELS
            and all(abs(x - u) > 0.14 or abs(y - v) > 0.09 for u, v in placed)
        ):
            placed.append((x, y))
            above = (0, 3 + np.sqrt(AREA * max(share, by_chance) / np.pi))
            axes.annotate(
                f"{100 * share:.0f} %", (x, y), above, textcoords="offset points", ha="center", fontsize=SMALL
            )
    axes.set_title(row, loc="left", fontweight="bold", wrap=True)
    return drawing


def _triangle(axes: "Axes") -> None:
    outline = CORNERS[[0, 1, 2, 0]]
    axes.plot(*outline.T, color=MUTED, linewidth=1, zorder=0)
    for step in (0.25, 0.5, 0.75):
        for i in range(3):
            a, b, c = np.roll(np.arange(3), i)
            start = step * CORNERS[a] + (1 - step) * CORNERS[b]
            stop = step * CORNERS[a] + (1 - step) * CORNERS[c]
            axes.plot(*np.stack([start, stop]).T, color=GRID, linewidth=0.6, zorder=0)
    for name, corner, beside in zip(NAMES, CORNERS, ((0, -24), (0, -24), (36, 0)), strict=True):
        axes.annotate(name, tuple(corner), beside, textcoords="offset points", ha="center", va="center", color=MUTED)
    axes.set_aspect("equal")
    axes.set(xlim=(-0.12, 1.12), ylim=(-0.17, 1.05))
    axes.axis("off")


@styled
def estimation_scatter(dimension: int, rows: Sequence[tuple[int, str, Sequence[Run]]]) -> Drawing:
    """Estimated against true CI, AI or SC, a marker a client and seed; on the diagonal an estimate is right."""
    drawing, axes = _start(WIDTH * 0.86 + 0.2 * len(rows))
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (3, 2)))
    for index, (method, row, runs) in enumerate(rows):
        found = [(run, run.estimated_triplets) for run in runs]
        true = np.concatenate([run.true_triplets[:, dimension] for run, _ in found])
        estimated = np.concatenate([each[:, dimension] for _, each in found if each is not None])
        known = np.isfinite(estimated)
        r = correlation(estimated[known], true[known])
        words = "r not defined" if r is None else f"r = {r:.2f}".replace("-", "−")
        dots = axes.scatter(
            true, estimated, s=34, color=PALETTE[index % len(PALETTE)], marker=MARKERS[index % len(MARKERS)],
            alpha=0.55, linewidth=0, label=f"{row}: {words}",
        )  # fmt: skip
        belongs(dots, method)
        drawing.marks += _estimates(axes, row, runs, dimension, method)
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel=f"true {NAMES[dimension]}", ylabel="estimated")
    axes.set_title(NAMES[dimension], loc="left", fontweight="bold")
    drawing.figure.legend(loc="outside lower left", fontsize=SMALL)
    return drawing


def _estimates(axes: "Axes", row: str, runs: Sequence[Run], dimension: int, method: int) -> list[Mark]:
    """A mark a place, with the clients that lie there."""
    places = sorted(
        (round(float(true), 2), round(float(found), 2), run.client_names[k])
        for run in runs
        if run.estimated_triplets is not None
        for k, (true, found) in enumerate(
            zip(run.true_triplets[:, dimension], run.estimated_triplets[:, dimension], strict=True)
        )
        if np.isfinite(found)
    )
    marks = []
    for (x, y), members in groupby(places, key=lambda place: place[:2]):
        names = sorted({name for *_, name in members})
        who = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        marks.append(Mark(axes, x, y, f"{row}: true {x:.2f}, estimated {y:.2f} ({who})", method))
    return marks
