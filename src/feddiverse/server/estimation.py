"""How the server comes to know each client's triplet [CI, AI, SC] (paper, Sec. IV-A): one small seam, three ways.

`oracle` asks for the true interaction matrix (experiments only), `paper` lets each client train a biased model and
send three numbers, `consensus` (in its own file) reads the attribute off what differs between clients.
"""

import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import UserError
from feddiverse.heterogeneity import triplet
from feddiverse.messages import EVALUATION_ONLY, Ask, PaperTriplet, Plain, Reply, Task, TrueMatrix
from feddiverse.server import quality
from feddiverse.server.meter import Asking

Triplet = NDArray[np.float64]  # [ci, ai, sc]
Matrix = NDArray[np.float64]  # [class, attribute]

TRIPLET = ("ci", "ai", "sc")
ROUNDING = 1e-6  # how far out of [0, 1] a triplet may be that was computed or sent with less precision

Check = Callable[[Reply], str | None]
"""What is wrong with a reply, if anything."""


class Estimator:
    """Finds triplets of clients. Called again for clients that come late; what was learnt is kept as plain data.

    `gives_matrices`: whether it can give `matrices`: client → its (estimated) interaction matrix, with attributes that
    mean the same on every client. They are None where it cannot, nobody answered yet, or `wants_matrices` is not set.
    `confusion`: [estimated attribute, true attribute] over all samples seen so far, for evaluation only; None unless
    the estimator was built with `evaluation=True` in an experiment where the truth is known.
    `warnings`: what a reader of the triplets should know, one sentence each.
    """

    gives_matrices: ClassVar[bool] = False

    def __init__(self) -> None:
        self.wants_matrices = False  # a selector that needs whole matrices says so: they tell more than three numbers
        self.matrices: dict[int, Matrix] | None = None
        self.confusion: NDArray[np.float64] | None = None
        self.warnings: list[str] = []

    def estimate(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, Triplet]:
        """Triplets of `clients` (id → number of samples); clients that failed to answer are left out."""
        raise NotImplementedError

    def evaluate(self, reply: Reply, own_names: bool = False) -> None:
        """Add a client's comparison of estimated and true attributes, where it sent one, to `confusion`.

        `own_names`: what the client calls attribute 0, 1, … is its own business, so its best naming counts.
        """
        cells = {name: n for name, n in reply.metrics.items() if name.startswith(EVALUATION_ONLY)}
        if not cells:
            return
        where = np.array([name.removeprefix(EVALUATION_ONLY).split(".") for name in cells], dtype=np.int64)
        known = 2 if self.confusion is None else len(self.confusion)
        part = np.zeros([max(known, where.max() + 1)] * 2)
        part[tuple(where.T)] = list(cells.values())
        if own_names:
            part = part[quality.best_naming(part)]
        if self.confusion is not None:
            part[:known, :known] += self.confusion
        self.confusion = part

    def state(self) -> Plain:
        """What must be remembered between rounds."""
        state: Plain = {"warnings": list(self.warnings)}
        if self.confusion is not None:
            state["confusion"] = self.confusion
        if self.matrices is not None:
            state["matrices"] = {str(k): matrix for k, matrix in self.matrices.items()}
        return state

    def restore(self, state: Plain) -> None:
        """Take back what `state` gave."""
        self.warnings = list(state["warnings"])
        if "confusion" in state:
            self.confusion = np.asarray(state["confusion"], dtype=np.float64)
        if "matrices" in state:
            self.matrices = {int(k): np.asarray(m, dtype=np.float64) for k, m in state["matrices"].items()}


def answers(
    task: Task,
    clients: Mapping[int, int],
    ask: Ask,
    *,
    length: int | None = None,
    metrics: tuple[str, ...] = (),
    check: Check = lambda reply: None,
) -> Iterator[Reply]:
    """Ask every client, the largest first (so that none is left alone at the end); leave out those without an answer.

    A client may be anyone's code: an answer that lacks one of `metrics`, has a number that is not finite, a vector of
    another length than `length` (None: any), or does not pass `check` is no answer. The loop's `ask` is told, so that
    the run can warn of it.
    """
    ids = sorted(clients, key=lambda k: (-clients[k], k))
    for reply in ask(task, ids):
        if reply.failure is not None:
            continue
        problem = _problem(reply, length, metrics) or check(reply)
        if problem is None:
            yield reply
        elif isinstance(ask, Asking):
            ask.leave_out(task, reply.client, problem)


