"""What FedDiverse's `coverage` does on gsc, gci and gai: to the choices, and to worst-group accuracy on the digits.

    python -m benchmarks.coverage             # 45 runs of about 30 s of processor time; finished ones are not run again
    python -m benchmarks.coverage --choices   # only the choices, by true triplets: nothing is trained

Writes results/coverage.json.
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from feddiverse.experiment.config import Config
from feddiverse.experiment.run import execute
from feddiverse.experiment.run_directory import run_name
from feddiverse.heterogeneity import Counts, triplet
from feddiverse.messages import Ask, Reply, Task
from feddiverse.seeding import rng
from feddiverse.server.estimation import Estimator
from feddiverse.server.selection.feddiverse import FedDiverse
from feddiverse.server.selection.statistics import statistics as statistics_of
from feddiverse.server.selection.uniform import Uniform
from feddiverse.splits import SPLITS

RESULT = Path(__file__).parent.parent / "results" / "coverage.json"
FEDERATIONS = ("gai:digits", "digits-gsc", "gci:digits")
SEEDS = (0, 1, 2)
WAYS: dict[str, dict[str, Any]] = {
    "uniform": {"selector": "uniform"},
    "feddiverse, oracle": {"selector": "feddiverse", "estimator": "oracle"},
    "feddiverse, oracle, coverage 1.5": {"selector": "feddiverse", "estimator": "oracle", "coverage": 1.5},
    "feddiverse, consensus": {"selector": "feddiverse", "estimator": "consensus"},
    "feddiverse, consensus, coverage 1.5": {"selector": "feddiverse", "estimator": "consensus", "coverage": 1.5},
}


def choices(num_rounds: int = 100) -> dict[str, Any]:
    """How evenly clients are chosen by their true triplets, and how small the smallest group of a round is."""
    found: dict[str, Any] = {}
    for name in ("gsc", "gci", "gai"):
        split = SPLITS[name]
        sizes = dict(enumerate(split.counts.sum(axis=(1, 2)).tolist()))
        for coverage in (None, 0.0, 2.0, 1.5, 1.25, 1.0):
            selector = Uniform() if coverage is None else FedDiverse(Truth(split.counts), coverage)
            chosen = [
                selector.choose(t, split.num_selected, sizes, silent, rng(0, "select", t)) for t in range(num_rounds)
            ]
            way = "uniform" if coverage is None else f"feddiverse, coverage {coverage:g}"
            found.setdefault(name, {})[way] = statistics_of(chosen, split.counts).summary()
    return found


class Truth(Estimator):
    """The true triplets, without asking anybody."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.triplets = dict(enumerate(triplet(counts)))

    def estimate(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, Any]:
        return {client: self.triplets[client] for client in clients}


def silent(task: Task, clients: Sequence[int]) -> Iterator[Reply]:
    raise AssertionError("nobody is asked here")


def compare(out: Path = Path("runs/coverage"), workers: int = 1) -> dict[str, Any]:
    """Every way on every federation with every seed; written after each run, so that an unfinished table is one too."""
    table: dict[str, Any] = {}
    for seed in SEEDS:
        for federation in FEDERATIONS:
            for way, values in WAYS.items():
                config = Config(federation=federation, seed=seed, evaluate_every=100, **values)
                result = execute(config, out / run_name(config), workers=workers)
                cell = table.setdefault(federation, {}).setdefault(
                    way, {"worst_group_accuracy": [], "effective_clients": []}
                )
                cell["worst_group_accuracy"].append(result["worst_group_accuracy"])
                cell["effective_clients"].append(result["selection"]["effective_clients"])
                cell["mean"] = statistics.mean(cell["worst_group_accuracy"])
                write(rounds=config.rounds, table=table)
    return table


def write(**parts: Any) -> None:
    """Put these parts into the result file, keeping its others."""
    there = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({**there, **parts}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/coverage"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--choices", action="store_true")
    given = parser.parse_args()
    write(choices=choices())
    if not given.choices:
        compare(given.out, given.workers)
    print(RESULT.read_text())
