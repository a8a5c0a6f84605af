"""How every number came about: the settings all runs share, where they differ, and the command that repeats each."""

import json
import shlex
from typing import Any

from feddiverse.experiment.config import KEYS, Config
from feddiverse.report.results import Results, differing_settings, settings_of, unusual_settings
from feddiverse.report.table import Cell, Table

# Keys with an option of their own; all others are given by --set.
OPTIONS = ("federation", "selector", "aggregator", "rounds", "seed")


def command(config: Config) -> str:
    """The `feddiverse run` that repeats a run: what differs from the defaults, and the rest left to them."""
    words = ["feddiverse", "run"]
    for key in OPTIONS:
        words += [f"--{key}", str(getattr(config, key))]
    for key, value in unusual_settings(config).items():
        if key not in OPTIONS:
            words += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(words)


def settings_tables(results: Results) -> list[Table]:
    """Settings shared by all runs; and, where runs differ, by what (besides the seed)."""
    differing = differing_settings(run.config for run in results.all_runs) - {"seed"}
    first = settings_of(results.all_runs[0].config)
    shared = [(Cell(key), Cell(_shown(value))) for key, value in first.items() if key not in differing | {"seed"}]
    made = [Table("settings", "Shared by all runs", ("Setting", "Value"), tuple(shared))]
    several = len(results.columns) > 1
    if differing:
        keys = sorted(differing, key=[*KEYS, *sorted(differing - KEYS.keys())].index)
        rows = []
        for (row, column), found in results.runs.items():
            if found:
                values = settings_of(next(iter(found.values())).config)
                rows.append((Cell(row), *([Cell(column)] * several), *(Cell(_shown(values.get(key))) for key in keys)))
        made.append(
            Table("variants", "Where they differ", ("Method", *([results.column_head] * several), *keys), tuple(rows))
        )
    return made


def commands_table(results: Results) -> Table:
    """One line a run: its result, the fingerprint of its weights, the command that repeats both."""
    rows = []
    for row, column in results.summaries:
        for seed, run in sorted(results.at(row, column).items()):
            line = [Cell(row), Cell(column), Cell(str(seed), seed)]
            line.append(Cell(f"{100 * run.worst_accuracy:.2f}", 100 * run.worst_accuracy))
            line += [Cell(str(run.result.get("theta_sha256", "–"))[:12]), Cell(command(run.config))]
            rows.append(tuple(line))
    heads = ("Method", results.column_head, "Seed", f"{results.measured} (%)", "θ (SHA-256)", "Command")
    return Table("commands", "Every number", heads, tuple(rows))


def environment_table(results: Results) -> Table:
    """Versions, checkpoint and data of the first run, as its `environment.json` has them."""
    environment = results.all_runs[0].environment
    rows = tuple((Cell(key), Cell(_shown(value))) for key, value in _flat(environment))
    return Table("environment", "Where the first run was made", ("What", "Value"), rows)


def _flat(nested: dict[str, Any], above: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in nested.items():
        name = f"{above}{key}"
        pairs += _flat(value, f"{name} · ") if isinstance(value, dict) else [(name, value)]
    return pairs


def _shown(value: Any) -> str:
    return "–" if value in ("", None) else str(value)
