"""Training: from settings and objects to a `Result`, kept in a run directory where one is given.

Interrupted at any moment, a run in a directory goes on, bit for bit.
"""

import copy
import functools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from os.path import isfile  # unlike Path's, it bears names that are too long
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feddiverse import registry
from feddiverse.data.federation import Federation
from feddiverse.engine.machine import one_blas_thread
from feddiverse.errors import RunError, UserError
from feddiverse.estimation.balancer import CannotBalance
from feddiverse.experiment import accounting, environment, rebalancing
from feddiverse.experiment.checkpoint import Snapshot, Writer
from feddiverse.experiment.config import Config
from feddiverse.experiment.opening import Objects, Opened, from_arguments, open_run
from feddiverse.experiment.rebalancing import Rebalanced
from feddiverse.experiment.records import (
    TESTED,
    as_record,
    describe_federation,
    describe_model,
    summary,
    triplets,
    worst_in_words,
)
from feddiverse.experiment.result import Result, digest
from feddiverse.experiment.run_directory import RunDirectory, read_config, read_json, read_records
from feddiverse.experiment.truth import TruthKept
from feddiverse.messages import Engine, Reply, Task, Vector
from feddiverse.server.meter import Meter
from feddiverse.server.rounds import MAX_LOST_IN_A_ROW, Round, rounds

log = logging.getLogger("feddiverse")

UPDATES_WITHOUT_NOISE = (
    "privacy_epsilon covers tables of counts only: updates leave clients without noise (privacy_clip, privacy_noise)."
)

OnRound = Callable[[dict[str, Any]], Any]
"""Called with each round's record, as `rounds.jsonl` has it; returning False ends the run, cleanly."""


class TestedEngine(Engine, Protocol):
    """An engine that can also run the server's test set through a model."""

    def evaluate(self, theta: Vector) -> NDArray[np.int64]:
        """Right answers and samples [2, classes, attributes]."""

    def ask_test_set(self, task: Task, theta: Vector) -> Iterator[Reply]:
        """The server's own samples, asked like a client's, part by part."""


OpenEngine = Callable[..., TestedEngine]
"""`open_engine(run, workers, device)`: how to reach the clients of an opened run."""


def train(
    federation: str | Federation = "digits-gsc",
    model: Any = None,
    selector: Any = None,
    aggregator: Any = None,
    estimator: Any = None,
    *,
    average: Any = None,
    objective: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
    engine: str | OpenEngine = "local",
    workers: int = 0,
    device: str = "auto",
    retries: int | None = None,
    worker_timeout: float | None = None,
    on_round: OnRound | None = None,
    **settings: Any,
) -> Result:
    """Train a federation; every setting of a config is a keyword (`rounds`, `seed`, `lr`, …: docs/running.md).

    `federation` is a name or a `Federation`; `model`, `selector`, `aggregator`, `average`, `estimator` and `objective`
    are a name, `package.module:Class`, a class or an object (a model: any `nn.Module` or a function that makes one).
    `out` is a run directory: what is unfinished there goes on, what is finished is read; None keeps nothing.
    `resume` insists that there is a run, and with a larger `rounds` trains it further. `on_round` is called with each
    round's record and ends the run by returning False. `engine` ("local", "flower"), `workers` and `device` do not
    change the result. `retries` (1): how often a client is asked again whose worker process died; `worker_timeout`
    (300): seconds without a sign of life after which a worker counts as dead, 0 for never.

    >>> import feddiverse as fd
    >>> result = fd.train("digits-gsc", selector="feddiverse", rounds=2, num_selected=3, workers=1)
    >>> len(result.history), result.model.training
    (2, False)
    """
    given = {
        "model": model, "selector": selector, "aggregator": aggregator, "average": average, "estimator": estimator,
        "objective": objective,
    }  # fmt: skip
    config, objects = from_arguments(federation, given, settings, "the arguments of train")
    return carry_out(
        config, objects, out,
        engine=engine, workers=workers, device=device, on_round=on_round, resume=resume,
        retries=retries, worker_timeout=worker_timeout,
    )  # fmt: skip


