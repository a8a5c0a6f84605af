"""One run: from a config to a run directory with its result. Interrupted at any moment, it goes on, bit for bit."""

import copy
import hashlib
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import RunError, UserError
from feddiverse.experiment import environment
from feddiverse.experiment.checkpoint import Snapshot, Writer
from feddiverse.experiment.config import Config, settings
from feddiverse.experiment.records import as_record, describe_federation, selection_statistics, triplets
from feddiverse.experiment.run_directory import RunDirectory, read_config, read_records
from feddiverse.federation import Federation
from feddiverse.messages import Engine, Train, Vector
from feddiverse.server import aggregation, selection
from feddiverse.server.rounds import MAX_LOST_IN_A_ROW, Plan, Round, rounds

if TYPE_CHECKING:  # it brings torch: a run's directory is made before that is loaded
    from feddiverse.models import ModelSpec

OnRound = Callable[[dict[str, Any]], None]
"""Called with each round's record, as `rounds.jsonl` has it."""


class TestedEngine(Engine, Protocol):
    """An engine that can also run the server's test set through a model."""

    def evaluate(self, theta: Vector) -> NDArray[np.int64]:
        """Right answers and samples [2, classes, attributes]."""


OpenEngine = Callable[[Federation, "ModelSpec"], TestedEngine]


