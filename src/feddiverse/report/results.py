"""A study's results as the report sees them: rows × columns of runs over seeds, and what the paper has there."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from feddiverse.errors import UserError
from feddiverse.experiment import finished, packed
from feddiverse.experiment.config import KEYS, PARTS, Config
from feddiverse.experiment.finished import Run
from feddiverse.experiment.records import incomplete_in_words
from feddiverse.experiment.run_directory import read_json
from feddiverse.experiment.study import by_reason, read_plan
from feddiverse.report import published
from feddiverse.report.published import Value
from feddiverse.report.statistics import (
    Difference,
    Reached,
    Spread,
    first_reached,
    paired_difference,
    spread,
    time_to_reach,
)

LEVELS = (0.80, 0.90, 0.95)
LOWER_LEVELS = (0.10, 0.20, 0.30, 0.40, 0.50, 0.60, 0.70)  # where no run reaches the first of those
Place = tuple[str, str]  # (row, column)


@dataclass(frozen=True)
class Summary:
    """One cell of the table: what its seeds say."""

    row: str
    column: str
    accuracy: Spread
    published: Value | None  # mean, sd in percent
    difference: Difference | None  # to the row's baseline in the same column, in accuracy (not percent)
    reached: Mapping[float, Reached]  # rounds to a level
    seconds: Mapping[float, Reached]  # the same in seconds


@dataclass(frozen=True)
class Results:
    """Finished runs by place and seed. `baselines` names, for a row, the row it is compared with."""

    title: str
    path: Path
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    runs: Mapping[Place, Mapping[int, Run]]
    baselines: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[Place, Value] = field(default_factory=dict)
    published_in: str = ""
    commands: tuple[str, ...] = ()  # that made all of it, in turn
    notes: tuple[str, ...] = ()
    view: str = "accuracy"  # what the tables are about: accuracy, overhead or estimators
    failures: Mapping[str, str] = field(default_factory=dict)  # run → sentence
    missing: tuple[str, ...] = ()

    def at(self, row: str, column: str) -> Mapping[int, Run]:
        """Seed → run."""
        return self.runs.get((row, column), {})

    @cached_property
    def summaries(self) -> dict[Place, Summary]:
        """Row by row, only where there are runs."""
        places = [(row, column) for row in self.rows for column in self.columns]
        return {place: self._summary(*place) for place in places if self.runs.get(place)}

    def _summary(self, row: str, column: str) -> Summary:
        here = self.at(row, column)
        baseline = self.baselines.get(row)
        return Summary(
            row=row,
            column=column,
            accuracy=spread(list(_accuracies(here).values())),
            published=self.published.get((row, column)),
            difference=None if baseline is None or baseline == row else self.difference(row, baseline, column),
            reached={level: time_to_reach([run.curve for run in here.values()], level) for level in self.levels},
            seconds={
                level: time_to_reach([(run.seconds, run.curve[1]) for run in here.values()], level)
                for level in self.levels
            },
        )

    def ranked(self, column: str) -> list[Summary]:
        """The column's cells, best mean first; equal means keep the order of rows, and those that have fewer seeds
        than others come last: a lucky first one may look best."""
        here = [s for s in self.summaries.values() if s.column == column]
        most = max((s.accuracy.n for s in here), default=0)
        return sorted(here, key=lambda s: (s.accuracy.n < most, -s.accuracy.mean))

    def difference(self, row: str, other: str, column: str) -> Difference | None:
        """By how much `row` is ahead of `other`, paired by the seeds both have; None if there are none."""
        return paired_difference(_accuracies(self.at(row, column)), _accuracies(self.at(other, column)))

    def delay(self, row: str, other: str, column: str, level: float) -> Difference | None:
        """By how many rounds `row` reaches a level later than `other` (negative: earlier), paired by seed; None where a
        seed of either never does."""
        first = {
            name: {seed: first_reached(*run.curve, level) for seed, run in self.at(name, column).items()}
            for name in (row, other)
        }
        if any(value is None for found in first.values() for value in found.values()):
            return None
        return paired_difference(first[row], first[other])  # type: ignore[arg-type]

    def rebalancing(self, row: str, column: str) -> Difference | None:
        """What solving the last layer anew changes, paired by run; None where it was not done with all of them."""
        found = self.at(row, column)
        solved = {seed: worst for seed, run in found.items() if (worst := run.worst_rebalanced) is not None}
        return paired_difference(solved, _accuracies(found)) if found and len(solved) == len(found) else None

    @cached_property
    def levels(self) -> tuple[float, ...]:
        """To which rounds and seconds are counted: the usual ones, or the three highest that any run reaches."""
        highest = max((float(run.curve[1].max()) for found in self.runs.values() for run in found.values()), default=0)
        lower = tuple(level for level in LOWER_LEVELS if level <= highest)
        return LEVELS if highest >= LEVELS[0] or not lower else lower[-3:]

    def seeds_if_fewer(self, summary: Summary) -> str:
        """`1 of 3 seeds` of a cell that has fewer than others of its column."""
        most = max(s.accuracy.n for s in self.summaries.values() if s.column == summary.column)
        return "" if summary.accuracy.n == most else f"{summary.accuracy.n} of {most} seeds"

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why runs failed → which."""
        return by_reason(self.failures)

    @property
    def column_head(self) -> str:
        """What columns are: federations, unless they are something else (optimisers, in the ablation)."""
        pairs = {(column, run.config.federation) for (_, column), at in self.runs.items() for run in at.values()}
        called = short_names(federation for _, federation in pairs)
        named = all(column in (federation, called[federation]) for column, federation in pairs)
        return "Federation" if named else "Column"

    @property
    def yardstick(self) -> str:
        """What accuracies are those of: the worst `group`; the worst `class` where no federation's groups are known."""
        return "/".join(sorted({run.yardstick for run in self.all_runs}, reverse=True)) or "group"

    @property
    def measured(self) -> str:
        """`Worst-group accuracy`."""
        return f"Worst-{self.yardstick} accuracy"

    @cached_property
    def all_runs(self) -> list[Run]:
        return [run for place in self.summaries for _, run in sorted(self.runs[place].items())]


