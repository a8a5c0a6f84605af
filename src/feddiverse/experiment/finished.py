"""A finished run as plain data, without its weights: what tables, reports and other studies take from it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse import files
from feddiverse.errors import UserError
from feddiverse.experiment.config import Config, to_toml
from feddiverse.experiment.records import check_history, choices, worst_class_of
from feddiverse.experiment.run_directory import check_config, read_config, read_json, read_records
from feddiverse.experiment.truth import SelectionStatistics, statistics
from feddiverse.heterogeneity import triplet

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """What the files of a run directory say. `rounds`: the records of `rounds.jsonl`; those of a packed study
    (`experiment.packed`) stand for several rounds each."""

    name: str
    config: Config
    result: dict[str, Any]
    federation: dict[str, Any]
    rounds: list[dict[str, Any]]
    triplets: dict[str, Any]  # empty where the selector estimates nothing
    environment: dict[str, Any]

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def tested_attributes(self) -> list[str]:
        """Names of the attribute values that tests tell apart; none where those of test samples are unknown, though
        those of training samples may be known (samples that clients hold out)."""
        return self.federation["attribute_names"] if self.result["worst_group_accuracy"] is not None else []

    @property
    def yardstick(self) -> str:
        """What the worst accuracy is that of: a `group`; a `class` where the test samples' attributes are unknown."""
        return "group" if self.tested_attributes else "class"

    @property
    def worst_accuracy(self) -> float:
        """Of the worst group, or class (`yardstick`)."""
        worst = self.worst_of(self.result)
        if worst is None:
            raise ValueError("it was not evaluated")
        return worst

    def worst_of(self, record: dict[str, Any]) -> float | None:
        """The same of one round's record; None where it was not evaluated."""
        worst: float | None = record["worst_group_accuracy"]
        return worst if self.yardstick == "group" else worst_class_of(record)

    @property
    def attributes_known(self) -> bool:
        """Whether the attributes of training samples are, and with them the true triplets."""
        of_old = bool(self.federation["attribute_names"])  # from before it was written down
        return bool(self.federation.get("attributes_known", of_old))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The true interaction matrices [client, class, attribute], for looking back only."""
        return np.asarray(self.federation["counts"], dtype=np.int64)

    @property
    def client_names(self) -> list[str]:
        """What each client is called: its own name, or its number."""
        return self.federation.get("client_names") or [str(k) for k in range(len(self.counts))]

    def group_name(self, y: int, a: int) -> str:
        """Of a tested group: `5–9, red`; where nobody knows the attribute `5–9`."""
        return ", ".join([self.federation["class_names"][y], *self.tested_attributes[a : a + 1]])

    @property
    def group_names(self) -> list[str]:
        """Of the groups of `counts`, class by class. It has one column for all where only test samples are known."""
        classes, attributes = self.federation["class_names"], self.federation["attribute_names"]
        if self.counts.shape[2] != len(attributes):
            return list(classes)
        return [f"{label}, {attribute}" for label in classes for attribute in attributes]

    @cached_property
    def curve(self) -> tuple[Floats, Floats]:
        """Evaluated rounds, and the accuracy of the worst group (or class) there."""
        seen = [(r["round"], worst) for r in self.rounds if (worst := self.worst_of(r)) is not None]
        pairs = np.array(seen, dtype=np.float64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    @cached_property
    def rebalanced_curve(self) -> tuple[Floats, Floats]:
        """As `curve`, with the last layer solved anew: rounds that were evaluated so, and the end."""
        solved = [(r["round"], r["rebalanced"]) for r in self.rounds[:-1] if r.get("rebalanced")]
        solved += [(self.rounds[-1]["round"], self.rebalanced)] if self.rebalanced else []
        seen = [(number, worst) for number, record in solved if (worst := self.worst_of(record)) is not None]
        pairs = np.array(seen, dtype=np.float64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    @cached_property
    def seconds(self) -> Floats:
        """Since the start, at each evaluated round of `curve`."""
        passed = np.cumsum([r["seconds"] for r in self.rounds])
        return np.array([t for t, r in zip(passed, self.rounds, strict=True) if self.worst_of(r) is not None])

    @cached_property
    def group_curves(self) -> Floats:
        """[evaluated round, group]: the accuracy of every group of `tested_groups`."""
        seen = [r["groups"] for r in self.rounds if self.worst_of(r) is not None]
        return np.array([self._by_group(groups) for groups in seen], dtype=np.float64)

    @property
    def tested_groups(self) -> list[tuple[int, int]]:
        """(class, attribute) of the groups that have test samples."""
        return [(g["class"], g["attribute"]) for g in self.result["groups"] if g["accuracy"] is not None]

    def _by_group(self, groups: list[dict[str, Any]]) -> list[float]:
        by_key = {(g["class"], g["attribute"]): g["accuracy"] for g in groups}
        return [by_key[key] for key in self.tested_groups]

    @property
    def group_accuracies(self) -> list[float]:
        """At the end, of every group of `tested_groups`."""
        return self._by_group(self.result["groups"])

    @cached_property
    def by_estimate(self) -> "Run | None":
        """The same run with its groups as they are read off test samples whose attributes nobody knows; None where
        that was not done."""
        found = self.result.get("estimated_groups")
        if not found or self.result.get("worst_estimated_group_accuracy") is None:
            return None

        def estimated(record: dict[str, Any]) -> dict[str, Any]:
            worst, groups = record.get("worst_estimated_group_accuracy"), record.get("estimated_groups")
            rebalanced = record.get("rebalanced")
            return {
                **record, "worst_group_accuracy": worst, "groups": groups,
                "rebalanced": rebalanced and estimated(rebalanced),
            }  # fmt: skip

        names = [f"a{value}" for value in range(1 + max(group["attribute"] for group in found))]
        return replace(
            self,
            result=estimated(self.result),
            rounds=[estimated(record) for record in self.rounds],
            federation={**self.federation, "attribute_names": names},
        )

    @property
    def rebalanced(self) -> dict[str, Any] | None:
        """What `result.json` says of the model with its last layer solved anew; None where that was not done."""
        found = self.result.get("rebalanced")
        return found if found and found.get("groups") else None

    @property
    def worst_rebalanced(self) -> float | None:
        """The worst accuracy of that model."""
        return None if self.rebalanced is None else self.worst_of(self.rebalanced)

    @property
    def rebalanced_group_accuracies(self) -> list[float]:
        """Of that model, of every group of `tested_groups`."""
        assert self.rebalanced is not None
        return self._by_group(self.rebalanced["groups"])

    @cached_property
    def choices(self) -> list[list[int]]:
        """Whom the selector chose, round by round; rounds of pre-training are left out."""
        return choices(self.rounds)

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
        """[client, 3], NaN where a client was never estimated; None where nothing can be compared with the truth."""
        if not self.triplets.get("triplets") or "evaluation_only" not in self.triplets:
            return None
        estimated = np.full((len(self.counts), 3), np.nan)
        for client, values in self.triplets["triplets"].items():
            estimated[int(client)] = values
        return estimated

    def save(self, path: Path) -> None:
        """Write the run directory; the result last, so that one that is interrupted does not look finished."""
        with files.writing(path):
            path.mkdir(parents=True, exist_ok=True)
        files.write(path / "config.toml", to_toml(self.config).encode())
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in self.rounds)
        files.write(path / "rounds.jsonl", lines.encode())
        for name in ("environment", "federation", "triplets", "result"):
            if content := getattr(self, name):
                files.write_json(path / f"{name}.json", content)


def read(path: Path) -> Run:
    """The finished run in a directory."""
    config, result = read_config(path), read_json(path / "result.json")
    if result is None:
        raise UserError(f"The run in {path} is not finished: go on with 'feddiverse run --resume {path}'.")
    others = [read_json(path / f"{name}.json") or {} for name in ("federation", "triplets", "environment")]
    return checked(Run(path.name, config, result, others[0], read_records(path), others[1], others[2]), str(path))


def checked(run: Run, where: str) -> Run:
    """The run, if all that tables and figures rest on is there; else damage is told with the place it is in."""
    try:
        check_history(run.rounds, run.result)
        check_config(run.config, run.result)
        if run.worst_of(run.result) is None:
            raise UserError(f"The run in {where} had no test samples: there is no accuracy to report.")
        _ = (run.worst_accuracy, run.result["groups"], run.curve[0][-1], run.selection, run.true_triplets,
             run.estimated_triplets, run.group_names)  # fmt: skip
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{type(error).__name__} {error}"
        raise UserError(f"The run in {where} is damaged ({what}); delete it and run it again.") from error
    return run


def find(folder: Path) -> Iterator[Path]:
    """Directories of finished runs in `folder`: itself, or up to two levels below."""
    for pattern in ("result.json", "*/result.json", "*/*/result.json"):
        yield from sorted(found.parent for found in folder.glob(pattern) if (found.parent / "config.toml").exists())
