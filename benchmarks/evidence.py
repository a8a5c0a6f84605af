"""Makes src/feddiverse/report/evidence.json, from which `feddiverse measure` says what has helped, from results/.

python -m benchmarks.evidence
"""

import csv
import json
from pathlib import Path
from typing import Any

from feddiverse.data.names import counts_of
from feddiverse.heterogeneity import METRICS, measure
from feddiverse.report.verdict import IID
from feddiverse.splits import PAPER

ROOT = Path(__file__).parents[1]
FILE = ROOT / "src" / "feddiverse" / "report" / "evidence.json"
METHODS = ("FedDiverse", "pow-d")
GSC = ("cmnist-gsc", "spawrious-gsc")

# folder of results/, its column ("" where it has one only), what that is, the known federations with that split
SOURCES = (
    ("ten-seeds-on-digits", "", "digits-gsc after 100 rounds", GSC),
    ("table-1", "", "cmnist-gsc after 200 rounds", GSC),
    ("table-1-cmnist", "gci:cmnist", "its split with CMNIST pictures after 200 rounds", ("spawrious-gci",)),
    ("table-1-cmnist", "gai:cmnist", "its split with CMNIST pictures after 200 rounds", ("spawrious-gai",)),
    ("table-1-cmnist", "dist:cmnist", "its split with CMNIST pictures after 200 rounds", ("waterbirds-dist",)),
    ("table-1-cmnist", "4:cmnist", "its split with CMNIST pictures after 200 rounds", ("spawrious-4",)),
    ("selection-quick", "gci-100:digits", "its split with digits after 25 rounds", ("spawrious-gci-100",)),
)


def found(folder: str, column: str) -> dict[str, tuple[float, float | None, float | None, int]]:
    """Method → (difference to uniform selection, low, high) in points, and over how many seeds."""
    with (ROOT / "results" / folder / "comparison.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if not column or row["Federation"] == column]
    head = next(name for name in rows[0] if name.startswith("Difference") and not name.endswith(("low", "high")))
    return {
        row["Method"]: (
            round(float(row[head]), 2),
            *(round(float(row[f"{head} {end}"]), 2) if row[f"{head} {end}"] else None for end in ("low", "high")),
            int(row["Worst-group accuracy seeds"]),
        )
        for row in rows
        if row["Method"] in METHODS
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
    """What our studies found."""
    return [
        {
            "federations": list(federations),
            "on": what,
            "against": "against uniform selection",
            "differences": {method: list(values) for method, values in found(folder, column).items()},
            "results": f"results/{folder}",
        }
        for folder, column, what, federations in SOURCES
    ]


def main() -> None:
    FILE.write_text(json.dumps(collect(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