def _problem(reply: Reply, length: int | None, metrics: tuple[str, ...]) -> str | None:
    if missing := [name for name in metrics if name not in reply.metrics]:
        return f"its answer lacks {missing[0]}"
    vector = np.empty(0, np.float32) if reply.vector is None else reply.vector
    if not (np.isfinite(vector).all() and np.isfinite(list(reply.metrics.values())).all()):
        return "its numbers are not all finite"
    if length is not None and vector.size != length:
        return f"it sent {vector.size:,} numbers where {length:,} are expected"
    return None


def check_counts(reply: Reply) -> str | None:
    """A vector of counts has none below zero, and counts something."""
    assert reply.vector is not None
    return "its counts are negative or all zero" if reply.vector.min() < 0 or not reply.vector.any() else None


def check_triplet(reply: Reply) -> str | None:
    """CI, AI and SC are within [0, 1] by definition; selectors rely on it."""
    outside = [name for name in TRIPLET if not -ROUNDING <= reply.metrics[name] <= 1 + ROUNDING]
    return f"its {outside[0]} is {reply.metrics[outside[0]]:g}, not within [0, 1]" if outside else None


def triplet_in(reply: Reply) -> Triplet:
    """The three numbers a client sent, which passed `check_triplet`."""
    return np.clip([reply.metrics[name] for name in TRIPLET], 0.0, 1.0)


class Oracle(Estimator):
    """The true matrices. An upper bound for experiments: no real federation knows them."""

    gives_matrices = True

    def __init__(self, seed: int, num_classes: int, num_attributes: int) -> None:
        super().__init__()
        self.seed = seed
        self.shape = (num_classes, num_attributes)

    def estimate(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, Triplet]:
        self.matrices = self.matrices or {}
        found = {}
        question, length = TrueMatrix(self.seed, round, self.shape[1]), math.prod(self.shape)
        for reply in answers(question, clients, ask, length=length, check=check_counts):
            assert reply.vector is not None
            matrix = reply.vector.astype(np.float64).reshape(self.shape)
            self.matrices[reply.client] = matrix
            found[reply.client] = triplet(matrix)
        return found


class Paper(Estimator):
    """The paper's own estimator: each client trains a biased model on its data and sends three numbers.

    What a client calls attribute 0 another may call attribute 1, so there are no matrices to share.
    """

    def __init__(
        self,
        seed: int,
        gce_q: float = 0.3,
        bias_steps: int = 50,
        attribute_steps: int = 10,
        batch_size: int = 28,
        lr: float = 0.001,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        evaluation: bool = False,
    ) -> None:
        super().__init__()
        self.question = PaperTriplet(
            seed, 0, gce_q, bias_steps, attribute_steps, batch_size, lr, momentum, weight_decay, evaluation
        )

    def estimate(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, Triplet]:
        found = {}
        question = replace(self.question, round=round)
        for reply in answers(question, clients, ask, length=0, metrics=TRIPLET, check=check_triplet):
            found[reply.client] = triplet_in(reply)
            # A client's own labels are all it knows: it is given the naming of them that suits it best.
            self.evaluate(reply, own_names=True)
        return found


ESTIMATORS = {
    "paper": "feddiverse.server.estimation:Paper",
    "consensus": "feddiverse.server.consensus:Consensus",
    "oracle": "feddiverse.server.estimation:Oracle",
}


def build(name: str, settings: Mapping[str, Any]) -> Estimator:
    """The estimator called `name`, or `package.module:Class`. It gets those settings its constructor names."""
    address = ESTIMATORS.get(name, name)
    module, colon, attribute = address.partition(":")
    if not colon:
        raise UserError(
            f"There is no estimator {name!r}; choose one of {', '.join(ESTIMATORS)}, or package.module:Class."
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: no path of a package
        raise UserError(
            f"The estimator {name!r} cannot be loaded ({error}); name it as package.module:Class."
        ) from error
    if not (inspect.isclass(found) and issubclass(found, Estimator)):
        raise UserError(f"{name!r} is no feddiverse.server.estimation.Estimator; derive it from that class.")
    values = {}
    for parameter in inspect.signature(found).parameters.values():
        if parameter.name in settings:
            values[parameter.name] = settings[parameter.name]
        elif parameter.default is parameter.empty:
            raise UserError(f"The estimator {name!r} needs the setting {parameter.name!r}, which is not given.")
    made: Estimator = found(**values)
    return made
