"""How well estimators see a federation: pre-train, let each estimate, compare with the truth (evaluation only)."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from feddiverse.errors import RunError
from feddiverse.experiment import environment
from feddiverse.experiment.config import Config, settings
from feddiverse.messages import Engine, Train, Vector
from feddiverse.server import aggregation, estimation, quality
from feddiverse.server.meter import Meter

Tell = Callable[[str], None]


def estimates(
    config: Config, names: Sequence[str], *, workers: int, device: str, tell: Tell
) -> Iterator[dict[str, Any]]:
    """One comparison per estimator, all after the same `pretraining_rounds` of FedAvg with every client."""
    from feddiverse.data import load_federation
    from feddiverse.engine.local import LocalEngine
    from feddiverse.models import ModelSpec, initial_theta

    weights = environment.starting_weights(config)
    federation = load_federation(
        config.federation,
        config.seed,
        image_size=config.image_size or None,
        data_dir=Path(config.data_dir).expanduser() if config.data_dir else None,
    )
    known = settings(config, federation.num_classes, federation.num_attributes, federation.num_selected)
    estimators = {name: estimation.build(name, known) for name in names}
    source = federation.source
    spec = ModelSpec(config.model, federation.num_classes, source.shape, source.mean, source.std)
    theta = initial_theta(spec, config.seed, weights)
    with LocalEngine(federation, spec, workers=workers, device=device) as engine:
        theta = pretrain(config, engine, theta, tell)
        for name, estimator in estimators.items():
            tell(name)
            meter, started = Meter(engine), time.perf_counter()
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
                **quality.compare(found, federation.counts, estimator.confusion),
                "seconds": per_client["client_seconds"],
                "bytes_up": per_client["bytes_up"],
                "bytes_down": per_client["bytes_down"],
                "wall_seconds": wall,
                "num_clients": len(found),
                "warnings": estimator.warnings,
                "triplets": {k: triplet.tolist() for k, triplet in sorted(found.items())},
            }


def pretrain(config: Config, engine: Engine, theta: Vector, tell: Tell) -> Vector:
    """T0 rounds of plain FedAvg with every client (paper, Sec. IV-A, step 1)."""
    task = Train(config.seed, 0, config.epochs, config.batch_size, config.lr, config.momentum, config.weight_decay)
    average = aggregation.build("fedavg", {"weighting": "equal"})
    for round in range(1, config.pretraining_rounds + 1):
        tell(f"pre-training round {round} of {config.pretraining_rounds}")
        ask = Meter(engine).with_theta(theta)
        trained = estimation.answers(replace(task, round=round), engine.clients, ask, length=theta.size)
        theta = average.step(theta, trained)
    return theta
