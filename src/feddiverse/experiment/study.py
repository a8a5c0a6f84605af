"""A study: a grid of runs in one directory, made in any number of sittings, each run by `train`.

The directory holds `study.json` (the grid, written first), `runs/<name>/` per run, and `failures.json`. Nothing else is
remembered: what is done is what has a result, so a study killed at any moment goes on where it was.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from feddiverse import files
from feddiverse.errors import UserError
from feddiverse.experiment import packed
from feddiverse.experiment.config import Config, from_mapping
from feddiverse.experiment.finished import Run, read
from feddiverse.experiment.run_directory import read_json
from feddiverse.experiment.side_by_side import Perform, Watch, outcome, side_by_side


@dataclass(frozen=True)
class Planned:
    """One run of the grid: its place in the table, its seed, its settings."""

    row: str
    column: str
    seed: int
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The run directory's name, readable in a listing."""
        text = f"{self.column} {self.row} seed{self.seed}".lower()
        return re.sub(r"(?:[^\w.=^]|_)+", "-", text.replace("’", "")).strip("-.")

    @property
    def config(self) -> Config:
        """Its settings, in which `{seed}` stands for the seed: each seed may have pictures of its own."""
        own = {
            key: value.replace("{seed}", str(self.seed)) if isinstance(value, str) else value
            for key, value in self.settings.items()
        }
        return from_mapping({**own, "seed": self.seed}, f"the study's run '{self.name}'")


@dataclass(frozen=True)
class Study:
    """A grid with what is needed to present it."""

    name: str
    title: str
    runs: tuple[Planned, ...]
    baselines: Mapping[str, str] = field(default_factory=dict)  # row → the row it is compared with
    stands_for: Mapping[str, str] = field(default_factory=dict)  # column → the paper's federation, on other pictures
    view: str = "accuracy"  # what its table is about: accuracy, overhead or estimators

    def __post_init__(self) -> None:
        by_name: dict[str, Planned] = {}
        for run in self.runs:
            other = by_name.setdefault(run.name, run)
            if other is not run:  # else one method's result would stand for another's
                raise UserError(
                    f"'{other.row}' on '{other.column}' and '{run.row}' on '{run.column}' would share the folder "
                    f"'{run.name}'; give them names that differ in letters or digits."
                )

    def only(self, rows: str = "", columns: str = "") -> "Study":
        """The part of the grid whose rows and columns are named, separated by commas; empty: all."""
        kept = _named(rows, [run.row for run in self.runs], "method")
        wanted = _named(columns, [run.column for run in self.runs], "federation")
        return replace(self, runs=tuple(run for run in self.runs if run.row in kept and run.column in wanted))

    def with_settings(self, settings: Mapping[str, Any]) -> "Study":
        """The same grid with these settings in every run; not those that its rows, columns and seeds are about."""
        for key in settings:
            if key == "seed":
                raise UserError("A study's seeds are given by --seeds, not by --set seed=….")
            if key == "federation" or len({repr(run.settings[key]) for run in self.runs if key in run.settings}) > 1:
                raise UserError(f"'--set {key}=…' would undo what the study compares: its rows or columns set it.")
        return replace(self, runs=tuple(replace(run, settings={**run.settings, **settings}) for run in self.runs))


def _named(asked: str, known: Iterable[str], what: str) -> set[str]:
    """The known names in `asked`, matched loosely. A name may hold commas itself, so the longest that fits is taken."""
    names = list(dict.fromkeys(known))
    words = [word for word in asked.split(",") if word.strip()]
    chosen: set[str] = set()
    while words:
        for end in range(len(words), 0, -1):
            matching = {name for name in names if _loose(name) == _loose("".join(words[:end]))}
            if matching:
                break
        else:
            listed = ", ".join(f"'{name}'" for name in names)
            raise UserError(f"The study has no {what} '{words[0].strip()}'; it has: {listed}.")
        chosen |= matching
        words = words[end:]
    return chosen or set(names)


