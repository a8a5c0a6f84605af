"""What is told of groups that nobody labelled, and of samples that clients hold out: one table, marked as estimated."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from feddiverse.experiment.finished import Run
from feddiverse.experiment.records import FEWEST
from feddiverse.report.results import Results
from feddiverse.report.statistics import DEVIATION_RULE, paired_difference, percent, points, spread
from feddiverse.report.table import Cell, Table

Number = Callable[[Mapping[str, Any]], float | None]


def estimated_tables(results: Results) -> list[Table]:
    """At most one: a line a method, a column for each number that some run has."""
    columns: dict[str, Number] = {
        "Worst estimated group": lambda result: result.get("worst_estimated_group_accuracy"),
        "The same, rebalanced": lambda result: (result.get("rebalanced") or {}).get("worst_estimated_group_accuracy"),
        "Held out: accuracy": lambda result: _held_out(result, "accuracy"),
        "Held out: worst class": lambda result: _held_out(result, "worst_class_accuracy"),
        "Held out: worst estimated group": lambda result: _held_out(result, "worst_estimated_group_accuracy"),
        "Held out: worst client": lambda result: _held_out(result, "worst_client_accuracy"),
    }
    told = {head: number for head, number in columns.items() if any(_numbers(results.all_runs, number))}
    if not told:
        return []
    several = len(results.columns) > 1
    held_out = any(_worst_client([run]) for run in results.all_runs)
    rows = []
    for row, column in results.summaries:
        runs = results.at(row, column)
        line = [Cell(row), *([Cell(column)] if several else [])]
        for number in told.values():
            line.append(_cell(list(runs.values()), number))
        baseline = results.baselines.get(row)
        others = results.at(baseline, column) if baseline and baseline != row else {}
        line += [_difference(runs, others, next(iter(told.values())))]
        line += [Cell(_worst_client(list(runs.values())) or "–")] if held_out else []
        rows.append(tuple(line))
    heads = (
        "Method", *([results.column_head] if several else []), *told,
        f"Difference ({next(iter(told)).lower()})", *(["Which client is worst"] if held_out else []),
    )  # fmt: skip
    notes = (
        f"In percent, mean ± {DEVIATION_RULE}. Nobody labelled these groups: a class with an attribute value as the"
        " consensus estimator reads it off the samples, with the model that runs start from, so all methods of a"
        f" seed have the same. Groups and clients of fewer than {FEWEST} samples are not counted as the worst.",
        "Differences are paired by seed, in percentage points, with a 95 % t interval.",
    )
    return [Table("estimated", "Where nobody labelled the groups", heads, tuple(rows), notes)]


def _held_out(result: Mapping[str, Any], name: str) -> float | None:
    return (result.get("held_out") or {}).get(name)


def _numbers(runs: list[Run], number: Number) -> list[float]:
    return [value for run in runs if (value := number(run.result)) is not None]


def _cell(runs: list[Run], number: Number) -> Cell:
    values = _numbers(runs, number)
    if not values:
        return Cell("–")
    found = spread(values)
    return Cell(percent(found), 100 * found.mean)


def _difference(runs: Mapping[int, Run], others: Mapping[int, Run], number: Number) -> Cell:
    mine, theirs = (
        {seed: value for seed, run in sorted(found.items()) if (value := number(run.result)) is not None}
        for found in (runs, others)
    )
    found = paired_difference(mine, theirs)
    if found is None:
        return Cell("–")
    return Cell(points(found), 100 * found.mean)


def _worst_client(runs: list[Run]) -> str:
    """By name, the one that is worst for most seeds."""
    found = [run.result.get("held_out") or {} for run in runs]
    names = Counter(
        run.client_names[each["worst_client"]]
        for run, each in zip(runs, found, strict=True)
        if each.get("worst_client") is not None
    )
    return names.most_common(1)[0][0] if names else ""
