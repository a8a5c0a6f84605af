"""Reads what runs left behind: one `Run` per run directory. Plain files in, plain data out."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import UserError
from feddiverse.experiment.config import Config, flat
from feddiverse.experiment.truth import SelectionStatistics, statistics
from feddiverse.heterogeneity import triplet

Floats = NDArray[np.float64]

# Keys with an option of `feddiverse run`; all others are given by --set.
OPTIONS = ("federation", "selector", "aggregator", "rounds", "seed")


@dataclass(frozen=True)
class Run:
    """A finished run. `rounds` holds one record a round, as `rounds.jsonl` has them."""

    path: Path
    config: dict[str, Any]
    result: dict[str, Any]
    federation: dict[str, Any]
    rounds: list[dict[str, Any]]
    triplets: dict[str, Any] | None
    environment: dict[str, Any]

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def worst_group_accuracy(self) -> float:
        return float(self.result["worst_group_accuracy"])

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The true interaction matrices [client, class, attribute], for looking back only."""
        return np.asarray(self.federation["counts"], dtype=np.int64)

    @cached_property
    def curve(self) -> tuple[Floats, Floats]:
        """Evaluated rounds, and the worst-group accuracy there."""
        seen = [(r["round"], r["worst_group_accuracy"]) for r in self.rounds if r["worst_group_accuracy"] is not None]
        pairs = np.array(seen, dtype=np.float64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    @cached_property
    def choices(self) -> list[list[int]]:
        """Whom the selector chose, round by round; rounds of pre-training ask everyone and are left out."""
        return [r["selected"] for r in self.rounds if r["phase"] == "selected"]

    @cached_property
    def selection(self) -> SelectionStatistics:
        """Who was chosen how often, and what data each round pooled."""
        return statistics(self.choices, self.counts)

    @property
    def pooled_shares(self) -> Floats:
        """[round, class, attribute]: each group's share of the data that was trained on in a round."""
        pooled = self.selection.pooled
        return np.asarray(pooled / np.maximum(pooled.sum(axis=(1, 2), keepdims=True), 1))

    @cached_property
    def true_triplets(self) -> Floats:
        """[client, 3]: CI, AI, SC of the true matrices."""
        return np.asarray(triplet(self.counts), dtype=np.float64)

    @cached_property
    def estimated_triplets(self) -> Floats | None:
        """[client, 3], NaN where a client was never estimated; None when the selector estimates nothing."""
        if self.triplets is None or not self.triplets.get("triplets"):
            return None
        estimated = np.full((len(self.counts), 3), np.nan)
        for client, values in self.triplets["triplets"].items():
            estimated[int(client)] = values
        return estimated


def defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config that a run with the same options would have by default; nothing if this version refuses it."""
    try:
        return Config(**{key: config[key] for key in OPTIONS}).plain()
    except UserError:
        return {}


def is_finished(path: Path) -> bool:
    """Whether a run in this directory came to its end."""
    return (path / "result.json").is_file()


def read(path: Path) -> Run:
    """The finished run in `path`."""
    try:
        config = flat(tomllib.loads((path / "config.toml").read_text("utf-8")))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path / 'config.toml'} cannot be read ({error}); is {path} a run directory?") from error
    lines = _text(path / "rounds.jsonl").splitlines()
    run = Run(
        path=path,
        config=config,
        result=read_json(path / "result.json"),
        federation=read_json(path / "federation.json"),
        rounds=[_parse(line, path / "rounds.jsonl") for line in lines if line.strip()],
        triplets=read_json(path / "triplets.json") if (path / "triplets.json").exists() else None,
        environment=read_json(path / "environment.json") if (path / "environment.json").exists() else {},
    )
    _look_through(run)
    return run


def _look_through(run: Run) -> None:
    """At all that tables and figures rest on, so that damage is told with the folder it is in."""
    try:
        _ = (run.seed, run.config["federation"], run.config["selector"], run.worst_group_accuracy,
             run.result["groups"], run.curve[0][-1], run.selection, run.true_triplets, run.estimated_triplets,
             run.federation["class_names"], run.federation["attribute_names"])  # fmt: skip
    except (KeyError, IndexError, TypeError, ValueError) as error:
        what = f"{type(error).__name__} {error}"
        raise UserError(f"The run in {run.path} is damaged ({what}); delete it and run it again.") from error


def find(folder: Path) -> Iterator[Path]:
    """Directories of finished runs in `folder`: itself, or up to two levels below."""
    for pattern in ("result.json", "*/result.json", "*/*/result.json"):
        yield from sorted(found.parent for found in folder.glob(pattern) if (found.parent / "config.toml").exists())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or a sentence that names the file."""
    return _parse(_text(path), path)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); the run directory is not complete.") from error


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON ({error}); delete that run and run it again.") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no JSON object; delete that run and run it again.")
    return value