def _loose(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


class StudyDirectory:
    """Where a study lives."""

    def __init__(self, path: Path):
        self.path = path

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """For this process alone: two would make the same runs."""
        lock = files.take_lock(self.path, "study")
        try:
            yield
        finally:
            lock.release()

    def run_path(self, run: Planned) -> Path:
        return self.path / "runs" / run.name

    def is_done(self, run: Planned) -> bool:
        return (self.run_path(run) / "result.json").is_file()

    def refuse_to_mix(self, study: Study) -> dict[str, Any]:
        """What `study.json` says, if it is there; runs made with other settings would mix two studies in one table."""
        if self.path.is_file():
            raise UserError(f"{self.path} is a file; choose another folder with --out.")
        files.check_name(self.path)
        earlier = read_plan(self.path)
        if earlier is None:
            if self.path.is_dir() and any(entry.name != files.LOCK for entry in self.path.iterdir()):
                raise UserError(f"{self.path} is not empty and no study; choose another folder with --out.")
            return {}
        if earlier["name"] != study.name:
            raise UserError(f"{self.path} holds the study '{earlier['name']}'; choose another folder with --out.")
        known = {run.name: run for run in map(_planned, earlier["runs"]) if self.run_path(run).exists()}
        for run in study.runs:
            if run.name in known and known[run.name].config != run.config:
                raise UserError(
                    f"{self.path} already has '{run.name}' with other settings; choose another folder with --out."
                )
        return earlier

    def plan(self, study: Study, command: str) -> None:
        """Write `study.json`: this grid, joined to what an earlier call planned here (more seeds, more columns)."""
        earlier = self.refuse_to_mix(study)
        runs = _joined([_planned(entry) for entry in earlier.get("runs", [])], list(study.runs))
        content = {
            "name": study.name,
            "title": study.title,
            "commands": list(dict.fromkeys([*earlier.get("commands", []), command])),
            "view": study.view,
            "stands_for": {**earlier.get("stands_for", {}), **study.stands_for},
            "baselines": {**earlier.get("baselines", {}), **study.baselines},
            "runs": [{"name": run.name, **asdict(run)} for run in runs],
        }
        with files.writing(self.path):
            (self.path / "runs").mkdir(parents=True, exist_ok=True)
        files.write_json(self.path / "study.json", content)

    def record_failures(self, failures: Mapping[str, str]) -> None:
        """`failures.json`: why runs failed the last time; gone when none did."""
        path = self.path / "failures.json"
        if failures:
            files.write_json(path, failures)
        else:
            path.unlink(missing_ok=True)


def by_reason(failures: Mapping[str, str]) -> dict[str, str]:
    """Each reason once → whom it met: `a run`, or `a run and 3 more`."""
    met: dict[str, list[str]] = {}
    for name, why in failures.items():
        met.setdefault(why, []).append(name)
    return {why: names[0] + (f" and {len(names) - 1} more" if names[1:] else "") for why, names in met.items()}


def read_plan(path: Path) -> dict[str, Any] | None:
    """What `study.json` in this folder says, if it is there and whole."""
    file = path / "study.json"
    content = read_json(file)
    if content is None:
        return None
    kinds = {"name": str, "title": str, "runs": list, "baselines": dict, "stands_for": dict}
    wrong = [key for key, kind in kinds.items() if not isinstance(content.get(key), kind)]
    for entry in [] if "runs" in wrong else content["runs"]:
        of_run = {"name": str, "row": str, "column": str, "seed": int, "settings": dict}
        if (
            not isinstance(entry, dict)
            or any(not isinstance(entry.get(key), kind) for key, kind in of_run.items())
            or "/" in entry["name"]
        ):
            wrong.append("runs")
            break
    if wrong:
        raise UserError(f"{file} is damaged (its '{wrong[0]}' cannot be read); choose another folder with --out.")
    return content


def finished_runs(studies: Iterable[Path]) -> dict[Config, Run]:
    """Finished runs of study directories and packed studies, by their effective configs."""
    found: dict[Config, Run] = {}
    for path in studies:
        here = [run for file in packed.find(path) for run in packed.unpack(file)[1]]
        if not here and not (path / "runs").is_dir():
            raise UserError(f"{path} is no study to take runs from: it has neither a folder 'runs' nor {packed.NAME}.")
        for result in sorted(path.glob("runs/*/result.json")):
            with contextlib.suppress(UserError):  # damaged: it is made anew
                here.append(read(result.parent))
        for run in here:
            found.setdefault(run.config.effective, run)
    return found


def _planned(entry: Mapping[str, Any]) -> Planned:
    return Planned(entry["row"], entry["column"], entry["seed"], entry["settings"])


def _joined(before: list[Planned], now: list[Planned]) -> tuple[Planned, ...]:
    """Both grids as one, in the order of the larger, so that a table's rows do not jump when a study grows."""
    larger = before if len(before) >= len(now) else now
    order = dict.fromkeys(run.name for run in [*larger, *before, *now])
    newest = {run.name: run for run in [*before, *now]}
    return tuple(newest[name] for name in order)


def carry_out(
    study: Study, directory: StudyDirectory, perform: Perform, watch: Callable[[Planned], Watch], at_once: int = 1
) -> Iterator[tuple[Planned, str | None]]:
    """Make every run that is not done; yield each with why it failed, or None. `watch(run)` is told of its rounds.

    A run that fails does not keep the others from being made. What is done already is not yielded.
    """
    failures: dict[str, str] = {}
    runs = [(run, directory.run_path(run)) for run in study.runs if not directory.is_done(run)]
    one_by_one = ((run, outcome(perform, run, path, watch(run))) for run, path in runs)
    for run, why in one_by_one if at_once == 1 else side_by_side(runs, perform, watch, at_once):
        if why is not None:
            failures[run.name] = why
        yield run, why
    directory.record_failures(failures)
