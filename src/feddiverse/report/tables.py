"""The tables of a report: the paper's layout with ours beside it, every comparison in full, how clients were used."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from feddiverse.experiment import estimating
from feddiverse.experiment.finished import Run
from feddiverse.experiment.overhead import Cost, cost
from feddiverse.report.costs import estimators_table, overhead_tables
from feddiverse.report.estimated import estimated_tables
from feddiverse.report.results import Results, Summary
from feddiverse.report.statistics import (
    DEVIATION_RULE,
    Difference,
    Reached,
    Spread,
    paired_difference,
    percent,
    points,
    spread,
    stay_sure,
    time_to_reach,
)
from feddiverse.report.table import Cell, Mark, Table

NOTHING = Cell("–")
MOST_CLIENTS = 100
MOST_GROUPS = 16  # that a table is wide enough for; figures have them all


def all_tables(results: Results) -> list[Table]:
    """What a report shows and a study writes; a single cell has nothing to be compared with."""
    if results.view == "overhead":
        costs = {place: [_cost(run) for run in found.values()] for place, found in results.runs.items()}
        return overhead_tables(costs, results.title, results.notes)
    if results.view == "estimators":
        compared = {
            place: [each for run in found.values() if (each := estimating.of_run(run))]
            for place, found in results.runs.items()
        }
        compared = {place: found for place, found in compared.items() if found}
        return [estimators_table(compared, results.title, results.notes)]
    accuracy = [accuracy_table(results), comparison_table(results)] if len(results.summaries) > 1 else []
    marked = [*estimated_tables(results), *heads_tables(results)]
    usage = usage_table(results)
    if not accuracy:
        usage = replace(usage, notes=(*usage.notes, *results.notes))
    return [*accuracy, *marked, *groups_tables(results), usage, *asked_tables(results)]


def _cost(run: Run) -> Cost:
    return cost(run.rounds, len(run.counts), run.config.num_selected or run.federation["num_selected"])


def accuracy_table(results: Results) -> Table:
    """Worst-group accuracy, rows × columns, as the paper's tables have it."""
    marks = {column: _marks(results.ranked(column)) for column in results.columns}
    rows = []
    for row in results.rows:
        cells = [Cell(row)]
        for column in results.columns:
            summary = results.summaries.get((row, column))
            cells.append(NOTHING if summary is None else _accuracy_cell(results, summary, marks[column].get(row, "")))
        rows.append(tuple(cells))
    notes = [
        f"{results.measured} in percent, mean ± {DEVIATION_RULE}{_seeds(results)}. Highest mean bold, second "
        "underlined; whether they differ, intervals say."
    ]
    if any(s.published for s in results.summaries.values()):
        notes.append(f"In brackets or small: the paper’s value ({results.published_in}).")
    return Table("accuracy", results.title, ("Method", *results.columns), tuple(rows), (*notes, *results.notes))


def comparison_table(results: Results) -> Table:
    """One line per cell: ours, the paper's, the paired difference with its interval, rounds to reach each level."""
    marks = {column: _marks(results.ranked(column)) for column in results.columns}
    several, published = len(results.columns) > 1, any(s.published for s in results.summaries.values())
    differences = _corrected([summary.difference for summary in results.summaries.values()])
    rows = []
    for ((row, column), summary), difference in zip(results.summaries.items(), differences, strict=True):
        line = [Cell(row), *([Cell(column)] if several else [])]
        ours = _accuracy_cell(results, summary, marks[column].get(row, ""))
        line.append(Cell(ours.text, ours.value, ours.mark, numbers=ours.numbers))
        line += [_published_cell(summary)] if published else []
        line.append(difference)
        line += [_reached_cell(summary.reached[level], summary.seconds[level]) for level in results.levels]
        rows.append(tuple(line))
    heads = [
        "Method",
        *([results.column_head] if several else []),
        results.measured,
        *(["Paper"] if published else []),
    ]
    heads += [f"Difference{_against(results)}", *(f"Rounds to {100 * level:.0f} %" for level in results.levels)]
    notes = [
        f"Mean ± {DEVIATION_RULE}. Differences are paired by seed, in percentage points, with a 95 % t interval."
        f"{_starred(differences)}",
        "Rounds: mean first evaluated round at the level or above, over seeds that reach it (how many, if not all); "
        "small: the seconds until then.",
        *([f"Paper: {results.published_in}."] if published else []),
        *results.notes,
    ]
    return Table("comparison", "Every comparison", tuple(heads), tuple(rows), tuple(notes))


