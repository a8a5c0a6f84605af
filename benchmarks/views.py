"""What copies of pictures do to a head solved anew: `python -m benchmarks.views dist:cmnist --seed 21`.

Worst-group accuracy on the test set, a row for every number of copies, a column for every penalty: how much is to be
won if the penalty were chosen well, and lost if it were not. Of the model that a run starts from, or of a finished run.
"""

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

import feddiverse as fd
from feddiverse.engine.local import LocalEngine
from feddiverse.engine.machine import one_blas_thread
from feddiverse.estimation.balance import PENALTIES, BalancedSums, group_weights
from feddiverse.experiment.config import from_mapping
from feddiverse.experiment.opening import Opened, open_run
from feddiverse.messages import GroupSums, Vector
from feddiverse.server.groups import accuracies
from feddiverse.server.meter import Meter

COPIES = (0, 1, 2, 4)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.views", description=__doc__.splitlines()[0])
    parser.add_argument("federation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, help="a finished run of the same federation and seed")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--image-size", type=int, default=0)
    given = vars(parser.parse_args())
    run = given.pop("run")
    opened = open_run(from_mapping({**given, "recipe": "balanced"}))
    theta = opened.initial_theta() if run is None else fd.load_run(run).theta
    print("| copies |", " | ".join(f"{penalty:g}" for penalty in PENALTIES), "|")
    for copies, row in worst_groups(opened, theta).items():
        print(f"| {copies} |", " | ".join(f"{100 * worst:.1f}" for worst in row), "|", flush=True)


def worst_groups(opened: Opened, theta: Vector) -> dict[int, list[float]]:
    """Copies → the worst group's accuracy for each penalty. Groups are read with the model of the start."""
    balancer, head, config = opened.balancer(), opened.head(), opened.config
    assert balancer is not None
    changes: dict[str, Any] = {key: getattr(config, key) for key in ("flip", "crop_padding", "padding")}
    found = {}
    with one_blas_thread(), closing(LocalEngine(opened.federation, opened.spec)) as engine:
        meter = Meter(engine)
        balancer.learn(1, meter.clients, meter.with_theta(opened.initial_theta()))
        matrices = balancer.estimator.matrices or {}
        for copies in COPIES:
            task = GroupSums(
                config.seed, 1, config.rebalance_dimensions,
                weights=group_weights(matrices.values()), confidence=balancer.confidence, views=copies, **changes,
            )  # fmt: skip
            total = sum(reply.numbers.astype(np.float64) for reply in meter.ask(task, theta, sorted(matrices)))
            sums = BalancedSums.unpacked(np.asarray(total), head.num_classes, head.dimensions)
            solved = [head.written_into(theta, *pair) for pair in sums.heads()]
            tested = [accuracies(np.asarray(engine.evaluate(changed))) for changed in solved]
            found[copies] = [each.worst_group_accuracy for each in tested]
    return found


if __name__ == "__main__":
    main()