def carry_out(
    config: Config,
    objects: Objects | None = None,
    out: str | Path | None = None,
    *,
    engine: str | OpenEngine = "local",
    workers: int = 0,
    device: str = "auto",
    on_round: OnRound | None = None,
    resume: bool = False,
    retries: int | None = None,
    worker_timeout: float | None = None,
) -> Result:
    """`train` for a config that is made already."""
    patience = {"retries": retries, "timeout": worker_timeout}
    patience = {name: value for name, value in patience.items() if value is not None}
    if patience and engine != "local":
        raise UserError("Retries and a timeout of workers are for the engine local; leave them out.")
    opener: OpenEngine = engine if callable(engine) else registry.find(registry.ENGINE, engine)
    if patience:
        opener = functools.partial(opener, **patience)
    if out is None:
        if resume:
            raise UserError("Only a run in a directory can go on: say which with out=.")
        return _Run(open_run(config, objects), None).train(opener, workers, device, on_round)
    out = Path(out).expanduser()
    there = read_config(out) if resume or isfile(out / "config.toml") else None  # says so if there is no run
    if there == config and (done := _finished(out, config, objects, resume)) is not None:
        return done  # be it on a disk that cannot be written to
    with RunDirectory(out, config, extend=resume) as directory:
        if (done := _finished(out, config, objects, resume)) is not None:  # by another process, meanwhile
            return done
        try:
            return _Run(open_run(config, objects), directory).train(opener, workers, device, on_round)
        except Exception:
            if directory.is_new and not read_records(out):
                directory.abandon()
            raise


def _finished(out: Path, config: Config, objects: Objects | None, resume: bool) -> Result | None:
    """The run in a directory, if it is finished and nothing more is asked of it."""
    if not isfile(out / "result.json"):
        return None
    if resume and (read_json(out / "result.json") or {}).get("rounds", 0) < config.rounds:
        return None
    return Result.read(out, objects.model if objects else None)


