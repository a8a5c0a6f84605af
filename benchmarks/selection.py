"""What it takes to choose 1,000 of 1,000,000 clients, by FedDiverse's rule and by the others that need no training.

FedDiverse is timed as written (a scan of all clients for every pick), in its first round (which lays out the pool) and
in later rounds (which use it), for triplets that are spread, sparse (half of all values zero) or of only 25 kinds; the
choices must be the same. Processor time of one thread: what an idle machine's clock would show.

    python -m benchmarks.selection
"""

import json
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse import registry
from feddiverse.estimation.base import Estimator
from feddiverse.messages import Ask
from feddiverse.seeding import rng
from feddiverse.selection.feddiverse import FedDiverse
from feddiverse.selection.feddiverse_pool import arrange
from feddiverse.selection.feddiverse_rule import choose_as_written

RESULT = Path(__file__).parent / "results" / "selection.json"
NUM_CLIENTS, NUM_SELECTED, TURNS = 1_000_000, 1000, 3
Floats = NDArray[np.float64]


class Told(Estimator):
    """Triplets that are known already: only the choice is timed."""

    def __init__(self, triplets: Floats) -> None:
        super().__init__()
        self.triplets = triplets

    def estimate(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, Floats]:
        return dict(enumerate(self.triplets))


def triplets_of(kind: str, num_clients: int) -> Floats:
    """Arranged, so that positions are ids and the rule as written meets clients in the pool's order."""
    dice = np.random.default_rng(0)
    triplets = dice.beta(0.5, 2.0, (num_clients, 3))
    if kind == "sparse":
        triplets *= dice.random((num_clients, 3)) < 0.5
    if kind == "25 kinds":
        triplets = triplets[dice.integers(0, 25, num_clients)]
    return triplets[arrange(triplets)]


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def silent(task: Any, clients: Any) -> Any:
    raise AssertionError("nobody is asked in this benchmark")


def feddiverse(kind: str, num_clients: int, k: int) -> dict[str, Any]:
    triplets = triplets_of(kind, num_clients)
    clients = dict.fromkeys(range(num_clients), 100)
    selector = FedDiverse(Told(triplets))
    selector._learn(0, clients, silent)  # what estimating costs is not the question here
    rounds = [
        seconds(lambda t=t: selector.choose(t, k, clients, silent, rng(0, "select", t))) for t in range(1, 2 + TURNS)
    ]
    (first, chosen), *others = rounds
    later = [spent for spent, _ in others]
    as_written, expected = seconds(lambda: choose_as_written(triplets, k, rng(0, "select", 1)))
    assert chosen == expected, "the pool must choose as the rule does"
    return {
        "first_round_s": round(first, 3),
        "later_rounds_s": [round(s, 3) for s in later],
        "as_written_s": round(as_written, 3),
        "ratio": round(as_written / min(later), 1),
    }


def other(name: str, num_clients: int, k: int) -> float:
    selector = registry.make(registry.SELECTOR, name, {"seed": 0})
    clients = dict.fromkeys(range(num_clients), 100)
    return round(seconds(lambda: selector.choose(1, k, clients, silent, rng(0, "select", 1)))[0], 3)


def run(num_clients: int = NUM_CLIENTS, k: int = NUM_SELECTED) -> dict[str, Any]:
    """All figures, also written to benchmarks/results/selection.json."""
    result = {
        "num_clients": num_clients,
        "num_selected": k,
        "machine": platform.machine(),
        "feddiverse": {kind: feddiverse(kind, num_clients, k) for kind in ("spread", "sparse", "25 kinds")},
        "others_s": {name: other(name, num_clients, k) for name in ("uniform", "round_robin", "fedpns")},
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return result


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
