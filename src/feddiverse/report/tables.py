"""The tables of a report: the paper's layout with ours beside it, every comparison in full, how clients were used."""

from dataclasses import replace

import numpy as np

from feddiverse.experiment import estimating
from feddiverse.experiment.finished import Run
from feddiverse.experiment.overhead import Cost, cost
from feddiverse.report.costs import estimators_table, overhead_tables
from feddiverse.report.results import LEVELS, Results, Summary
from feddiverse.report.statistics import DEVIATION_RULE, Difference, Reached, Spread, spread
from feddiverse.report.table import Cell, Mark, Table

NOTHING = Cell("–")
MOST_CLIENTS = 100


def percent(spread: Spread) -> str:
    """`94.01 ± 0.98`, in percent as in the paper; a single seed has no deviation."""
    mean = f"{100 * spread.mean:.2f}"
    return mean if spread.sd is None else f"{mean} ± {100 * spread.sd:.2f}"


def points(difference: Difference) -> str:
    """`+2.1 [+0.3, +3.9]`: percentage points with their interval."""
    mean = signed(100 * difference.mean)
    if difference.low is None or difference.high is None:
        return mean
    return f"{mean} [{signed(100 * difference.low)}, {signed(100 * difference.high)}]"


def signed(value: float) -> str:
    """Two digits with a sign, the minus being a minus."""
    return f"{value:+.2f}".replace("-", "−")


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
    usage = usage_table(results)
    if not accuracy:
        usage = replace(usage, notes=(*usage.notes, *results.notes))
    return [*accuracy, usage, *asked_tables(results)]


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
    notes = [f"{results.measured} in percent, mean ± {DEVIATION_RULE}{_seeds(results)}. Best bold, second underlined."]
    if any(s.published for s in results.summaries.values()):
        notes.append(f"In brackets or small: the paper’s value ({results.published_in}).")
    return Table("accuracy", results.title, ("Method", *results.columns), tuple(rows), (*notes, *results.notes))


def comparison_table(results: Results) -> Table:
    """One line per cell: ours, the paper's, the paired difference with its interval, rounds to reach each level."""
    marks = {column: _marks(results.ranked(column)) for column in results.columns}
    several, published = len(results.columns) > 1, any(s.published for s in results.summaries.values())
    rows = []
    for (row, column), summary in results.summaries.items():
        line = [Cell(row), *([Cell(column)] if several else [])]
        ours = _accuracy_cell(results, summary, marks[column].get(row, ""))
        line.append(Cell(ours.text, ours.value, ours.mark, numbers=ours.numbers))
        line += [_published_cell(summary)] if published else []
        line.append(_difference_cell(summary.difference))
        line += [_reached_cell(summary.reached[level]) for level in LEVELS]
        rows.append(tuple(line))
    baselines = sorted({results.baselines[s.row] for s in results.summaries.values() if s.difference})
    against = f" to {', '.join(baselines)}" if len(baselines) == 1 else ""
    heads = [
        "Method",
        *([results.column_head] if several else []),
        results.measured,
        *(["Paper"] if published else []),
    ]
    heads += [f"Difference{against}", *(f"Rounds to {100 * level:.0f} %" for level in LEVELS)]
    notes = [
        f"Mean ± {DEVIATION_RULE}. Differences are paired by seed, in percentage points, with a 95 % t interval.",
        "Rounds: mean first evaluated round at the level or above, over seeds that reach it (how many, if not all).",
        *([f"Paper: {results.published_in}."] if published else []),
        *results.notes,
    ]
    return Table("comparison", "Every comparison", tuple(heads), tuple(rows), tuple(notes))


def usage_table(results: Results) -> Table:
    """What each selector did to the federation: who took part, and how balanced the pooled data were."""
    several = len(results.columns) > 1
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
        "Rarest group",
    )
    notes = (
        "Effective clients: exp of the entropy of shares, how many evenly used clients would be as concentrated.",
        "Rarest group: its share of the data a round trains on, mean over rounds. Rounds of pre-training are left out. "
        "Means over seeds.",
    )
    return Table("usage", "What selection did to the federation", heads, tuple(rows), notes)


def asked_tables(results: Results) -> list[Table]:
    """For each federation whose clients have names: which of them each method asked how often, and which never."""
    made = []
    for place, column in enumerate(results.columns):
        found = {row: list(at.values()) for row in results.rows if (at := results.at(row, column))}
        runs = [run for at in found.values() for run in at]
        names = runs[0].client_names if runs else []
        if not names or names == [str(k) for k in range(len(names))] or any(run.client_names != names for run in runs):
            continue
        times = {row: np.mean([run.selection.times_chosen for run in at], axis=0) for row, at in found.items()}
        order = np.argsort(-np.sum(list(times.values()), axis=0), kind="stable").tolist()
        lines = tuple(
            (Cell(names[k]), *(_times_cell(float(each[k])) for each in times.values())) for k in order[:MOST_CLIENTS]
        )
        more = f" The {MOST_CLIENTS} asked most of {len(names)}." if len(names) > MOST_CLIENTS else ""
        notes = (f"Rounds in which a client was chosen, mean over seeds; pre-training is left out.{more}",)
        title = f"Who was asked how often: {column}" if len(results.columns) > 1 else "Who was asked how often"
        name = f"asked-{place}" if len(results.columns) > 1 else "asked"
        made.append(Table(name, title, ("Client", *times), lines, notes))
    return made


def _times_cell(times: float) -> Cell:
    return Cell("never" if not times else f"{times:.1f}".removesuffix(".0"), times)


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
                "rounds_to": {f"{100 * level:.0f}": reached.rounds for level, reached in s.reached.items()},
            }
            for s in results.summaries.values()
        ],
        "missing": list(results.missing),
        "failures": dict(results.failures),
    }


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


def _reached_cell(reached: Reached) -> Cell:
    if reached.rounds is None:
        return Cell("–", numbers={"reached": 0})
    part = "" if reached.reached == reached.n else f"{reached.reached} of {reached.n}"
    return Cell(f"{reached.rounds:.0f}", reached.rounds, beside=part, numbers={"reached": reached.reached})


def _seeds(results: Results) -> str:
    numbers = sorted({s.accuracy.n for s in results.summaries.values()})
    if len(numbers) > 1:
        return f" ({numbers[0]}–{numbers[-1]} seeds)"
    return " (one seed)" if numbers == [1] else f" ({numbers[0]} seeds)"
