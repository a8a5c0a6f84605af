"""How well estimators see a federation, and what that costs: after pre-training, beside the truth (evaluation only)."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from feddiverse import registry
from feddiverse.engine.machine import one_blas_thread
from feddiverse.errors import RunError, UserError
from feddiverse.estimation.base import estimated
from feddiverse.experiment.config import Config
from feddiverse.experiment.finished import Run
from feddiverse.experiment.opening import Opened, open_run
from feddiverse.experiment.records import total, traffic_of
from feddiverse.experiment.truth import TruthKept, compare
from feddiverse.messages import Engine, Vector
from feddiverse.selection.everyone import Everyone
from feddiverse.server.aggregation import FedAvg
from feddiverse.server.meter import EVALUATION, Meter, Traffic
from feddiverse.server.rounds import rounds

Tell = Callable[[str], None]
Comparison = dict[str, Any]
"""`r mae attribute_accuracy undefined` as `compare` gives them; a client's mean `seconds bytes_up bytes_down`."""


def of_run(run: Run) -> Comparison | None:
    """How good the triplets were that a run's selector estimated; None where it estimated none, or nobody can say."""
    if run.estimated_triplets is None:
        return None
    return {**run.triplets["evaluation_only"], **a_client(traffic_of(run.rounds), len(run.counts))}


def a_client(traffic: Traffic, num_clients: int) -> dict[str, float]:
    """What answering took besides training, for one client on average."""
    spent = total(row for kind, row in traffic.items() if kind not in ("train", EVALUATION))
    keys = {"seconds": "client_seconds", "bytes_up": "bytes_up", "bytes_down": "bytes_down"}
    return {name: spent[key] / num_clients for name, key in keys.items()}


def estimates(config: Config, names: Sequence[str], *, workers: int, device: str, tell: Tell) -> Iterator[Comparison]:
    """One comparison per estimator, all after the same `pretraining_rounds` of FedAvg with every client.

    Where nobody knows the attributes, there is no oracle, and only CI has a truth.
    """
    opened = open_run(config)
    known = opened.federation.attributes_known
    estimators = {name: opened.estimator(name) for name in names if known or name != "oracle"}
    if not estimators:
        raise UserError(f"The estimator 'oracle' tells true attributes, but nobody knows those of {config.federation}.")
    with one_blas_thread(), closing(registry.find(registry.ENGINE, "local")(opened, workers, device)) as engine:
        theta = pretrain(opened, engine, tell)
        for name, estimator in estimators.items():
            tell(name)
            truth, started = TruthKept(engine), time.perf_counter()
            meter = Meter(truth, opened.privacy)
            found = estimated(estimator, config.pretraining_rounds + 1, engine.clients, meter.with_theta(theta))
            wall = time.perf_counter() - started
            if not found:
                raise RunError(f"No client of {config.federation} answered the estimator {name}.")
            yield {
                "federation": config.federation,
                "estimator": name,
                "pretraining_rounds": config.pretraining_rounds,
                "seed": config.seed,
                **compare(found, opened.federation.counts, truth.confusion, known),
                "attributes_known": known,
                **a_client(meter.take(), len(engine.clients)),
                "wall_seconds": wall,
                "num_clients": len(found),
                "client_names": list(opened.federation.client_names),
                "warnings": [*([opened.assumption] if opened.assumption else []), *estimator.warnings],
                "triplets": {k: triplet.tolist() for k, triplet in sorted(found.items())},
            }


def pretrain(opened: Opened, engine: Engine, tell: Tell) -> Vector:
    """θ after T0 rounds of plain FedAvg with every client (paper, Sec. IV-A, step 1): the loop, and no more of it."""
    theta, t0 = opened.initial_theta(), opened.config.pretraining_rounds
    plan = replace(opened.plan, rounds=t0, pretraining_rounds=t0)
    for done in rounds(engine, Everyone(), FedAvg(), None, plan, theta):
        tell(f"pre-training round {done.round} of {t0}")
        theta = done.theta
    return theta
