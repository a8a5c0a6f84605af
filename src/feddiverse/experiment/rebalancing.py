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
from feddiverse.experiment import accounting, environment
from feddiverse.experiment.config import from_mapping
from feddiverse.experiment.opening import Objects, open_run
from feddiverse.experiment.records import accuracies_of
from feddiverse.experiment.result import Result, digest
from feddiverse.experiment.run_directory import RunDirectory, read_checkpoint, read_config
from feddiverse.experiment.truth import TruthKept
from feddiverse.messages import Engine, Vector
from feddiverse.server.evaluation import Evaluation
from feddiverse.server.meter import EVALUATION, Meter
from feddiverse.server.privacy import Privacy

KEYS = (
    "rebalance_weights", "rebalance_head", "rebalance_reading", "rebalance_dimensions", "rebalance_views",
    "flip", "crop_padding", "padding",
)  # fmt: skip
"""Settings that say how, and may differ from those the run was trained with."""


@dataclass(frozen=True)
class Rebalanced:
    """θ with its last layer solved anew; what `result.json` says of it; what a reader should know."""

    theta: Vector
    about: dict[str, Any]
    warnings: list[str]
    tables: dict[int, int]  # client → tables that left it with noise


def solve(
    balancer: Balancer,
    engine: Engine,
    privacy: Privacy,
    round: int,
    theta: Vector,
    head: Head,
    evaluation: Evaluation,
) -> Rebalanced:
    """Ask, solve, evaluate, count. May raise `CannotBalance`."""
    started, meter, evaluating = time.perf_counter(), Meter(engine, privacy), Meter(engine, privacy)
    changed, settings = balancer.solve(round, theta, head, meter.clients, meter.with_theta)
    solved = time.perf_counter() - started
    tested = evaluation(round, changed, meter.clients, evaluating) if evaluation.is_possible else None
    warnings = [*meter.warnings(), *balancer.warnings(), *evaluating.warnings(), *(tested.warnings if tested else ())]
    tables, traffic = dict(meter.tables + evaluating.tables), meter.take()
    about = {
        **accuracies_of(tested),
        "theta_sha256": digest(changed),
        "bytes_up": sum(row["bytes_up"] for row in traffic.values()),
        "bytes_down": sum(row["bytes_down"] for row in traffic.values()),
        "seconds": solved,
        "traffic": traffic | evaluating.take_as(EVALUATION),
        "settings": settings,
    }
    return Rebalanced(changed, about, warnings, tables)


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
    with its last), `rebalance_weights`, `rebalance_head`, `rebalance_dimensions`, `rebalance_views` and, for these,
    `flip`, `crop_padding`, `padding`, if not as in training. `federation` and `model` are needed where the run was
    trained on arrays, or with a model that cannot be imported by its name.

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
        decided = (before.rebalanced or {}).get("settings") or {}
        if decided.get("body"):  # by samples that were trained on since
            balancer.body, balancer.body_errors = decided["body"], decided["body_errors"]
            balancer.trained_penalty = decided["penalty"]
        with closing(opener(opened, workers, device)) as reached:
            evaluation = opened.evaluation(reached)
            if snapshot := read_checkpoint(path):
                evaluation.restore(snapshot.evaluation)  # its groups are those that the run was evaluated on
            number = before.history[-1]["round"] + 1
            found = solve(balancer, TruthKept(reached), opened.privacy, number, before.theta, head, evaluation)
        summary = summary_with(before.summary, found.about, found.warnings)
        if told := accounting.spent(config, [*before.history, {"selected": [], "tables": found.tables}]):
            summary["privacy"] = told
        directory.write_result(summary, found.theta)
    return replace(before, summary=summary, rebalanced_theta=found.theta, factory=model)


def summary_with(summary: Mapping[str, Any], rebalanced: dict[str, Any] | None, warnings: list[str]) -> dict[str, Any]:
    """`result.json` with what came of rebalancing (None: it could not be done), and what was said then."""
    said = {"warnings": list(dict.fromkeys(warnings))} if warnings else {}
    return {**{key: value for key, value in summary.items() if key != "warnings"}, "rebalanced": rebalanced, **said}


def _refuse_other_inputs(directory: RunDirectory, now: dict[str, Any]) -> None:
    if before := directory.read_json("environment.json"):
        environment.refuse_other_inputs(before, now)
