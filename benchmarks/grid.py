"""What a grid of methods says, each with both heads: `python -m benchmarks.grid results/grid-on-digits --figure FILE`.

Four tables in Markdown: what both heads of every method reach; what choosing clients changes; what solving the last
layer anew changes; and which recipe is never worse than the baseline as trained. Then in how many runs the layer solved
anew is better. Differences are paired by seed, with 95 % t intervals; a star where one stays beyond the noise when
corrected for all of its table (Holm). Where the layer was solved anew on the way too, a fifth table has both heads by
round.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from feddiverse.errors import UserError
from feddiverse.report.results import Results, load
from feddiverse.report.statistics import FEWEST_SEEDS, Difference, paired_difference, signed, stay_sure

HEADS = ("trained", "solved anew")
MARGIN = 0.005  # worse by more than half a point counts as worse: a group's test accuracy errs by about as much

BySeed = Mapping[int, float]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grid", description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="a study whose runs have both heads")
    parser.add_argument("--figure", type=Path, help="also draw the first table there (.svg, .png or .pdf)")
    given = parser.parse_args()
    try:
        results = whole(load(given.results))
    except UserError as error:
        raise SystemExit(str(error)) from None
    print("\n\n".join(tables(results)))
    if given.figure:
        draw(results, given.figure)


def whole(results: Results) -> Results:
    """Of a study on its way, the seeds that every method has on every split it was begun on: means of others would not
    compare."""
    if not results.baselines:
        raise SystemExit(f"{results.path} names no baseline that its methods could be compared with.")
    everywhere = set.intersection(*(set(found) for found in results.runs.values())) if results.runs else set()
    if not everywhere:
        raise SystemExit("No seed is done with every method on every split yet.")
    kept = {place: {seed: found[seed] for seed in sorted(everywhere)} for place, found in results.runs.items()}
    return replace(results, runs=kept)


def tables(results: Results) -> list[str]:
    seeds = ", ".join(str(seed) for seed in next(iter(results.runs.values())))
    return [
        f"Worst-group accuracy in %, as trained → solved anew, means over seeds {seeds}:\n\n{levels(results)}",
        f"Choosing clients, minus {_baseline(results)} with the same head:\n\n{selection(results)}",
        f"Solving the last layer anew, minus the trained one of the same runs:\n\n{rebalancing(results)}",
        f"Recipes, minus {_baseline(results)} as trained; over splits, then how often worse:\n\n{recipes(results)}",
        run_by_run(results),
        *on_the_way(results),
    ]


def worst(results: Results, row: str, column: str, head: str) -> BySeed:
    """Seed → accuracy of the worst group with that head; where none could be solved, the trained one stays."""
    solves = head != HEADS[0]
    return {
        seed: run.worst_accuracy if not solves or run.worst_rebalanced is None else run.worst_rebalanced
        for seed, run in results.at(row, column).items()
    }


def levels(results: Results) -> str:
    rows = [[row, *(_both_heads(results, row, column) for column in results.columns)] for row in results.rows]
    return _table(["Method", *results.columns], rows)


def _both_heads(results: Results, row: str, column: str) -> str:
    if not results.at(row, column):
        return "–"
    return " → ".join(f"{_mean(worst(results, row, column, head)):.1f}" for head in HEADS)


def selection(results: Results) -> str:
    """Each method against the baseline, both with the same head."""
    baseline = _baseline(results)
    lines = [(row, head) for head in HEADS for row in results.rows if row != baseline]
    found = [
        [paired_difference(worst(results, row, c, head), worst(results, baseline, c, head)) for c in results.columns]
        for row, head in lines
    ]
    words = [[*line, *cells] for line, cells in zip(lines, _starred(found), strict=True)]
    return _table(["Method", "Head", *results.columns], words)


def rebalancing(results: Results) -> str:
    found = [
        [
            paired_difference(*(worst(results, row, column, head) for head in reversed(HEADS)))
            for column in results.columns
        ]
        for row in results.rows
    ]
    lines = [[row, *cells] for row, cells in zip(results.rows, _starred(found), strict=True)]
    return _table(["Method", *results.columns], lines)


def recipes(results: Results) -> str:
    """Every method with every head against the baseline as trained: over splits, on the worst split, in every pair.

    A mean over splits stands only where a method ran on all of them: others would not compare.
    """
    lines = []
    for row in results.rows:
        for head in HEADS:
            if (row, head) == (_baseline(results), HEADS[0]):
                continue
            gains = {column: _gains(results, row, column, head) for column in results.columns}
            ran_on = [column for column, found in gains.items() if found]
            if not ran_on:
                continue
            every = np.array([list(gains[column].values()) for column in ran_on])  # [split, seed]
            over = paired_difference(dict(enumerate(every.mean(axis=0))), dict.fromkeys(range(every.shape[1]), 0.0))
            lowest = int(every.mean(axis=1).argmin())
            on_lowest = f"{ran_on[lowest]} {signed(100 * every[lowest].mean(), 1)}"
            worse = f"{(every < -MARGIN).sum()} of {every.size}"
            lines.append([row, head, _points(over if len(ran_on) == len(results.columns) else None), on_lowest, worse])
    heads = ["Method", "Head", "Mean over splits", "Lowest split", "Pairs worse by over half a point"]
    return _table(heads, lines)


def run_by_run(results: Results) -> str:
    """How many of all runs are better with their last layer solved anew, and what the least of them got."""
    changes = []
    for row, column in results.runs:
        trained, solved = (worst(results, row, column, head) for head in HEADS)
        changes += [solved[seed] - trained[seed] for seed in trained]
    better = sum(change > 0 for change in changes)
    return (
        f"The worst group is better with the last layer solved anew in {better} of {len(changes)} runs; the least"
        f" change is {signed(100 * min(changes), 2)} points."
    )


def on_the_way(results: Results) -> list[str]:
    """Both heads after each round in which the last layer was solved anew too; nothing where only the end was."""
    curves = {place: [run.rebalanced_curve for run in found.values()] for place, found in results.runs.items()}
    solved_in = sorted({int(t) for found in curves.values() for rounds, _ in found for t in rounds})
    if len(solved_in) < 2:
        return []
    lines = []
    for column in results.columns:
        for row in results.rows:
            runs = results.at(row, column).values()
            both = [_at(solved_in, [run.curve for run in runs]), _at(solved_in, [run.rebalanced_curve for run in runs])]
            lines.append([row, column, *(f"{before} → {after}" for before, after in zip(*both, strict=True))])
    table = _table(["Method", "Split", *(f"round {t}" for t in solved_in)], lines)
    return [f"On the way, as trained → solved anew:\n\n{table}"]


def _at(rounds: Sequence[int], curves: Sequence[tuple[Any, Any]]) -> list[str]:
    """Mean over the curves at each of the rounds."""
    points = [dict(zip(seen.tolist(), accuracies.tolist(), strict=True)) for seen, accuracies in curves]
    found = [[curve[t] for curve in points if t in curve] for t in rounds]
    return [f"{100 * np.mean(values):.1f}" if len(values) == len(points) > 0 else "–" for values in found]


def _gains(results: Results, row: str, column: str, head: str) -> dict[int, float]:
    ours, theirs = worst(results, row, column, head), worst(results, _baseline(results), column, HEADS[0])
    return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}


def draw(results: Results, path: Path) -> None:
    """A panel a split: each method's trained head as a ring, the one solved anew as a disc."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    from feddiverse.report.figures import colour_of

    shown = {column: [row for row in reversed(results.rows) if results.at(row, column)] for column in results.columns}
    heights = [0.24 * len(rows) + 0.35 for rows in shown.values()]
    figure, panels = plt.subplots(
        len(shown), 1, sharex=True, squeeze=False, figsize=(7.2, 0.5 + sum(heights)), height_ratios=heights,
        layout="constrained",
    )  # fmt: skip
    for axes, (column, rows) in zip(panels[:, 0], shown.items(), strict=True):
        for place, row in enumerate(rows):
            trained, solved = (_mean(worst(results, row, column, head)) for head in HEADS)
            colour = colour_of(results, row)
            axes.plot([trained, solved], [place, place], color=colour, linewidth=1.2, zorder=1)
            axes.scatter([trained], [place], s=34, facecolors="white", edgecolors=colour, zorder=2)
            axes.scatter([solved], [place], s=34, color=colour, zorder=3)
        axes.set_yticks(range(len(rows)), rows, fontsize=8)
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_title(column, loc="left", fontsize=9, fontweight="bold", pad=3)
        axes.grid(axis="x", linewidth=0.4, alpha=0.6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    panels[-1, 0].set_xlabel("worst-group accuracy in %: as trained (ring), last layer solved anew (disc)", fontsize=9)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _baseline(results: Results) -> str:
    return next(iter(results.baselines.values()))


def _mean(found: BySeed) -> float:
    return 100 * float(np.mean(list(found.values())))


def _points(difference: Difference | None) -> str:
    if difference is None:
        return "–"
    mean = signed(100 * difference.mean, 1)
    if difference.low is None or difference.high is None or difference.n < FEWEST_SEEDS:
        return mean
    return f"{mean} \\[{signed(100 * difference.low, 1)}, {signed(100 * difference.high, 1)}\\]"


def _starred(found: Sequence[Sequence[Difference | None]]) -> list[list[str]]:
    """A whole table's differences in words, corrected together."""
    sure = stay_sure([difference for row in found for difference in row])
    width = len(found[0]) if found else 0
    return [
        [_points(difference) + ("\\*" if i * width + j in sure else "") for j, difference in enumerate(row)]
        for i, row in enumerate(found)
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