def _accuracies(found: Mapping[int, Run]) -> dict[int, float]:
    return {seed: run.worst_accuracy for seed, run in sorted(found.items())}


def load(path: Path) -> Results:
    """Results of a study (its directory, or packed in one file), of one run directory, or of a folder of either."""
    if (path / "study.json").is_file():
        study = read_plan(path) or {}
        where = [path / "runs" / entry["name"] for entry in study["runs"]]
        runs = [finished.read(each) for each in where if (each / "result.json").is_file()]
        return _arrange_study(path, study, runs, read_json(path / "failures.json") or {})
    if not path.exists() or (path.is_file() and not path.name.endswith((".jsonl", ".jsonl.gz"))):
        raise UserError(f"{path} is not a directory; give the directory of a run or of a study.")
    kept = [packed.unpack(file) for file in packed.find(path)]
    if len(kept) == 1 and kept[0][0]:
        return _arrange_study(path, *kept[0])
    loose = [*(finished.read(each) for each in finished.find(path)), *(run for _, runs in kept for run in runs)]
    if not loose:
        raise UserError(f"{path} holds no finished run (no result.json in it or below); finish a run first.")
    return _arrange(path, loose)


def _arrange_study(
    path: Path, study: Mapping[str, Any], found: Iterable[Run], failures: Mapping[str, str] | None = None
) -> Results:
    runs = {run.name: run for run in found}
    called = short_names(entry["column"] for entry in study["runs"])
    by_place: dict[Place, dict[int, Run]] = {}
    for entry in study["runs"]:
        if entry["name"] in runs:
            by_place.setdefault((entry["row"], called[entry["column"]]), {})[entry["seed"]] = runs[entry["name"]]
    columns = tuple(called.values())
    values = _published(study, by_place)
    return Results(
        title=study["title"],
        path=path,
        rows=tuple(dict.fromkeys(entry["row"] for entry in study["runs"])),
        columns=columns,
        runs=by_place,
        baselines=study["baselines"],
        published=values,
        published_in=published.WHERE.get(study["name"], study.get("published_in", "")),
        commands=tuple(study.get("commands", ())),
        notes=(*_notes(study["stands_for"], columns, bool(values)), *_incomplete(runs.values())),
        view=study.get("view", "accuracy"),
        failures=failures or {},
        missing=tuple(entry["name"] for entry in study["runs"] if entry["name"] not in runs),
    )


