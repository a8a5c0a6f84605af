"""How the server comes to know each client's triplet [CI, AI, SC] (paper, Sec. IV-A): one small seam, three ways."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import RunError, as_text
from feddiverse.heterogeneity import triplet
from feddiverse.messages import Ask, LabelCounts, Plain, TrueMatrix
from feddiverse.server.replies import answers

Triplet = NDArray[np.float64]  # [ci, ai, sc]
Matrix = NDArray[np.float64]  # [class, attribute]


class Estimator(ABC):
    """Finds triplets of clients. Called again for clients that come late; what was learnt is kept as plain data.

    >>> class Equal(Estimator):
    ...     def estimate(self, round, clients, ask):
    ...         return {client: np.full(3, 1 / 3) for client in clients}
    >>> Equal().estimate(1, {7: 100}, ask=None)[7].round(2).tolist()
    [0.33, 0.33, 0.33]

    `gives_matrices`: whether it can give `matrices`: client → its (estimated) interaction matrix, with attributes that
    mean the same on every client. They are None where it cannot, nobody answered yet, or `wants_matrices` is not set.
    `warnings`: what a reader of the triplets should know, one sentence each.
    """

    gives_matrices: ClassVar[bool] = False

    # Here, not in a constructor: that of one's own need not call ours.
    wants_matrices = False  # a selector that needs whole matrices says so: they tell more than three numbers
    remembered = False  # whether clients keep what they read, for balanced draws and sums
    matrices: dict[int, Matrix] | None = None
    warnings: Sequence[str] = ()

    @abstractmethod
    def estimate(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, Triplet]:
        """Triplets of `clients` (id → number of samples); clients that failed to answer are left out."""

    def state(self) -> Plain:
        """What must be remembered between rounds."""
        state: Plain = {"warnings": list(self.warnings)}
        if self.matrices is not None:
            state["matrices"] = {str(k): matrix for k, matrix in self.matrices.items()}
        return state

    def restore(self, state: Plain) -> None:
        """Take back what `state` gave."""
        self.warnings = list(state["warnings"])
        if "matrices" in state:
            self.matrices = {int(k): np.asarray(m, dtype=np.float64) for k, m in state["matrices"].items()}


def estimated(estimator: Estimator, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, Triplet]:
    """What an estimator finds. It may be anyone's, so three numbers of each client are insisted on."""
    found = {}
    for client, told in estimator.estimate(round, clients, ask).items():
        try:
            found[client] = np.asarray(told, np.float64)
        except (TypeError, ValueError):
            found[client] = np.empty(0)
        if found[client].shape != (3,) or not np.isfinite(found[client]).all():
            raise RunError(
                f"The estimator {type(estimator).__name__} found {as_text(told)} of client {client}, where three"
                " numbers are expected: CI, AI, SC."
            )
    return found


class Oracle(Estimator):
    """The true matrices. An upper bound for experiments: no real federation knows them."""

    gives_matrices = True

    def __init__(self, seed: int, num_classes: int, num_attributes: int) -> None:
        self.seed = seed
        self.shape = (num_classes, num_attributes)

    def estimate(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, Triplet]:
        self.matrices = self.matrices or {}
        found = {}
        question = TrueMatrix(self.seed, round, self.shape[1], remember=self.remembered)
        length = math.prod(self.shape)
        for reply in answers(question, clients, ask, length=length):
            matrix = reply.numbers.astype(np.float64).reshape(self.shape)
            self.matrices[reply.client] = matrix
            found[reply.client] = triplet(matrix)
        return found


class ClassCounts(Estimator):
    """Matrices of one column: how many samples of each class a client has. Attributes do not come into it."""

    gives_matrices = True

    def __init__(self, seed: int, num_classes: int) -> None:
        self.seed = seed
        self.num_classes = num_classes

    def estimate(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, Triplet]:
        self.matrices = self.matrices or {}
        found = {}
        for reply in answers(LabelCounts(self.seed, round), clients, ask, length=self.num_classes):
            self.matrices[reply.client] = reply.numbers.astype(np.float64)[:, None]
            found[reply.client] = triplet(self.matrices[reply.client])
        return found
