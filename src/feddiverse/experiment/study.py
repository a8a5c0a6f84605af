"""A study: a grid of runs in one directory, made in any number of sittings, each run by `execute`.

The directory holds `study.json` (the grid, written first), `runs/<name>/` per run, and `failures.json`. Nothing else is
remembered: what is done is what has a result, so a study killed at any moment goes on where it was.
"""

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from feddiverse.errors import UserError
from feddiverse.experiment import files
from feddiverse.experiment.config import Config, from_mapping
from feddiverse.experiment.published import Value
from feddiverse.experiment.run_directory import read_config


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
        return re.sub(r"[^a-z0-9.=^]+", "-", text.replace("’", "")).strip("-")

    @property
    def config(self) -> Config:
        return from_mapping({**self.settings, "seed": self.seed}, f"the study's run '{self.name}'")


@dataclass(frozen=True)
class Study:
    """A grid with what is needed to present it: baselines by row, published values by place."""

    name: str
    title: str
    runs: tuple[Planned, ...]
    baselines: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[tuple[str, str], Value] = field(default_factory=dict)
    published_in: str = ""
    stands_for: Mapping[str, str] = field(default_factory=dict)  # column → the paper's federation, on other pictures
    view: str = "accuracy"  # what its table is about: accuracy, overhead or estimators

    def only(self, rows: Iterable[str] = (), columns: Iterable[str] = ()) -> "Study":
        """The part of the grid whose rows and columns are named; a name is matched loosely, an unknown one refused."""
        kept = _named(rows, [run.row for run in self.runs], "method")
        wanted = _named(columns, [run.column for run in self.runs], "federation")
        return replace(self, runs=tuple(run for run in self.runs if run.row in kept and run.column in wanted))

    def with_settings(self, settings: Mapping[str, Any]) -> "Study":
        """The same grid with these settings in every run, whatever it had before."""
        return replace(self, runs=tuple(replace(run, settings={**run.settings, **settings}) for run in self.runs))


def _named(asked: Iterable[str], known: Iterable[str], what: str) -> set[str]:
    names = list(dict.fromkeys(known))
    asked = list(asked)
    if not asked:
        return set(names)
    found = {name: _loose(name) for name in names}
    chosen = set()
    for each in asked:
        matching = {name for name, loose in found.items() if loose == _loose(each)}
        if not matching:
            raise UserError(f"The study has no {what} '{each}'; it has: {', '.join(names)}.")
        chosen |= matching
    return chosen


def _loose(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())


class StudyDirectory:
    """Where a study lives."""

    def __init__(self, path: Path):
        self.path = path

    def run_path(self, run: Planned) -> Path:
        return self.path / "runs" / run.name

    def is_done(self, run: Planned) -> bool:
        return (self.run_path(run) / "result.json").is_file()

    def plan(self, study: Study, command: str) -> Study:
        """Write `study.json`: this grid, joined to what an earlier call planned here (more seeds, more columns).

        The same run with other settings would mix two studies in one table, and is refused.
        """
        earlier = self._read()
        if earlier is not None and earlier["name"] != study.name:
            raise UserError(f"{self.path} holds the study '{earlier['name']}'; choose another folder with --out.")
        before = [] if earlier is None else [_planned(entry) for entry in earlier["runs"]]
        known = {run.name: run for run in before}
        for run in study.runs:
            same = known.get(run.name)
            if same is not None and same.config != run.config:
                raise UserError(
                    f"{self.path} already has '{run.name}' with other settings; choose another folder with --out."
                )
        joined = replace(study, runs=_joined(before, list(study.runs)))
        published = (
            {} if earlier is None else {(e["row"], e["column"]): (e["mean"], e["sd"]) for e in earlier["published"]}
        )
        content = {
            "name": study.name,
            "title": study.title,
            "command": command,
            "view": study.view,
            "stands_for": {**(earlier or {"stands_for": {}})["stands_for"], **study.stands_for},
            "baselines": {**(earlier or {"baselines": {}})["baselines"], **study.baselines},
            "published_in": study.published_in,
            "published": [
                {"row": row, "column": column, "mean": mean, "sd": sd}
                for (row, column), (mean, sd) in {**published, **study.published}.items()
            ],
            "runs": [{"name": run.name, **asdict(run)} for run in joined.runs],
        }
        with files.telling(self.path):
            (self.path / "runs").mkdir(parents=True, exist_ok=True)
        files.write(self.path / "study.json", json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")
        return study

    def _read(self) -> dict[str, Any] | None:
        path = self.path / "study.json"
        try:
            content: dict[str, Any] = json.loads(path.read_bytes())
        except FileNotFoundError:
            if self.path.is_dir() and any(self.path.iterdir()):
                raise UserError(f"{self.path} is not empty and no study; choose another folder with --out.") from None
            return None
        except ValueError as error:
            raise UserError(f"{path} is damaged ({error}); remove it and give the command again.") from error
        return content

    def record_failures(self, failures: Mapping[str, str]) -> None:
        """`failures.json`: why runs failed the last time; gone when none did."""
        path = self.path / "failures.json"
        if failures:
            files.write(path, json.dumps(dict(failures), indent=1, ensure_ascii=False).encode() + b"\n")
        else:
            path.unlink(missing_ok=True)

    def reuse(self, run: Planned, elsewhere: Iterable[Path]) -> bool:
        """Take over a finished run of the very same config from another study: it would give the same bits."""
        config = run.config
        for folder in elsewhere:
            for result in sorted(folder.glob("runs/*/result.json")):
                with contextlib.suppress(UserError):
                    if read_config(result.parent) == config:
                        copy_run(result.parent, self.run_path(run))
                        return True
        return False


def copy_run(source: Path, target: Path) -> None:
    """A finished run without its checkpoint, the result last: a copy that is interrupted does not look finished."""
    with files.telling(target):
        shutil.copytree(source, target, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("checkpoint*", ".lock", "result.json"))  # fmt: skip
    files.write(target / "result.json", (source / "result.json").read_bytes())


def _planned(entry: Mapping[str, Any]) -> Planned:
    return Planned(entry["row"], entry["column"], entry["seed"], entry["settings"])


def _joined(before: list[Planned], now: list[Planned]) -> tuple[Planned, ...]:
    """Both grids as one, in the order of the larger, so that a table's rows do not jump when a study grows."""
    first, second = (before, now) if len(before) >= len(now) else (now, before)
    return tuple({run.name: run for run in [*first, *second]}.values())


Perform = Callable[[Planned, Path], None]
"""Makes one run in its directory; raises when it cannot."""


def carry_out(study: Study, directory: StudyDirectory, perform: Perform) -> Iterator[tuple[Planned, str | None]]:
    """Make every run that is not done, one after the other; yield each with why it failed, or None.

    A run that fails does not keep the others from being made. What is done already is not yielded.
    """
    failures: dict[str, str] = {}
    for run in study.runs:
        if directory.is_done(run):
            continue
        try:
            perform(run, directory.run_path(run))
            why = None
        except Exception as error:  # whatever a run dies of, the study goes on
            why = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            failures[run.name] = why
        yield run, why
    directory.record_failures(failures)