def heads_tables(results: Results) -> list[Table]:
    """Where runs have a rebalanced head beside the trained one: what both do, one line a cell.

    The rebalanced head is held against the trained one of the same runs, and of those of the row's baseline.
    """
    several, compares = len(results.columns) > 1, any(row != other for row, other in results.baselines.items())
    between = any(len(run.rebalanced_curve[0]) > 1 for runs in results.runs.values() for run in runs.values())
    level = results.levels[-1]
    rows, to_trained, to_baseline = [], [], []
    for row, column in results.summaries:
        runs = [(seed, run, run.rebalanced) for seed, run in results.at(row, column).items() if run.rebalanced]
        trained = {seed: run.worst_accuracy for seed, run, _ in runs}
        solved = {seed: worst for seed, run, about in runs if (worst := run.worst_of(about)) is not None}
        if not solved:
            continue
        overall = [spread([run.result["accuracy"] for _, run, _ in runs]), spread([a["accuracy"] for *_, a in runs])]
        baseline = results.at(results.baselines.get(row, ""), column)
        plain = {seed: run.worst_accuracy for seed, run in baseline.items()}
        reached = time_to_reach([run.rebalanced_curve for _, run, _ in runs], level)
        to_trained.append(paired_difference(solved, trained))
        to_baseline.append(paired_difference(solved, plain))
        before = (
            Cell(row),
            *([Cell(column)] if several else []),
            *(_spread_cell(spread(list(worst.values()))) for worst in (trained, solved)),
        )
        after = (*(_spread_cell(each) for each in overall), *([_reached_cell(reached)] if between else []))
        rows.append((before, after))
    if not rows:
        return []
    compared = [_corrected(to_trained), *([_corrected(to_baseline)] if compares else [])]
    lines = [(*before, *differences, *after) for (before, after), *differences in zip(rows, *compared, strict=True)]
    heads = ("Method", *([results.column_head] if several else []), f"{results.measured}, trained", "Rebalanced")
    heads += ("Difference", *([f"Difference{_against(results)}, trained"] if compares else []))
    heads += ("Accuracy, trained", "Accuracy, rebalanced")
    heads += (f"Rounds to {100 * level:.0f} %, rebalanced",) if between else ()
    notes = (
        "Two heads of the same runs: as trained, and with the last layer solved anew, hidden groups of equal weight.",
        f"Mean ± {DEVIATION_RULE}, in percent. Differences are paired by seed, with a 95 % t interval."
        f"{_starred(*compared)}",
    )
    return [Table("heads", "Trained and rebalanced head", heads, tuple(lines), notes)]


def groups_tables(results: Results) -> list[Table]:
    """Every group at the end, a line a head: one table for all columns that have the same groups."""
    columns: dict[tuple[str, ...], list[str]] = {}
    for column in results.columns:
        for run in [run for row in results.rows for run in results.at(row, column).values()][:1]:
            columns.setdefault(tuple(run.group_name(y, a) for y, a in run.tested_groups), []).append(column)
    several = len(results.columns) > 1
    heads = ("Method", *([results.column_head] if several else []), "Head")
    made: list[Table] = []
    for names, alike in columns.items():
        if not 1 < len(names) <= MOST_GROUPS:
            continue
        lines = []
        for row, column in (place for place in results.runs if place[1] in alike):
            runs = list(results.at(row, column).values())
            solved = [run.rebalanced_group_accuracies for run in runs if run.rebalanced]
            for head, found in (("trained", [run.group_accuracies for run in runs]), ("rebalanced", solved)):
                cells = [_spread_cell(spread(list(each))) for each in zip(*found, strict=True)]
                lines += [(Cell(row), *([Cell(column)] if several else []), Cell(head), *cells)] if cells else []
        name, title = "groups", "Every group"
        if len(columns) > 1:
            name, title = f"groups-{len(made)}", f"Every group: {', '.join(alike)}"
        notes = (f"Accuracy in percent after the last round, mean ± {DEVIATION_RULE}.",)
        made.append(Table(name, title, (*heads, *names), tuple(lines), notes))
    return made


