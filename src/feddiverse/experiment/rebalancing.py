"""The last layer solved anew, hidden groups equal: at the end of a run, or of one that was finished long ago."""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from feddiverse import registry
from feddiverse.data.federation import Federation
from feddiverse.errors import UserError
from feddiverse.estimation.balancer import Balancer, Head
from feddiverse.experiment import environment
from feddiverse.experiment.config import from_mapping
from feddiverse.experiment.opening import Objects, open_run
from feddiverse.experiment.records import tested
from feddiverse.experiment.result import Result, digest
from feddiverse.experiment.run_directory import RunDirectory, read_config
from feddiverse.experiment.truth import TruthKept
from feddiverse.messages import Vector
from feddiverse.server.groups import accuracies
from feddiverse.server.meter import Meter
from feddiverse.server.rounds import Evaluate

KEYS = ("rebalance_weights", "rebalance_head", "rebalance_reading", "rebalance_dimensions")
"""Settings that say how, and may differ from those the run was trained with."""


@dataclass(frozen=True)
class Rebalanced:
    """θ with its last layer solved anew; what `result.json` says of it; what a reader should know."""

    theta: Vector
    about: dict[str, Any]
    warnings: list[str]


def solve(
    balancer: Balancer, meter: Meter, round: int, theta: Vector, head: Head, evaluate: Evaluate | None, known: bool
) -> Rebalanced:
    """Ask, solve, evaluate, count. `known`: whether the attributes of test samples are. May raise `CannotBalance`."""
    started = time.perf_counter()
    changed, settings = balancer.solve(round, theta, head, meter.clients, meter.with_theta)
    solved = time.perf_counter() - started
    found = accuracies(evaluate(changed), known) if evaluate else None
    warnings, traffic = [*meter.warnings(), *balancer.warnings()], meter.take()
    about = {
        **(tested(found) or dict.fromkeys(("accuracy", "worst_class_accuracy", "worst_group_accuracy", "groups"))),
        "theta_sha256": digest(changed),
        "bytes_up": sum(row["bytes_up"] for row in traffic.values()),
        "bytes_down": sum(row["bytes_down"] for row in traffic.values()),
        "seconds": solved,
        "traffic": traffic,
        "settings": settings,
    }
    return Rebalanced(changed, about, warnings)


def rebalance(
    run: str | Path,
    *,
    federation: Federation | None = None,
    model: Any = None,
    engine: str | Callable[..., Any] = "local",
    workers: int = 0,
    device: str = "auto",
    **settings: Any,
) -> Result:
    """Solve the last layer of a finished run anew, every hidden group of equal weight, and keep it beside the trained.

    `settings`: `rebalance_reading` (`start`: the hidden groups are read with the model the run started from; `final`:
    with its last), `rebalance_weights`, `rebalance_head`, `rebalance_dimensions`. `federation` and `model` are needed
    where the run was trained on arrays, or with a model that cannot be imported by its name.

    >>> import tempfile
    >>> import feddiverse as fd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trained = fd.train("digits-gsc", rounds=1, num_selected=2, workers=1, out=f"{folder}/run")
    ...     better = fd.rebalance(f"{folder}/run", rebalance_dimensions=64, workers=1)
    >>> better.rebalanced["settings"]["clients"], better.worst_group_accuracy == trained.worst_group_accuracy
    (24, True)
    """
    path = Path(run).expanduser()
    if unknown := [key for key in settings if key not in KEYS]:
        raise UserError(f"Rebalancing a finished run has no setting '{unknown[0]}'; it has {', '.join(KEYS)}.")
    there, before = read_config(path), Result.read(path)
    config = from_mapping({**there.plain(), "rebalance": True, **settings}, "the settings of rebalance")
    objects = Objects(federation, model)
    opener = engine if callable(engine) else registry.find(registry.ENGINE, engine)
    with RunDirectory(path, there) as directory:
        opened = open_run(config, objects)
        _refuse_other_inputs(directory, environment.describe(opened.federation, opened.weights))
        head, balancer = opened.head(), opened.balancer()
        assert balancer is not None
        balancer.body = ((before.rebalanced or {}).get("settings") or {}).get("body", "")
        with closing(opener(opened, workers, device)) as reached:
            evaluate = reached.evaluate if len(opened.federation.test_ids) else None
            number = before.history[-1]["round"] + 1
            known = opened.federation.test_attributes_known
            meter = Meter(TruthKept(reached), opened.plan.sums)
            found = solve(balancer, meter, number, before.theta, head, evaluate, known)
        summary = summary_with(before.summary, found.about, found.warnings)
        directory.write_result(summary, found.theta)
    return replace(before, summary=summary, rebalanced_theta=found.theta, factory=model)


def summary_with(summary: Mapping[str, Any], rebalanced: dict[str, Any] | None, warnings: list[str]) -> dict[str, Any]:
    """`result.json` with what came of rebalancing (None: it could not be done), and what was said then."""
    said = {"warnings": list(dict.fromkeys(warnings))} if warnings else {}
    return {**{key: value for key, value in summary.items() if key != "warnings"}, "rebalanced": rebalanced, **said}


def _refuse_other_inputs(directory: RunDirectory, now: dict[str, Any]) -> None:
    if before := directory.read_json("environment.json"):
        environment.refuse_other_inputs(before, now)