class _Run:
    """A run being computed: the loop on one side, the directory, if any, on the other."""

    def __init__(self, opened: Opened, directory: RunDirectory | None) -> None:
        self._started = time.perf_counter()
        self.opened, self.directory = opened, directory
        self.config, self.federation = opened.config, opened.federation
        self.selector, self.aggregator, self.plan = opened.selector(), opened.aggregator(), opened.plan
        self.balancer = opened.balancer()
        self.objective, self.average = opened.objective(), opened.average()
        self.history: list[dict[str, Any]] = []
        snapshot: Snapshot | None = None
        self._news: list[str] = []
        if directory is not None:
            self._news = self._describe(directory)
            snapshot = directory.go_back_to_checkpoint()
            self.history = read_records(directory.path)
        if self.config.privacy_epsilon and not self.config.privacy_noise:
            self._news.append(UPDATES_WITHOUT_NOISE)
        if opened.assumption and "estimator" in self.selector.findings():
            self._news.append(opened.assumption)
        chooses = self.config.selector not in ("everyone", "uniform")
        if chooses and self.plan.num_selected >= self.federation.num_clients > 1:
            self._news.append(
                f"All {self.federation.num_clients} clients are asked each round, so whom the selector chooses makes no"
                " difference: ask fewer (num_selected)."
            )
        if snapshot is None:
            snapshot = Snapshot(0, opened.initial_theta(), {}, {}, 0, 0.0)
        else:
            self.aggregator.restore(snapshot.aggregator)
            self.selector.restore(snapshot.selector)
            if self.balancer is not None:
                self.balancer.restore(snapshot.balancer)
            self.objective.restore(snapshot.objective)
        self.start = snapshot
        self._told = {warning for record in self.history for warning in record["warnings"]}
        self._triplets: dict[str, Any] = {}
        self._afterwards: dict[str, Any] = {"selected": []}  # what clients told after the last round, as in a record

    def _describe(self, directory: RunDirectory) -> list[str]:
        """`environment.json`, `federation.json` and `model.json`; later sessions must have the same data and starting
        weights, and it is told if they have other libraries."""
        now = environment.describe(self.federation, self.opened.weights)
        if before := directory.read_json("environment.json"):
            environment.refuse_other_inputs(before, now)
            return environment.other_versions(before, now)
        directory.write_json("federation.json", describe_federation(self.federation, self.plan.num_selected))
        directory.write_json("model.json", describe_model(self.opened.spec, self.federation))
        directory.write_json("environment.json", now)
        return []

    def train(self, opener: OpenEngine, workers: int, device: str, on_round: OnRound | None) -> Result:
        """The rounds that are left, each recorded as soon as it is done; then the result."""
        theta, stopped = self.start.theta, False
        with (
            one_blas_thread(),
            closing(opener(self.opened, workers, device)) as engine,
            closing(Writer(self._write_checkpoint)) as writer,
        ):
            self.evaluation = self.opened.evaluation(engine)
            self.evaluation.restore(self.start.evaluation)
            if self.evaluation.reader is not None and self.opened.assumption:
                self._news.append(self.opened.assumption)
            self._truth = TruthKept(engine, self.start.evaluation)
            loop = rounds(
                self._truth, self.selector, self.aggregator, self.evaluation, self.plan,
                theta, self.start.round, self.start.lost_in_a_row, self.objective, self.balancer, self.average,
            )  # fmt: skip
            for done in loop:
                theta = done.theta
                self._keep(done)
                writer.submit(self._snapshot(done))
                if on_round and on_round(self.history[-1]) is False:
                    stopped = True
                    if done.tested is None and self.evaluation.is_possible:
                        meter = Meter(self._truth, self.plan.privacy)
                        tested = self.evaluation(done.round, theta, self._truth.clients, meter)
                        self._add_test(replace(done, tested=tested))
                    break
            rebalanced = self._rebalance(theta) if self.config.rebalance else None
        if self.start.round == self.config.rounds and self.start.lost_in_a_row >= MAX_LOST_IN_A_ROW:
            raise RunError(
                f"No client sent usable weights in the last {self.start.lost_in_a_row} rounds of the run in "
                f"{self._where}; delete it and run it again."
            )
        self._write_triplets()  # in case the run was killed just before it
        return self._finish(theta, stopped, rebalanced)

    def _rebalance(self, theta: Vector) -> Rebalanced | str:
        """θ with its head solved anew, or the sentence that says why it cannot be."""
        assert self.balancer is not None
        number = self.history[-1]["round"] + 1
        try:
            found = rebalancing.solve(
                self.balancer, self._truth, self.plan.privacy, number, theta, self.opened.head(), self.evaluation
            )
        except CannotBalance as why:
            return str(why)
        self._afterwards["tables"] = found.tables
        return found

    @property
    def _where(self) -> str:
        return "memory" if self.directory is None else str(self.directory.path)

    def _keep(self, done: Round) -> None:
        """The round in the history, its warnings told once, and on the disk."""
        record = as_record(done)
        record["warnings"] = self._untold([*record["warnings"], *self._news])
        self._news = []
        if done.test is not None or done.round == self.plan.pretraining_rounds + 1:
            self._write_triplets()
        self.history.append(record)
        if self.directory is not None:
            self.directory.append(record)
        worst = f", {said}" if (said := worst_in_words(record)) else ""
        log.info("round %d of %d: %d clients%s", done.round, self.plan.rounds, len(done.selected), worst)

    def _untold(self, warnings: list[str]) -> list[str]:
        """Those that were not told before; now they are, and are logged."""
        new = [warning for warning in dict.fromkeys(warnings) if warning not in self._told]
        self._told.update(new)
        for warning in new:
            log.warning(warning)
        return new

    def _add_test(self, done: Round) -> None:
        """The last round was evaluated after all."""
        tested = {key: as_record(done)[key] for key in TESTED}
        self.history[-1] = {**self.history[-1], **tested}
        if self.directory is not None:
            self.directory.replace_last(self.history[-1])

    @property
    def _seconds(self) -> float:
        """Spent on this run so far, over all sessions."""
        return self.start.seconds + time.perf_counter() - self._started

    def _snapshot(self, done: Round) -> Snapshot:
        """Written while the next round runs, so what the selector may change in place is copied."""
        selector = copy.deepcopy(self.selector.state())
        return Snapshot(
            done.round, done.theta, self.aggregator.state(), selector, done.lost_in_a_row, self._seconds,
            self._truth.state() | self.evaluation.state(), self.objective.state(),
            {} if self.balancer is None else self.balancer.state(),
            self.config.plain(),
        )  # fmt: skip

    def _write_checkpoint(self, snapshot: Snapshot) -> None:
        if self.directory is not None:
            self.directory.write_checkpoint(snapshot)

    def _write_triplets(self) -> None:
        """What the selector found out about clients, where it estimates: `triplets.json`."""
        self._triplets = triplets(self.selector, self.federation, self._truth.confusion)
        if self._triplets and self.directory is not None:
            self.directory.write_json("triplets.json", self._triplets)

    def _finish(self, theta: Vector, stopped: bool, rebalanced: Rebalanced | str | None) -> Result:
        """`rebalanced`: a sentence says why it could not be done; None: nobody asked for it."""
        federation = self.federation
        result = summary(
            self.history, federation.counts, self.config, self._seconds, digest(theta), federation.client_names
        )
        if told := accounting.spent(self.config, [*self.history, self._afterwards]):
            result["privacy"] = told
        changed = rebalanced.theta if isinstance(rebalanced, Rebalanced) else None
        if isinstance(rebalanced, Rebalanced):
            result = rebalancing.summary_with(result, rebalanced.about, self._untold(rebalanced.warnings))
        elif rebalanced is not None:
            result = rebalancing.summary_with(result, None, self._untold([rebalanced]))
        if stopped:
            result["stopped"] = True  # by on_round, before all rounds of the config
        if self.directory is not None:
            result["run_dir"] = str(self.directory.path)
            self.directory.write_result(result, changed)
        return Result(
            summary=result,
            history=self.history,
            theta=theta,
            rebalanced_theta=changed,
            about=describe_model(self.opened.spec, self.federation),
            triplets=self._triplets,
            factory=self.opened.objects.model,
            run_dir=None if self.directory is None else self.directory.path,
        )
