"""A run in which every hidden group counts equally: reads attributes, weighs the clients' draws, solves the head anew.

One reading of the attribute (docs/rebalance.md) is made at the start, with the model the run starts from: its features
tell attributes before training bends them to the skew. Clients remember their own readings; the server has sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse import seeding
from feddiverse.estimation.balance import (
    NUM_FOLDS,
    PENALTIES,
    BalancedSums,
    best_penalty,
    calibrate,
    fold_of,
    length,
)
from feddiverse.estimation.base import Estimator
from feddiverse.messages import Ask, GroupSums, HeadErrors, Plain, Vector
from feddiverse.server.replies import answers

Floats = NDArray[np.float64]

CONFIDENCE = 0.9  # posterior from which a reading counts: half of a rare group's readings would else be false
NOT_SEEN = "No hidden attribute is seen, so there are no groups to balance: training and head stay as they are."


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

    `dimensions`: features beyond so many are projected at random before they are summed.
    """

    def __init__(
        self, estimator: Estimator, theta: Vector, seed: int, confidence: float = CONFIDENCE, dimensions: int = 2048
    ) -> None:
        self.estimator = estimator
        self.theta = theta
        self.seed = seed
        self.confidence = confidence
        self.dimensions = dimensions
        estimator.wants_matrices = True
        self._sizes: dict[int, int] = {}  # clients that have read their attributes in this session
        self._weights: NDArray[np.float32] | None = None

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
        """Whether there is an attribute to balance."""
        matrices = self.estimator.matrices
        return bool(matrices) and next(iter(matrices.values())).shape[1] > 1 if matrices else False

    def warnings(self) -> list[str]:
        """What a reader should know."""
        unseen = [] if self.sees_groups or not self._sizes else [NOT_SEEN]
        return [*self.estimator.warnings, *unseen]

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

    def has_read(self, client: int) -> bool:
        return client in self._sizes

    def _known(self) -> dict[int, Floats]:
        """The matrices of clients that remember their readings."""
        matrices = self.estimator.matrices or {}
        return {client: matrices[client] for client in sorted(matrices) if client in self._sizes}

    def solve(self, round: int, theta: Vector, head: Head, ask: Ask) -> tuple[Vector, dict[str, Any]] | None:
        """θ with its last layer solved anew, every group of equal weight, and how; None where no attribute is seen or
        nobody answers. `ask` asks about `theta`.

        λ is chosen without truth and test set: clients are dealt to folds, a head is solved from the sums of all other
        folds, and each fold says how large its squared errors are; the λ is taken whose worst group is best.
        """
        matrices = self._known()
        if not self.sees_groups or not matrices:
            return None
        totals = sum(matrices.values(), np.zeros(1))
        weights = np.where(totals > 0, 1 / np.maximum(totals, 1), 0.0).astype(np.float32)
        d = min(head.dimensions, self.dimensions)
        folds = fold_of(matrices)
        question = GroupSums(self.seed, round, self.dimensions, weights=weights, confidence=self.confidence)
        of_fold = {
            fold: BalancedSums.of(
                answers(question, {k: self._sizes[k] for k in members}, ask, length=length(head.num_classes, d)),
                head.num_classes, d,
            )
            for fold, members in _members(folds).items()
        }  # fmt: skip
        everything = sum(list(of_fold.values())[1:], next(iter(of_fold.values())))
        if everything.weights.min(initial=np.inf) <= 0:
            return None
        errors = np.zeros((len(PENALTIES), totals.size))
        counts = np.zeros(totals.size)
        for fold, members in _members(folds).items() if len(of_fold) > 1 else []:
            rest = everything - of_fold[fold]
            if rest.weights.min() <= 0:
                continue
            heads = np.array([np.column_stack(solved) for solved in rest.heads()], np.float32)
            trial = HeadErrors(
                self.seed, round, self.dimensions, heads=heads, weights=weights, confidence=self.confidence
            )
            asked = {k: self._sizes[k] for k in members}
            for reply in answers(trial, asked, ask):
                assert reply.vector is not None
                errors += reply.vector[: errors.size].reshape(errors.shape)
                counts += reply.vector[errors.size :]
        place = best_penalty(errors, counts) if counts.any() else PENALTIES.index(1.0)
        weight, bias = everything.heads([PENALTIES[place]])[0]
        about = {
            "penalty": PENALTIES[place],
            "confidence": self.confidence,
            "folds": len(of_fold),
            "groups": totals.tolist(),
            "clients": len(matrices),
        }
        return head.written_into(theta, self._unprojected(weight, head.dimensions), bias), about

    def _unprojected(self, weight: Floats, dimensions: int) -> Floats:
        """A linear head on projected features as one on the features themselves."""
        if dimensions <= self.dimensions:
            return weight
        shared = seeding.rng(self.seed, "projection").standard_normal((dimensions, self.dimensions))
        return np.asarray(weight @ (shared / np.sqrt(dimensions)).T)

    def state(self) -> Plain:
        """What must be remembered between rounds."""
        return {"estimator": self.estimator.state()}

    def restore(self, state: Plain) -> None:
        """Take back what `state` gave."""
        if state:
            self.estimator.restore(state["estimator"])


def _members(folds: Mapping[int, int]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {fold: [] for fold in range(min(NUM_FOLDS, len(folds)))}
    for client, fold in folds.items():
        members[fold].append(client)
    return {fold: clients for fold, clients in members.items() if clients}