def _spread_cell(found: Spread) -> Cell:
    sd = None if found.sd is None else 100 * found.sd
    return Cell(percent(found), 100 * found.mean, numbers={"sd": sd, "seeds": found.n})


def usage_table(results: Results) -> Table:
    """What each selector did to the federation: who took part, and how balanced the pooled data were."""
    several, rarest = len(results.columns) > 1, "Rarest group"
    if all(run.counts.shape[2] == 1 for run in results.all_runs):  # nobody knows the attributes of training samples
        rarest = "Rarest class"
    rows = []
    for (row, column), found in results.runs.items():
        several_runs = [run for run in found.values() if run.choices]
        if not several_runs:
            continue
        effective = spread([run.selection.effective_clients for run in several_runs]).mean
        smallest = spread([float(run.selection.smallest_share.mean()) for run in several_runs]).mean
        chosen = spread([float((run.selection.times_chosen > 0).sum()) for run in several_runs]).mean
        clients, groups = len(several_runs[0].counts), several_runs[0].counts[0].size
        rows.append(
            (
                Cell(row),
                *([Cell(column)] if several else []),
                Cell(f"{chosen:.1f} of {clients}", chosen),
                Cell(f"{effective:.1f}", effective),
                Cell(f"{100 * smallest:.1f} %", 100 * smallest, beside=f"even: {100 / groups:.1f} %"),
            )
        )
    heads = (
        "Method",
        *([results.column_head] if several else []),
        "Clients ever chosen",
        "Effective clients",
        rarest,
    )
    notes = (
        "Effective clients: exp of the entropy of shares, how many evenly used clients would be as concentrated.",
        f"{rarest}: its share of the data a round trains on, mean over rounds. Rounds of pre-training are left out. "
        "Means over seeds.",
    )
    return Table("usage", "What selection did to the federation", heads, tuple(rows), notes)


def asked_tables(results: Results) -> list[Table]:
    """For each federation: which clients each method asked how often, and which never."""
    made = []
    for place, column in enumerate(results.columns):
        found = {row: list(at.values()) for row in results.rows if (at := results.at(row, column))}
        runs = [run for at in found.values() for run in at if run.choices]
        names = runs[0].client_names if runs else []
        if not names or any(run.client_names != names for run in runs):
            continue
        times = {row: np.mean([run.selection.times_chosen for run in at], axis=0) for row, at in found.items()}
        most = max(float(each.max()) for each in times.values()) or 1.0
        order = np.argsort(-np.sum(list(times.values()), axis=0), kind="stable").tolist()
        sizes = runs[0].counts.sum(axis=(1, 2))
        lines = tuple(
            (
                Cell(names[k]),
                Cell(f"{sizes[k]}", int(sizes[k])),
                *(_times_cell(float(each[k]), most) for each in times.values()),
            )
            for k in order[:MOST_CLIENTS]
        )
        more = f" The {MOST_CLIENTS} asked most of {len(names)}." if len(names) > MOST_CLIENTS else ""
        notes = (f"Rounds in which a client was chosen, mean over seeds; pre-training is left out.{more}",)
        title = f"Who was asked how often: {column}" if len(results.columns) > 1 else "Who was asked how often"
        name = f"asked-{place}" if len(results.columns) > 1 else "asked"
        made.append(Table(name, title, ("Client", "Samples", *times), lines, notes))
    return made


def _times_cell(times: float, most: float) -> Cell:
    return Cell("never" if not times else f"{times:.1f}".removesuffix(".0"), times, bar=times / most)


