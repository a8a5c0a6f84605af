"""Makes src/feddiverse/report/evidence.json, from which `feddiverse measure` says what has helped, from results/.

python -m benchmarks.evidence
"""

import json
from pathlib import Path
from typing import Any

from feddiverse.data.names import counts_of
from feddiverse.heterogeneity import METRICS, measure
from feddiverse.report.results import Results, load
from feddiverse.report.statistics import paired_difference
from feddiverse.report.verdict import IID
from feddiverse.splits import PAPER

ROOT = Path(__file__).parents[1]
FILE = ROOT / "src" / "feddiverse" / "report" / "evidence.json"
# split → the known federations that have it
FEDERATIONS = {
    "gsc": ("cmnist-gsc", "spawrious-gsc"), "gci": ("spawrious-gci",), "gai": ("spawrious-gai",),
    "dist": ("waterbirds-dist",), "4": ("spawrious-4",), "gci-100": ("spawrious-gci-100",),
}  # fmt: skip
# what was run → the folders of results/ that have it, and their splits; not those where FedDiverse had a head start
SPLITS = tuple(FEDERATIONS)
STUDIES: dict[str, dict[str, tuple[str, ...]]] = {
    "its split with digits after 100 rounds": {"grid-on-digits": SPLITS},
    "its split with CMNIST pictures after 100 rounds": {
        "grid-on-cmnist": ("gsc", "gci", "gai", "dist", "4"),
        "recipe-on-cmnist": ("gsc", "gci", "gai", "dist"),
        "copies-on-cmnist": ("4",),
    },
    "its split with composed birds after 100 rounds": {"grid-on-birds": ("dist", "gsc", "gai")},
}
# rows of a study → what the sentence calls them
METHODS = {"FedDiverse": "FedDiverse", "pow-d": "pow-d"}
RECIPE = {"Uniform random, balanced": "the recipe balanced"}
SOLVED = "its last layer solved anew"


def found(study: Results, column: str) -> dict[str, tuple[float, float | None, float | None, int]]:
    """What was tried → (difference to uniform selection as trained, low, high) in points, and over how many seeds."""
    uniform = next(iter(study.baselines.values()))
    plain = {seed: run.worst_accuracy for seed, run in study.at(uniform, column).items()}
    differences = {name: study.difference(row, uniform, column) for row, name in METHODS.items()}
    differences[SOLVED] = study.rebalancing(uniform, column)
    for row, name in RECIPE.items():
        solved = {seed: run.worst_rebalanced for seed, run in study.at(row, column).items()}
        differences[name] = paired_difference({s: worst for s, worst in solved.items() if worst is not None}, plain)
    return {
        name: (*(None if value is None else round(100 * value, 2) for value in (d.mean, d.low, d.high)), d.n)  # type: ignore[misc]
        for name, d in differences.items()
        if d is not None
    }


def collect() -> dict[str, Any]:
    """All of it, as the file has it."""
    return {"known": metrics(), "results": results()}


def metrics() -> dict[str, dict[str, float]]:
    """The six metrics of an iid federation and of the paper's seven."""
    splits = {IID: "iid():cmnist", **{name: name for name in PAPER}}
    return {
        name: {
            metric: round(float(value), 6) for metric, value in zip(METRICS, measure(counts_of(split)).six, strict=True)
        }
        for name, split in splits.items()
    }


def results() -> list[dict[str, Any]]:
    """What our studies found: a sentence for each split and what it was tried on, whatever folders that is in."""
    studies = {folder: load(ROOT / "results" / folder) for folders in STUDIES.values() for folder in folders}
    return [
        {
            "federations": list(FEDERATIONS[split]),
            "on": what,
            "against": "against uniform selection",
            "differences": {
                name: list(values) for folder in having for name, values in found(studies[folder], split).items()
            },
            "results": [f"results/{folder}" for folder in having],
        }
        for what, folders in STUDIES.items()
        for split in SPLITS
        if (having := [folder for folder, splits in folders.items() if split in splits])
    ]


def main() -> None:
    FILE.write_text(json.dumps(collect(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
