"""Run directories as `train` leaves them, made up in a moment: the report is tested against the format alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from feddiverse.data.names import split_of
from feddiverse.experiment.config import from_mapping, to_toml
from feddiverse.experiment.truth import compare
from feddiverse.heterogeneity import triplet

CLASS_NAMES, ATTRIBUTE_NAMES = ["0–4", "5–9"], ["red", "green"]


def make_run(
    path: Path,
    accuracy: float,
    seed: int = 0,
    *,
    federation: str = "digits-gsc",
    names: tuple[list[str], list[str]] = (CLASS_NAMES, ATTRIBUTE_NAMES),
    speed: float = 12.0,
    estimated: bool = False,
    client_names: list[str] | None = None,
    rebalanced: float | None = None,
    **settings: Any,
) -> Path:
    """A run whose worst-group accuracy rises towards `accuracy`, `speed` being the rounds of its time constant.

    `rebalanced`: the worst-group accuracy with the last layer solved anew.
    """
    config = from_mapping({"federation": federation, "seed": seed, "rounds": 40, "evaluate_every": 5, **settings})
    counts = split_of(federation).counts
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    (path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    rounds = [_round(t, config.rounds, accuracy, speed, counts, rng) for t in range(1, config.rounds + 1)]
    (path / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rounds), encoding="utf-8")
    _write(path / "environment.json", {"feddiverse": "0.1.0", "data": {"source": "digits", "fingerprint": "f" * 64}})
    _write(
        path / "federation.json",
        {"name": federation, "source": "digits", "split": "gsc", "counts": counts.tolist(),
         "class_names": names[0], "attribute_names": names[1], "num_test": 2800, "num_selected": 9,
         **({"client_names": client_names} if client_names else {})},
    )  # fmt: skip
    if estimated:
        truth = triplet(counts)
        guess = np.clip(truth + rng.normal(0, 0.03, truth.shape), 0, 1)
        found = compare(dict(enumerate(guess)), counts)
        _write(path / "triplets.json", {"estimator": config.estimator, "triplets": _by_id(guess),
                                        "evaluation_only": found})  # fmt: skip
    last = rounds[-1]
    _write(
        path / "result.json",
        {"worst_group_accuracy": last["worst_group_accuracy"], "accuracy": last["accuracy"], "groups": last["groups"],
         "rounds": config.rounds, "seconds": 12.5, "theta_sha256": f"{seed:064x}", "run_dir": str(path),
         **({} if rebalanced is None else {"rebalanced": _tested(rebalanced, counts)}),
         **{way: sum(r[way] for r in rounds) for way in ("bytes_down", "bytes_up")}},
    )  # fmt: skip
    return path


def _round(t: int, last: int, accuracy: float, speed: float, counts: Any, rng: np.random.Generator) -> dict[str, Any]:
    reached = accuracy if t == last else float(accuracy * (1 - 0.6 * np.exp(-t / speed)))
    seen = t % 5 == 0 or t == last
    first = t == 1
    chosen = list(range(len(counts))) if first else sorted(rng.choice(len(counts), 9, replace=False).tolist())
    return {
        "round": t, "phase": "pretraining" if first else "selected", "selected": chosen, "failed": [],
        "train_loss": 1 / t,
        **(_tested(reached, counts) if seen else dict.fromkeys(("accuracy", "worst_group_accuracy", "groups"))),
        "seconds": 0.1, "selection_seconds": 0.01,
        "bytes_down": 9 * 360_000, "bytes_up": 9 * 360_000,
        "traffic": {"train": {"messages": len(chosen), "bytes_down": 1, "bytes_up": 1, "client_seconds": 0.1}},
    }  # fmt: skip


def _tested(worst: float, counts: Any) -> dict[str, Any]:
    """Group (0, 0) is the worst, others are a little better."""
    groups = [
        {"class": y, "attribute": a, "correct": round(700 * min(1, worst + 0.02 * (y + a))), "count": 700,
         "accuracy": min(1.0, worst + 0.02 * (y + a))}
        for y in range(counts.shape[1]) for a in range(counts.shape[2])
    ]  # fmt: skip
    return {"accuracy": min(1.0, worst + 0.02), "worst_group_accuracy": worst, "groups": groups}


def make_study(
    path: Path,
    accuracies: dict[tuple[str, str], list[float]],
    rebalanced: dict[tuple[str, str], list[float]] | None = None,
    **content: Any,
) -> Path:
    """A study directory; `accuracies[row, column]` has one entry a seed, None for a run that is missing."""
    entries = []
    for (row, column), values in accuracies.items():
        for seed, value in enumerate(values):
            name = f"{column}-{row}-seed{seed}".lower().replace(" ", "-").replace("/", "-")
            entries.append({"name": name, "row": row, "column": column, "seed": seed, "settings": {}})
            if value is not None:
                diverse = "FedDiverse" in row
                make_run(path / "runs" / name, value, seed, speed=6.0 if diverse else 12.0, estimated=diverse,
                         selector="feddiverse" if diverse else "uniform",
                         rebalanced=rebalanced[row, column][seed] if rebalanced else None)  # fmt: skip
    rows = dict.fromkeys(row for row, _ in accuracies)
    study = {"name": "made-up", "title": "A made-up study", "commands": ["feddiverse study made-up"], "stands_for": {},
             "baselines": dict.fromkeys(rows, next(iter(rows))), "published_in": "Table I", "published": [],
             "runs": entries}  # fmt: skip
    path.mkdir(parents=True, exist_ok=True)
    _write(path / "study.json", {**study, **content})
    return path


def hide_attributes(study: Path) -> Path:
    """The study as if nobody knew the attributes: its groups become estimated ones, classes are what is known."""
    for run in sorted((study / "runs").iterdir()):
        federation = json.loads((run / "federation.json").read_text())
        counts = np.sum(federation["counts"], axis=2, keepdims=True).tolist()
        _write(run / "federation.json", {**federation, "counts": counts, "attribute_names": [],
                                         "attributes_known": False})  # fmt: skip
        result = json.loads((run / "result.json").read_text())
        if "rebalanced" in result:
            result["rebalanced"] = _unlabelled(result["rebalanced"])
        _write(run / "result.json", _unlabelled(result))
        records = [_unlabelled(json.loads(line)) for line in (run / "rounds.jsonl").read_text().splitlines()]
        (run / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return study


def _unlabelled(record: dict[str, Any]) -> dict[str, Any]:
    worst, groups = record["worst_group_accuracy"], record["groups"]
    classes = groups and [
        {"class": y, "attribute": 0, "correct": right, "count": 1400, "accuracy": right / 1400}
        for y in (0, 1) for right in [sum(group["correct"] for group in groups if group["class"] == y)]
    ]  # fmt: skip
    return {**record, "worst_group_accuracy": None, "groups": classes,
            "worst_class_accuracy": classes and min(each["accuracy"] for each in classes),
            "worst_estimated_group_accuracy": worst, "estimated_groups": groups}  # fmt: skip


def _by_id(triplets: Any) -> dict[str, list[float]]:
    return {str(k): row.tolist() for k, row in enumerate(triplets)}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