def as_json(results: Results) -> dict[str, object]:
    """The comparison as plain data; accuracies and differences as fractions."""
    return {
        "title": results.title,
        "cells": [
            {
                "method": s.row,
                "federation": s.column,
                "seeds": s.accuracy.n,
                f"worst_{next(iter(results.at(s.row, s.column).values())).yardstick}_accuracy": s.accuracy.mean,
                "sd": s.accuracy.sd,
                "paper_percent": s.published and s.published[0],
                "difference": s.difference and s.difference.mean,
                "low": s.difference and s.difference.low,
                "high": s.difference and s.difference.high,
                "rounds_to": {f"{100 * level:.0f}": reached.mean for level, reached in s.reached.items()},
            }
            for s in results.summaries.values()
        ],
        "missing": list(results.missing),
        "failures": dict(results.failures),
    }


def _against(results: Results) -> str:
    """` to NAME` where all rows are compared with one."""
    baselines = {results.baselines[s.row] for s in results.summaries.values() if s.difference}
    return f" to {baselines.pop()}" if len(baselines) == 1 else ""


def _marks(ranked: list[Summary]) -> dict[str, Mark]:
    """Best and second by the shown mean; equal numbers share a mark, and a lone row needs none."""
    if len(ranked) < 2:
        return {}
    levels = list(dict.fromkeys(round(100 * s.accuracy.mean, 2) for s in ranked))[:2]
    names: dict[float, Mark] = dict(zip(levels, ("best", "second"), strict=False))
    shown = {s.row: names.get(round(100 * s.accuracy.mean, 2), "") for s in ranked}
    return {row: mark for row, mark in shown.items() if mark}


def _accuracy_cell(results: Results, summary: Summary, mark: Mark) -> Cell:
    fewer = results.seeds_if_fewer(summary)
    text = percent(summary.accuracy) + (f" ({fewer})" if fewer else "")
    beside = "" if summary.published is None else f"paper {summary.published[0]:.2f} ± {summary.published[1]:.2f}"
    sd = None if summary.accuracy.sd is None else 100 * summary.accuracy.sd
    numbers = {"sd": sd, "seeds": summary.accuracy.n}
    return Cell(text, 100 * summary.accuracy.mean, mark, beside, numbers)


def _published_cell(summary: Summary) -> Cell:
    if summary.published is None:
        return NOTHING
    mean, sd = summary.published
    return Cell(f"{mean:.2f} ± {sd:.2f}", mean, numbers={"sd": sd})


def _difference_cell(difference: Difference | None) -> Cell:
    if difference is None:
        return NOTHING
    bounds = {
        name: None if bound is None else 100 * bound
        for name, bound in (("low", difference.low), ("high", difference.high))
    }
    return Cell(points(difference), 100 * difference.mean, numbers=bounds)


def _corrected(differences: Sequence[Difference | None]) -> list[Cell]:
    """A table's differences; a star where one stays beyond the noise though they are many."""
    sure = stay_sure(differences) if sum(difference is not None for difference in differences) > 1 else set()
    cells = [_difference_cell(difference) for difference in differences]
    return [replace(cell, text=f"{cell.text}*") if place in sure else cell for place, cell in enumerate(cells)]


def _starred(*compared: Sequence[Cell]) -> str:
    """What a star means, where there is one."""
    many = " and ".join(
        str(sum(cell is not NOTHING for cell in cells)) for cells in compared if any("*" in c.text for c in cells)
    )
    return (
        f" Starred: beyond the noise also when corrected for the {many} comparisons there are (Holm)." if many else ""
    )


def _reached_cell(rounds: Reached, seconds: Reached | None = None) -> Cell:
    timed = {} if seconds is None else {"seconds": seconds.mean}
    if rounds.mean is None:
        return Cell("–", numbers={**timed, "reached": 0})
    beside = [] if seconds is None or seconds.mean is None else [_time(seconds.mean)]
    beside += [] if rounds.reached == rounds.n else [f"{rounds.reached} of {rounds.n} seeds"]
    return Cell(
        f"{rounds.mean:.0f}", rounds.mean, beside=", ".join(beside), numbers={**timed, "reached": rounds.reached}
    )


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _seeds(results: Results) -> str:
    numbers = sorted({s.accuracy.n for s in results.summaries.values()})
    if len(numbers) > 1:
        return f" ({numbers[0]}–{numbers[-1]} seeds)"
    return " (one seed)" if numbers == [1] else f" ({numbers[0]} seeds)"