def execute(
    config: Config,
    out: Path,
    *,
    workers: int = 0,
    device: str = "auto",
    engine: str | OpenEngine = "local",
    on_round: OnRound | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Run `config` in the directory `out` and give what its `result.json` says.

    A finished run is not run again, an unfinished one goes on where its checkpoint is; `resume` insists that there is
    one. `workers`, `device` and `engine` ("local", or how to open another one) do not change the result.
    """
    if resume:
        read_config(out)  # says so if there is no run
    with RunDirectory(out, config) as directory:
        result = directory.read_json("result.json")
        if result is None:
            try:
                run = _Run(config, directory)
                result = run.train(_opener(engine, workers, device), on_round)
            except Exception:
                if directory.is_new and not read_records(out):
                    directory.abandon()
                raise
    return {**result, "run_dir": str(out)}


def _opener(engine: str | OpenEngine, workers: int, device: str) -> OpenEngine:
    if callable(engine):
        return engine
    if engine == "local":
        from feddiverse.engine.local import LocalEngine

        return lambda federation, spec: LocalEngine(federation, spec, workers=workers, device=device)
    raise UserError(f"There is no engine '{engine}': choose local, or flower with 'feddiverse run'.")


class _Run:
    """A run being computed: the loop on one side, the directory on the other."""

    def __init__(self, config: Config, directory: RunDirectory):
        from feddiverse.data import load_federation
        from feddiverse.models import ModelSpec, initial_theta

        self._started = time.perf_counter()
        self.config, self.directory = config, directory
        weights = environment.starting_weights(config)
        self.federation = load_federation(
            config.federation,
            config.seed,
            image_size=config.image_size or None,
            data_dir=Path(config.data_dir).expanduser() if config.data_dir else None,
        )
        source = self.federation.source
        self.spec = ModelSpec(config.model, self.federation.num_classes, source.shape, source.mean, source.std)
        known = settings(
            config, self.federation.num_classes, self.federation.num_attributes, self.federation.num_selected
        )
        self.selector = selection.build(config.selector, known)
        self.aggregator = aggregation.build(config.optimizer, known)
        self.plan = Plan(_training(config), config.rounds, known["num_selected"], config.evaluate_every)
        self._news = self._describe(weights)

        snapshot = directory.go_back_to_checkpoint()
        if snapshot is None:
            snapshot = Snapshot(0, initial_theta(self.spec, config.seed, weights), {}, {}, 0, 0.0)
        else:
            self.aggregator.restore(snapshot.aggregator)
            self.selector.restore(snapshot.selector)
        self.start = snapshot
        self._told = {warning for record in read_records(directory.path) for warning in record["warnings"]}

    def _describe(self, weights: Path | None) -> list[str]:
        """`environment.json` and `federation.json`; later sessions must have the same data and starting weights, and
        it is told if they have other libraries."""
        now = environment.describe(self.federation, weights)
        if before := self.directory.read_json("environment.json"):
            environment.refuse_other_inputs(before, now)
            return environment.other_versions(before, now)
        self.directory.write_json("federation.json", describe_federation(self.federation, self.plan.num_selected))
        self.directory.write_json("environment.json", now)
        return []

    def train(self, open_engine: OpenEngine, on_round: OnRound | None) -> dict[str, Any]:
        """The rounds that are left, each recorded as soon as it is done; then the result."""
        theta = self.start.theta
        with (
            closing(open_engine(self.federation, self.spec)) as engine,
            closing(Writer(self.directory.write_checkpoint)) as writer,
        ):
            loop = rounds(
                engine, self.selector, self.aggregator, engine.evaluate, self.plan,
                theta, self.start.round, self.start.lost_in_a_row,
            )  # fmt: skip
            for done in loop:
                theta = done.theta
                record = as_record(done)
                record["warnings"] += self._news
                self._news = []
                if done.test is not None or done.round == self.selector.pretraining_rounds + 1:
                    record["warnings"] += self._write_triplets()
                self.directory.append(record)
                writer.submit(self._snapshot(done))
                if on_round:
                    on_round(record)
        if self.start.round == self.config.rounds and self.start.lost_in_a_row >= MAX_LOST_IN_A_ROW:
            raise RunError(
                f"No client sent usable weights in the last {self.start.lost_in_a_row} rounds of the run in "
                f"{self.directory.path}; delete it and run it again."
            )
        self._write_triplets()  # in case the run was killed just before it
        result = self._result(theta, read_records(self.directory.path))
        self.directory.write_json("result.json", result)
        return result

    @property
    def _seconds(self) -> float:
        """Spent on this run so far, over all sessions."""
        return self.start.seconds + time.perf_counter() - self._started

    def _snapshot(self, done: Round) -> Snapshot:
        """Written while the next round runs, so what the selector may change in place is copied."""
        selector = copy.deepcopy(self.selector.state())
        return Snapshot(done.round, done.theta, self.aggregator.state(), selector, done.lost_in_a_row, self._seconds)

    def _write_triplets(self) -> list[str]:
        """`triplets.json`, where the selector estimates; returns what a reader should know and was not told yet."""
        found = triplets(self.selector, self.federation)
        if not found:
            return []
        self.directory.write_json("triplets.json", found)
        news = [warning for warning in found.get("warnings", []) if warning not in self._told]
        self._told.update(news)
        return news

    def _result(self, theta: Vector, records: list[dict[str, Any]]) -> dict[str, Any]:
        """All of it from `rounds.jsonl`, since most rounds may have been made in other sessions."""
        last = records[-1]
        return {
            "worst_group_accuracy": last["worst_group_accuracy"],
            "accuracy": last["accuracy"],
            "groups": last["groups"],
            "rounds": len(records),
            "seconds": self._seconds,
            "bytes_down": sum(record["bytes_down"] for record in records),
            "bytes_up": sum(record["bytes_up"] for record in records),
            "theta_sha256": hashlib.sha256(theta.astype("<f4").tobytes()).hexdigest(),
            "run_dir": str(self.directory.path),
            "selection": selection_statistics(records, self.federation),
            "config": asdict(self.config),
        }


def _training(config: Config) -> Train:
    """What clients are asked to do each round; the proximal term only where the optimizer is a FedProx one."""
    return Train(
        seed=config.seed,
        round=0,
        epochs=config.epochs,
        batch_size=config.batch_size,
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        prox_mu=config.prox_mu if "fedprox" in config.optimizer else 0.0,
    )
