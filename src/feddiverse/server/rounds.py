"""THE loop: T0 rounds of plain FedAvg with every client, then choose → train → aggregate → evaluate (paper, Sec. IV).

No files, no processes, no torch: the same generator runs over every engine, and between two rounds its caller can
save θ and the states of selector and aggregator, from which a later call goes on with the same bits.
"""

import operator
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from feddiverse.errors import RunError
from feddiverse.estimation.balancer import Balancer, CannotBalance, Head
from feddiverse.messages import Engine, Train, Vector
from feddiverse.seeding import rng
from feddiverse.selection.base import Selector
from feddiverse.server.aggregation import Aggregator, FedAvg
from feddiverse.server.averages import Average
from feddiverse.server.evaluation import Evaluation, Tested, TestSet, of_test_set
from feddiverse.server.groups import Accuracies
from feddiverse.server.meter import EVALUATION, Meter, Traffic
from feddiverse.server.objectives import Objective
from feddiverse.server.privacy import Privacy
from feddiverse.server.replies import TrainedReplies

MAX_LOST_IN_A_ROW = 3


@dataclass(frozen=True)
class Plan:
    """What the loop needs to know besides who selects and who aggregates. `train` is the local training asked for.

    `balanced_draws`: clients draw their samples so that every hidden group counts equally. Every
    `evaluate_rebalanced_every` rounds (0: never; not in the last, after which the caller may solve it) θ is evaluated
    with its last layer, which is at `head`, solved anew as well; training goes on from the trained one. Where `train`
    sets samples aside, they decide in `decision_round` whose features that layer stands on; then they are trained on.
    The first `pretraining_rounds` (the paper's T0) are plain FedAvg of every client, averaged by `pretraining`.
    `test_attributes_known`: whether there are groups of the test set to tell the worst of.
    `privacy`: what clients protect of what they send.
    """

    train: Train
    rounds: int
    num_selected: int
    evaluate_every: int
    pretraining_rounds: int = 0
    balanced_draws: bool = False
    evaluate_rebalanced_every: int = 0
    head: Head | None = None
    pretraining: Aggregator = field(default_factory=FedAvg)
    test_attributes_known: bool = True
    privacy: Privacy = field(default_factory=Privacy)

    @property
    def decision_round(self) -> int:
        """Late enough that training has done what it will, early enough to learn from what was set aside."""
        return max(1, self.rounds * 4 // 5)


@dataclass(frozen=True)
class Round:
    """What happened in one round, and θ after it. `lost_in_a_row`: rounds without a usable reply up to this one."""

    round: int
    phase: str
    theta: Vector
    selected: list[int]
    failed: list[int]
    warnings: list[str]
    train_loss: float | None
    tested: Tested | None
    seconds: float
    selection_seconds: float
    traffic: Traffic
    lost_in_a_row: int
    lost: list[int] = field(default_factory=list)  # clients with an answer that never came: another run may get it
    rebalanced: Tested | None = None  # with the last layer solved anew
    tables: Mapping[int, int] = field(default_factory=dict)  # client → tables that left it with noise
    updates: Mapping[int, int] = field(default_factory=dict)  # client → updates that left it with noise

    @property
    def test(self) -> Accuracies | None:
        """What the round's accuracies are: on the server's test set, or where it has none on held-out samples."""
        return None if self.tested is None else self.tested.test


def rounds(
    engine: Engine,
    selector: Selector,
    aggregator: Aggregator,
    evaluate: TestSet | Evaluation | None,
    plan: Plan,
    theta: Vector,
    done: int = 0,
    lost_in_a_row: int = 0,
    objective: Objective | None = None,
    balancer: Balancer | None = None,
    average: Average | None = None,
) -> Iterator[Round]:
    """Rounds `done + 1 … plan.rounds` from θ. T counts model updates, so the pre-training rounds are part of it."""
    meter, evaluating = Meter(engine, plan.privacy), Meter(engine, plan.privacy)
    evaluation = of_test_set(evaluate, plan.test_attributes_known)
    objective = objective or Objective()
    average = average or Average()
    for number in range(done + 1, plan.rounds + 1):
        start = time.perf_counter()
        clients = meter.clients
        task = replace(plan.train, round=number)
        warnings: list[str] = []

        if number <= plan.pretraining_rounds:
            phase, selected, step = "pretraining", sorted(clients), plan.pretraining.step
            task = replace(task, prox_mu=0.0)
        else:
            phase, step = "selected", aggregator.step
            generator = rng(task.seed, "select", number)
            chosen = selector.choose(number, plan.num_selected, clients, meter.with_theta(theta), generator)
            selected = checked_choice(chosen, clients)
            warnings += selector.warnings()
        if balancer is not None and (plan.balanced_draws or balancer.reading == "start"):
            balancer.learn(number, clients, meter.with_theta(balancer.theta))
            warnings += balancer.warnings()
            if plan.balanced_draws:
                task = replace(task, draw=balancer.draw, draw_confidence=balancer.confidence)
        if balancer is None or not balancer.sees_groups or balancer.body or number > plan.decision_round:
            task = replace(task, set_aside=0.0)  # nothing to decide, or it is decided: clients train on everything
        selection_seconds = time.perf_counter() - start - meter.waited

        # Largest first, so that no worker is left with a long client at the end.
        asked = sorted(selected, key=lambda k: (-clients[k], k))
        trained = TrainedReplies(number, selector.wants_updates)
        if phase == "selected":
            task = objective.prepare(task, asked)
        replies = trained(meter.ask(task, theta, asked))
        if phase == "selected":
            replies = objective.watch(theta, replies)
        previous, theta = theta, checked_weights(step(theta, average(theta, replies)), theta, number)
        warnings += average.warnings()
        lost_in_a_row = 0 if trained.usable else lost_in_a_row + 1
        if lost_in_a_row:
            trained.warnings.append(f"Round {number}: no client sent usable weights; the model stays as it was.")

        if plan.head is not None and balancer is not None and task.set_aside and number == plan.decision_round:
            try:
                balancer.choose_body(number, theta, plan.head, clients, meter.with_theta, task.set_aside)
            except CannotBalance as why:
                warnings.append(str(why))

        observing = time.perf_counter()
        if phase == "selected":
            selector.observe(number, previous, trained.usable)
        selection_seconds += time.perf_counter() - observing

        tested = rebalanced = None
        if evaluation.is_possible and (number % plan.evaluate_every == 0 or number == plan.rounds):
            tested = evaluation(number, theta, clients, evaluating)
        due = plan.evaluate_rebalanced_every and number % plan.evaluate_rebalanced_every == 0 and number < plan.rounds
        if due and evaluation.is_possible and balancer is not None and plan.head is not None:
            try:
                changed, _ = balancer.solve(number, theta, plan.head, clients, meter.with_theta)
                rebalanced = evaluation(number, changed, clients, evaluating)
            except CannotBalance as why:
                warnings.append(str(why))
        found = [warning for each in (tested, rebalanced) if each is not None for warning in each.warnings]
        told = [f"Round {number}: {warning}" for counted in (meter, evaluating) for warning in counted.warnings()]
        warnings = list(dict.fromkeys([*told, *warnings, *found]))
        yield Round(
            round=number,
            phase=phase,
            theta=theta,
            selected=selected,
            failed=trained.failed,
            warnings=warnings + trained.warnings,
            train_loss=trained.train_loss,
            tested=tested,
            seconds=time.perf_counter() - start,
            selection_seconds=selection_seconds,
            tables=dict(meter.tables + evaluating.tables),
            updates=dict(meter.updates),
            lost_in_a_row=lost_in_a_row,
            lost=sorted(meter.lost | evaluating.lost),
            traffic=meter.take() | evaluating.take_as(EVALUATION),
            rebalanced=rebalanced,
        )
        if lost_in_a_row >= MAX_LOST_IN_A_ROW:
            raise RunError(
                f"No client sent usable weights in {MAX_LOST_IN_A_ROW} rounds in a row. {trained.warnings[0]}"
            )


def checked_weights(found: Vector, theta: Vector, round: int) -> Vector:
    """An aggregator may be anyone's: what it returns must be weights of the same model that clients can go on from."""
    weights = np.asarray(found)
    if weights.shape != theta.shape or not np.can_cast(weights.dtype, theta.dtype, "same_kind"):
        raise RunError(
            f"Round {round}: the aggregator gave {weights.dtype} of shape {weights.shape}, where {theta.dtype} of shape"
            f" {theta.shape} is expected."
        )
    if not np.isfinite(weights).all():
        raise RunError(f"Round {round}: the aggregator's weights are not all finite; a smaller step may help.")
    return weights.astype(theta.dtype, copy=False)


def checked_choice(chosen: Iterable[int], clients: Mapping[int, int]) -> list[int]:
    """A selector may be anyone's: what it returns must be different clients that are there, in numbers of any kind."""
    try:
        selected = [operator.index(client) for client in chosen]
    except TypeError:
        raise RunError(f"The selector chose {chosen!r}, which is no list of clients' numbers.") from None
    if len(set(selected)) < len(selected) or not set(selected) <= set(clients):
        raise RunError(f"The selector chose {selected}, which are not different clients of this federation.")
    return selected