def short_names(columns: Iterable[str]) -> dict[str, str]:
    """What each column is called: a table by its file's name, where that is the name of no other."""
    names = list(dict.fromkeys(columns))
    stems = {name: Path(name).stem if "table:" in name else name for name in names}
    return stems if len(set(stems.values())) == len(names) else {name: name for name in names}


def _published(study: Mapping[str, Any], runs: Mapping[Place, Mapping[int, Run]]) -> dict[Place, Value]:
    """The paper's values for the cells that have runs. Studies from before carry them; they are the same."""
    found = {(e["row"], e["column"]): (e["mean"], e["sd"]) for e in study.get("published", [])}
    for (row, column), here in runs.items():
        config = next(iter(here.values())).config
        value = published.value(study["name"], row, config, study["stands_for"].get(column, config.federation))
        if value is not None:
            found[row, column] = value
    return {place: value for place, value in found.items() if place in runs}


def _incomplete(runs: Iterable[Run]) -> tuple[str, ...]:
    """A sentence for each run that lost answers on their way."""
    told = ((run.name, incomplete_in_words(run.result.get("incomplete") or [])) for run in runs)
    return tuple(f"{name}: {words}" for name, words in told if words)


def _notes(stands_for: Mapping[str, str], columns: Iterable[str], has_published: bool) -> tuple[str, ...]:
    """Says which columns show other pictures than the paper's."""
    shown = [f"{column} has the split of {stands_for[column]}" for column in columns if column in stands_for]
    if not shown:
        return ()
    beside = "; the paper’s values beside are for its own pictures and serve for orientation" if has_published else ""
    return (f"On other pictures than the paper’s: {', '.join(shown)}{beside}.",)


def _arrange(path: Path, found: list[Run]) -> Results:
    """Loose runs as a table: federations are columns, whatever else differs between them (but the seed) names rows."""
    chosen = {"aggregator"}.union(*(unusual_settings(run.config) for run in found))
    differing = differing_settings(run.config for run in found) & chosen - {"seed"}
    called = short_names(run.config.federation for run in found)
    by_place: dict[Place, dict[int, Run]] = {}
    for run in found:
        values = settings_of(run.config)
        names = [_named(key, values.get(key)) for key in sorted(differing, key=lambda key: (key != "aggregator", key))]
        row, column = " · ".join([run.config.selector, *names]), called[run.config.federation]
        by_place.setdefault((row, column), {})[run.seed] = run
    rows = tuple(dict.fromkeys(row for row, _ in by_place))
    name = path.resolve().name  # of "." too
    uniform = next((row for row in rows if row.split(" · ")[0] == "uniform"), None)
    return Results(
        title=f"Run {name}" if len(found) == 1 else f"Runs in {name}",
        path=path,
        rows=rows,
        columns=tuple(dict.fromkeys(column for _, column in by_place)),
        runs=by_place,
        baselines={} if uniform is None else dict.fromkeys(rows, uniform),
        notes=_incomplete(found),
    )


def settings_of(config: Config) -> dict[str, Any]:
    """Every setting by the name that `--set` knows; a part's own parameters as `selector.temperature`."""
    own = {f"{part}.{name}": value for part in PARTS for name, value in config.parameters(part).items()}
    return {**{key: getattr(config, key) for key in KEYS}, **own}


def unusual_settings(config: Config) -> dict[str, Any]:
    """The settings that are not what they are by default with this federation, selector and aggregator."""
    usual = settings_of(Config(config.federation, selector=config.selector, aggregator=config.aggregator))
    return {key: value for key, value in settings_of(config).items() if value != usual.get(key)}


def differing_settings(configs: Iterable[Config]) -> set[str]:
    """The keys whose value is not the same everywhere."""
    values = [settings_of(config) for config in configs]
    keys = {key for each in values for key in each}
    return {key for key in keys if any(each.get(key) != values[0].get(key) for each in values)}


def _named(key: str, value: Any) -> str:
    return str(value) if key in {"aggregator", "estimator", "model"} else f"{key} {value}"
