"""How well estimators see a federation: pre-train, let each estimate, compare with the truth (evaluation only)."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from feddiverse import registry
from feddiverse.errors import RunError
from feddiverse.experiment.config import Config
from feddiverse.experiment.opening import Opened, open_run
from feddiverse.experiment.truth import TruthKept, compare
from feddiverse.messages import Engine, Vector
from feddiverse.selection.base import Selector
from feddiverse.server.aggregation import FedAvg
from feddiverse.server.meter import Meter
from feddiverse.server.rounds import rounds

Tell = Callable[[str], None]


def estimates(
    config: Config, names: Sequence[str], *, workers: int, device: str, tell: Tell
) -> Iterator[dict[str, Any]]:
    """One comparison per estimator, all after the same `pretraining_rounds` of FedAvg with every client."""
    opened = open_run(config)
    estimators = {name: opened.estimator(name) for name in names}
    engine = registry.find(registry.ENGINE, "local")(opened, workers, device)
    try:
        theta = pretrain(opened, engine, tell)
        for name, estimator in estimators.items():
            tell(name)
            truth, started = TruthKept(engine), time.perf_counter()
            meter = Meter(truth)
            found = estimator.estimate(config.pretraining_rounds + 1, engine.clients, meter.with_theta(theta))
            wall = time.perf_counter() - started
            if not found:
                raise RunError(f"No client of {config.federation} answered the estimator {name}.")
            traffic = meter.take().values()
            per_client = {
                key: sum(row[key] for row in traffic) / len(engine.clients)
                for key in ("bytes_up", "bytes_down", "client_seconds")
            }
            yield {
                "federation": config.federation,
                "estimator": name,
                "pretraining_rounds": config.pretraining_rounds,
                "seed": config.seed,
                **compare(found, opened.federation.counts, truth.confusion),
                "seconds": per_client["client_seconds"],
                "bytes_up": per_client["bytes_up"],
                "bytes_down": per_client["bytes_down"],
                "wall_seconds": wall,
                "num_clients": len(found),
                "warnings": estimator.warnings,
                "triplets": {k: triplet.tolist() for k, triplet in sorted(found.items())},
            }
    finally:
        engine.close()


def pretrain(opened: Opened, engine: Engine, tell: Tell) -> Vector:
    """θ after T0 rounds of plain FedAvg with every client (paper, Sec. IV-A, step 1): the loop, and no more of it."""
    theta, t0 = opened.initial_theta(), opened.config.pretraining_rounds
    plan = replace(opened.plan, rounds=t0, pretraining_rounds=t0)
    for done in rounds(engine, Selector(), FedAvg(), None, plan, theta):
        tell(f"pre-training round {done.round} of {t0}")
        theta = done.theta
    return theta
