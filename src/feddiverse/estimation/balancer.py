"""A run in which every hidden group counts equally: reads attributes, weighs the clients' draws, solves the head anew.

The attribute is read at the start, with the model the run starts from: its features tell attributes before training
bends them to the skew (docs/rebalance.md). Clients remember their own readings; the server has sums.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from feddiverse import seeding
from feddiverse.errors import RunError
from feddiverse.estimation import heads
from feddiverse.estimation.balance import (
    NUM_FOLDS,
    PENALTIES,
    BalancedSums,
    best_penalty,
    calibrate,
    fold_of,
    group_weights,
    length,
    sums_problem,
    worst_and_mean,
)
from feddiverse.estimation.base import Estimator
from feddiverse.estimation.consensus import Consensus
from feddiverse.messages import Ask, GroupSums, HeadErrors, Plain, Reply, Vector
from feddiverse.server.replies import answers

Floats = NDArray[np.float64]
AskAbout = Callable[[Vector], Ask]
"""`ask_about(θ)`: how to ask clients about a model (`Meter.with_theta`)."""

CONFIDENCE = 0.9  # posterior from which a reading counts: half of a rare group's readings would else be false
NOT_SEEN = "No hidden attribute is seen, so there are no groups to balance: training and head stay as they are."
CLASSES_INSTEAD = "No hidden attribute is seen: classes count equally instead of hidden groups."
READ = ("groups", "auto")
"""Values of `weights` under which clients read a hidden attribute."""


class CannotBalance(RunError):
    """Why the head cannot be solved anew, in a sentence."""


@dataclass(frozen=True)
class Head:
    """Where in θ the last layer is: weights [Y, D] and bias [Y], each a stretch of θ."""

    weight: slice
    bias: slice
    num_classes: int
    dimensions: int

    def written_into(self, theta: Vector, weight: Floats, bias: Floats) -> Vector:
        """θ with another last layer."""
        changed = theta.copy()
        changed[self.weight] = weight.ravel()
        changed[self.bias] = bias
        return changed


class Balancer:
    """Knows the hidden groups of a federation. `estimator` must give matrices; `theta` is the model it reads with.

    `dimensions`: features beyond so many are projected at random before they are summed. `weights`: what counts
    equally, `groups`, `true_groups`, `classes`, `samples`, or `auto`: groups if an attribute is seen, else classes;
    `head`: how it is solved, `ridge`, `fed3r` or `ccvr`.
    `views`: fields of `GroupSums` that say how many changed copies of each sample are summed too, and changed how.
    `reading`: the head's groups are those read at the `start`, or anew under the `final` model. `exact_counts`: whether
    clients count their groups without noise, so that their sums can be held against it.
    """

    def __init__(
        self,
        estimator: Estimator,
        theta: Vector,
        seed: int,
        confidence: float = CONFIDENCE,
        dimensions: int = 2048,
        weights: str = "groups",
        head: str = "ridge",
        reading: str = "start",
        exact_counts: bool = True,
        views: Plain | None = None,
    ) -> None:
        self.estimator = estimator
        self.theta = theta
        self.seed = seed
        self.confidence = confidence if weights in READ else 0.0
        self.dimensions = dimensions
        self.weights = weights
        self.head = head
        self.reading = reading if weights in READ else "start"
        self.exact_counts = exact_counts
        self.views = views or {}
        estimator.wants_matrices = True
        self._blank = copy.deepcopy(estimator)
        estimator.remembered = True
        self._sizes: dict[int, int] = {}  # clients that have read their attributes in this session
        self._weights: NDArray[np.float32] | None = None
        self.body = ""  # whose features the head stands on, once it was decided: those of the `start` or `trained` ones
        self.body_errors: dict[str, float] = {}
        self.trained_penalty = 0.0  # λ for the trained features, by samples that they were not trained on; 0: not known

    def learn(self, round: int, clients: Mapping[int, int], ask: Ask) -> None:
        """Have clients read their attributes that have not; `ask` asks about `theta`.

        Clients may have forgotten what they read before the server went away, so a new session asks again.
        """
        new = {client: size for client, size in clients.items() if client not in self._sizes}
        if new:
            found = self.estimator.estimate(round, new, ask)
            self._sizes |= {client: size for client, size in new.items() if client in found}
            self._weights = None

    @property
    def sees_groups(self) -> bool:
        """Whether there is something to balance."""
        return self._tells_groups(self.estimator)

    def _tells_groups(self, estimator: Estimator) -> bool:
        matrices = estimator.matrices or {}
        by_attribute = self.weights in ("groups", "true_groups")
        return any(not by_attribute or matrix.shape[1] > 1 for matrix in matrices.values())

    @property
    def _falls_back(self) -> bool:
        """Whether classes stand in for hidden groups that were looked for."""
        return self.weights == "auto" and all(
            matrix.shape[1] == 1 for matrix in (self.estimator.matrices or {}).values()
        )

    def warnings(self) -> list[str]:
        """What a reader should know."""
        unseen = NOT_SEEN if not self.sees_groups else CLASSES_INSTEAD if self._falls_back else ""
        return [*self.estimator.warnings, *([unseen] if unseen and self._sizes else [])]

    @property
    def draw(self) -> NDArray[np.float32]:
        """Weights of groups [Y, A] for clients' draws; empty where no attribute is seen."""
        if not self.sees_groups:
            return np.zeros((0, 0), np.float32)
        if self._weights is None:
            matrices = self._known()
            sizes = np.array([self._sizes[client] for client in matrices], np.float64)
            self._weights = calibrate(np.array(list(matrices.values())), sizes).astype(np.float32)
        return self._weights

    def _known(self) -> dict[int, Floats]:
        """The matrices of clients that remember their readings."""
        matrices = self.estimator.matrices or {}
        return {client: matrices[client] for client in sorted(matrices) if client in self._sizes}

    def solve(
        self, round: int, theta: Vector, head: Head, clients: Mapping[int, int], ask_about: AskAbout
    ) -> tuple[Vector, dict[str, Any]]:
        """θ with its last layer solved anew, and how. Raises `CannotBalance` with the reason where that cannot be.

        Where `choose_body` found that training made the features worse, the head is that of the model at the start.
        """
        theta = self.theta if self.body == "start" else theta
        matrices, fields = self._groups(round, theta, clients, ask_about)
        fields |= {"confidence": self.confidence}
        with threadpool_limits(1, "blas"):  # the same bits wherever the server runs
            ask = ask_about(theta)
            of_fold, folds, matrices = self._sums(round, matrices, head, clients, fields, ask)
            everything = sum(list(of_fold.values())[1:], next(iter(of_fold.values())))
            empty = int(everything.weights.argmin())
            if everything.weights[empty] <= 0:
                raise CannotBalance(
                    f"No client has a sample of class {empty} whose attribute it is sure of: the head stays as trained."
                )
            settings: dict[str, Any] = {"weights": self.weights, "head": self.head}
            if self.body:
                settings |= {"body": self.body, "body_errors": self.body_errors}
            if self.views:
                settings |= {"views": self.views["views"]}
            if self.weights in READ:
                settings |= {"reading": self.reading, "confidence": self.confidence}
            if self.head == "ridge":
                penalty = self.trained_penalty if self.body == "trained" else 0.0
                penalty = penalty or self._penalty(round, matrices, of_fold, folds, clients, fields, ask)
                weight, bias = everything.heads([penalty])[0]
                settings |= {"penalty": penalty, "folds": len(of_fold)}
            elif self.head == "fed3r":
                weight, bias = heads.fed3r(everything)
                settings |= {"penalty": heads.FED3R_PENALTY}
            else:
                weight, bias = heads.ccvr(everything, self.seed)
                settings |= {"virtual_samples": heads.VIRTUAL_SAMPLES}
        totals = sum(matrices.values(), np.zeros(1))
        settings |= {"groups": totals.tolist(), "clients": len(matrices)}
        return head.written_into(theta, self._unprojected(weight, head.dimensions), bias), settings

    def choose_body(
        self, round: int, theta: Vector, head: Head, clients: Mapping[int, int], ask_about: AskAbout, set_aside: float
    ) -> None:
        """Whether training made the features better or worse. For those of the start and of θ alike, heads are solved
        from the samples that clients trained on, and tried on the samples that they set aside: nobody has seen those.
        Where it cannot be told, the trained ones are taken. λ for them is chosen so, too: clients whose samples
        were all trained on would find too small a one good enough.
        """
        matrices, fields = self._groups(round, theta, clients, ask_about)
        fields |= {"confidence": self.confidence, "set_aside": set_aside}
        with threadpool_limits(1, "blas"):
            for name, body in (("start", self.theta), ("trained", theta)):
                ask = ask_about(body)
                of_fold, _, known = self._sums(round, matrices, head, clients, fields, ask, num_folds=1)
                if of_fold[0].weights.min() <= 0:
                    self.body_errors = {}
                    break
                errors, counts = self._errors(round, known, of_fold[0], known, clients, fields, ask)
                if counts.any():
                    found = worst_and_mean(errors, counts)
                    self.body_errors[name] = float(found.min())
                    if name == "trained":
                        self.trained_penalty = PENALTIES[int(found.argmin())]
        worse = len(self.body_errors) == 2 and self.body_errors["trained"] > self.body_errors["start"]
        self.body = "start" if worse else "trained"

    def _groups(
        self, round: int, theta: Vector, clients: Mapping[int, int], ask_about: AskAbout
    ) -> tuple[dict[int, Floats], dict[str, Any]]:
        """Matrices of the clients that can tell their groups now, and how they tell them: fields of `Grouped`."""
        estimator, fields = self.estimator, {}
        if self.reading == "start":
            self.learn(round, clients, ask_about(self.theta))
            matrices = self._known()
        else:
            estimator = copy.deepcopy(self._blank)
            found = estimator.estimate(round, clients, ask_about(theta))
            matrices = {client: matrix for client, matrix in (estimator.matrices or {}).items() if client in found}
            if isinstance(estimator, Consensus) and estimator.reading:
                fields = {"reading_dimensions": estimator.dimensions, **estimator.reading}
        matrices = {client: matrices[client] for client in sorted(matrices) if client in clients}
        if not matrices:
            raise CannotBalance("No client could be asked for its groups: the head stays as it was trained.")
        if not self._tells_groups(estimator):
            raise CannotBalance(NOT_SEEN)
        return matrices, fields

    def _sums(
        self, round: int, matrices: dict[int, Floats], head: Head, clients: Mapping[int, int], fields: Plain, ask: Ask,
        num_folds: int = NUM_FOLDS,
    ) -> tuple[dict[int, BalancedSums], dict[int, int], dict[int, Floats]]:  # fmt: skip
        """Sums of each fold of clients; who is in which fold; the matrices of those who answered.

        Where some do not, weights that count on them would leave their groups too light: the others are asked again.
        """
        d, by_class = min(head.dimensions, self.dimensions), self.head == "ccvr"
        while matrices:
            weights = group_weights(matrices.values(), even=self.weights != "samples")
            task = GroupSums(
                self.seed, round, self.dimensions, weights=weights, by_class=by_class, **fields, **self.views
            )
            asked = {client: clients[client] for client in matrices}
            folds = fold_of(matrices, num_folds)
            of_fold: dict[int, BalancedSums] = {}
            answered: set[int] = set()
            for fold in sorted(set(folds.values())):  # one after the other: of a secure sum only the total is seen
                members = {client: size for client, size in asked.items() if folds[client] == fold}
                total = np.zeros(length(head.num_classes, d, by_class))
                for reply in self._usable_sums(task, members, matrices, head.num_classes, d, ask):
                    total += reply.numbers
                    answered.update(reply.members or (reply.client,))
                of_fold[fold] = BalancedSums.unpacked(total, head.num_classes, d)
            if answered == matrices.keys():
                return of_fold, folds, matrices
            matrices = {client: matrix for client, matrix in matrices.items() if client in answered}
        raise CannotBalance("No client sent usable sums: the head stays as it was trained.")

    def _usable_sums(
        self, task: GroupSums, asked: Mapping[int, int], matrices: Mapping[int, Floats], num_classes: int, d: int,
        ask: Ask,
    ) -> Iterator[Reply]:  # fmt: skip
        def check(reply: Reply) -> str | None:
            own = sum(matrices[client] for client in reply.members or (reply.client,)) * task.weights
            slack = float(task.weights.max()) if self.exact_counts else np.inf
            return sums_problem(reply.numbers, num_classes, d, own.sum(axis=1), slack, some=task.set_aside > 0)

        return answers(task, asked, ask, length=length(num_classes, d, task.by_class), check=check)

    def _penalty(
        self, round: int, matrices: Mapping[int, Floats], of_fold: Mapping[int, BalancedSums],
        folds: Mapping[int, int], clients: Mapping[int, int], fields: Plain, ask: Ask,
    ) -> float:  # fmt: skip
        """λ, chosen without truth and test set: a head is solved from the sums of all other folds, and each fold says
        how large its squared errors are; the λ is taken whose worst group is best."""
        everything = sum(list(of_fold.values())[1:], next(iter(of_fold.values())))
        size = next(iter(matrices.values())).size
        errors, counts = np.zeros((len(PENALTIES), size)), np.zeros(size)
        for fold, own in of_fold.items() if len(of_fold) > 1 else ():
            rest = everything - own
            if rest.weights.min() > 0:
                members = [client for client in matrices if folds[client] == fold]
                of_members = self._errors(round, matrices, rest, members, clients, fields, ask)
                errors, counts = errors + of_members[0], counts + of_members[1]
        if not counts.any():
            return 1.0
        if self.weights == "samples":
            errors, counts = errors.sum(axis=1, keepdims=True), counts.sum(keepdims=True)
        return PENALTIES[best_penalty(errors, counts)]

    def _errors(
        self, round: int, matrices: Mapping[int, Floats], sums: BalancedSums, members: Iterable[int],
        clients: Mapping[int, int], fields: Plain, ask: Ask,
    ) -> tuple[Floats, Floats]:  # fmt: skip
        """Squared errors [λ, group] of the heads that come of `sums`, summed over the samples of `members`; counts."""
        weights = group_weights(matrices.values(), even=self.weights != "samples")
        solved = np.array([np.column_stack(pair) for pair in sums.heads()], np.float32)
        task = HeadErrors(self.seed, round, self.dimensions, heads=solved, weights=weights, **fields)
        errors, counts = np.zeros((len(PENALTIES), weights.size)), np.zeros(weights.size)
        asked = {client: clients[client] for client in members}
        for reply in answers(task, asked, ask, length=errors.size + counts.size, check=_check_errors):
            errors += reply.numbers[: errors.size].reshape(errors.shape)
            counts += reply.numbers[errors.size :]
        return errors, counts

    def _unprojected(self, weight: Floats, dimensions: int) -> Floats:
        """A linear head on projected features as one on the features themselves."""
        if dimensions <= self.dimensions:
            return weight
        shared = seeding.rng(self.seed, "projection").standard_normal((dimensions, self.dimensions))
        return np.asarray(weight @ (shared / np.sqrt(dimensions)).T)

    def state(self) -> Plain:
        """What must be remembered between rounds."""
        return {
            "estimator": self.estimator.state(),
            "body": self.body,
            "body_errors": self.body_errors,
            "trained_penalty": self.trained_penalty,
        }

    def restore(self, state: Plain) -> None:
        """Take back what `state` gave."""
        if state:
            self.estimator.restore(state["estimator"])
            self.body, self.body_errors = state.get("body", ""), dict(state.get("body_errors", {}))
            self.trained_penalty = state.get("trained_penalty", 0.0)


def _check_errors(reply: Reply) -> str | None:
    return "its errors or counts are negative" if reply.numbers.min(initial=0) < 0 else None
