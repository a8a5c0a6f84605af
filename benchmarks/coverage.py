"""What FedDiverse's `coverage` and the released `rule` do to the choices, by true triplets: nothing is trained.

    python -m benchmarks.coverage

Writes results/coverage.json. What it does to accuracy is the study `benchmarks/studies/coverage_on_digits.toml`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from feddiverse.estimation.base import Estimator
from feddiverse.experiment.truth import statistics
from feddiverse.heterogeneity import Counts, triplet
from feddiverse.messages import Ask, Reply, Task
from feddiverse.seeding import rng
from feddiverse.selection.base import Selector
from feddiverse.selection.feddiverse import FedDiverse
from feddiverse.selection.uniform import Uniform
from feddiverse.splits import SPLITS

RESULT = Path(__file__).parent.parent / "results" / "coverage.json"


def choices(num_rounds: int = 100) -> dict[str, Any]:
    """How evenly clients are chosen by their true triplets, and how small the smallest group of a round is."""
    found: dict[str, Any] = {}
    for name in ("gsc", "gci", "gai", "dist"):
        split = SPLITS[name]
        sizes = dict(enumerate(split.counts.sum(axis=(1, 2)).tolist()))
        truth = Truth(split.counts)
        selectors: dict[str, Selector] = {"uniform": Uniform()}
        selectors |= {f"feddiverse, coverage {c:g}": FedDiverse(truth, c) for c in (0.0, 2.0, 1.5, 1.25, 1.0)}
        selectors["feddiverse, released rule"] = FedDiverse(truth, rule="released")
        for way, selector in selectors.items():
            chosen = [
                selector.choose(t, split.num_selected, sizes, silent, rng(0, "select", t)) for t in range(num_rounds)
            ]
            found.setdefault(name, {})[way] = statistics(chosen, split.counts).summary()
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


if __name__ == "__main__":
    RESULT.write_text(json.dumps({"choices": choices()}, indent=1) + "\n")
    print(RESULT.read_text())
