"""How good θ is: on the server's test set, on samples that clients hold out (federated evaluation), or on both.

Where nobody knows the attributes of these samples, hidden groups are read off them as the consensus estimator does,
once, with the model that the run starts from: the same groups for every method, before training bends its features.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from feddiverse.estimation.consensus import Consensus
from feddiverse.messages import MOST, Ask, EvaluateHeldOut, Plain, ReadHeldOut, Reply, Task, Vector
from feddiverse.server.groups import LEAST, Accuracies, HeldOut, accuracies, with_estimated
from feddiverse.server.meter import Meter
from feddiverse.server.replies import answers

TestSet = Callable[[Vector], NDArray[np.int64]]
"""θ → [2, classes, attributes]: right answers and samples on the server's test set."""
AskTestSet = Callable[[Task, Vector], Iterator[Reply]]

CONFIDENCE = 0.9  # posterior from which a sample counts in an estimated group: half of a rare one's would else be false
NOT_SEEN = "No hidden attribute is seen, so there is no worst estimated group."
TOO_FEW = f"No client holds out {LEAST} samples or more, so there is no worst client."


@dataclass(frozen=True)
class Tested:
    """`test`: on the server's test set, or on held-out samples where there is none; `held_out`: on those alone."""

    test: Accuracies | None
    held_out: HeldOut | None = None
    warnings: tuple[str, ...] = ()


class GroupReader:
    """Has those who keep test samples read which hidden group each belongs to. `theta`: the model to read with."""

    def __init__(self, estimator: Consensus, theta: Vector, ask_test_set: AskTestSet | None) -> None:
        self.estimator = estimator
        self.theta = theta
        self._ask_test_set = ask_test_set  # None: there is none, or its attributes are known
        self._has_read: set[int] = set()  # in this session: clients may forget when the server goes away
        self._test_set_is_read = False

    def read(self, round: int, clients: Mapping[int, int], ask: Ask, held_out: bool) -> int:
        """How many attribute values are told apart; 0: none are. `ask` asks about `theta`."""
        reading = self.estimator.learn(round, clients, ask)
        if reading is None or reading["shares"].shape[1] < 2:
            return 0
        task = ReadHeldOut(self.estimator.seed, round, self.estimator.dimensions, **reading)
        new = {client: size for client, size in clients.items() if client not in self._has_read}
        if held_out and new:
            self._has_read |= {reply.client for reply in answers(task, new, ask, length=0)}
        if self._ask_test_set is not None and not self._test_set_is_read:
            for _ in self._ask_test_set(task, self.theta):
                pass
            self._test_set_is_read = True
        return int(reading["shares"].shape[1])


class Evaluation:
    """Tests θ as the run asks for.

    `test_set`: the server's (None: it has none); `attributes_known`: of its samples. `held_out`: whether clients test θ
    on samples of their own, and `share` how many of them: who counts more is not believed (0: any number).
    `reader`: reads hidden groups (None: nobody asked for them).
    """

    def __init__(
        self,
        test_set: TestSet | None = None,
        attributes_known: bool = True,
        *,
        held_out: bool = False,
        share: float = 0.0,
        reader: GroupReader | None = None,
        ask_test_set: AskTestSet | None = None,
        num_classes: int = 0,
        seed: int = 0,
    ) -> None:
        self.test_set, self.attributes_known, self.held_out = test_set, attributes_known, held_out
        self.reader, self.num_classes, self.seed, self.share = reader, num_classes, seed, share
        self._ask_test_set = ask_test_set

    @property
    def is_possible(self) -> bool:
        return self.test_set is not None or self.held_out

    def __call__(self, round: int, theta: Vector, clients: Mapping[int, int], meter: Meter) -> Tested:
        """Accuracies of θ; questions to clients are counted by `meter`."""
        num_read, warnings = 0, []
        if self.reader is not None:
            num_read = self.reader.read(round, clients, meter.with_theta(self.reader.theta), self.held_out)
            warnings = [*self.reader.estimator.warnings, *([] if num_read else [NOT_SEEN])]
        task = EvaluateHeldOut(self.seed, round, num_read, CONFIDENCE)
        held_out = self._ask_clients(task, clients, meter.with_theta(theta)) if self.held_out else None
        if held_out is not None and held_out.worst_client is None:
            warnings.append(TOO_FEW)
        test: Accuracies | None = held_out
        if self.test_set is not None:
            test = self._on_test_set(task, theta)
        return Tested(test, held_out, tuple(warnings))

    def _on_test_set(self, task: EvaluateHeldOut, theta: Vector) -> Accuracies:
        assert self.test_set is not None
        if self.attributes_known or not task.num_attributes or self._ask_test_set is None:
            return accuracies(self.test_set(theta), self.attributes_known)
        total = sum((_table(reply) for reply in self._ask_test_set(task, theta)), np.zeros(1))
        return self._split(total)

    def _ask_clients(self, task: EvaluateHeldOut, clients: Mapping[int, int], ask: Ask) -> HeldOut | None:
        """The sum of all clients' counts, and what each of them gets right; None: nobody answered."""
        length = 2 * self.num_classes * (1 + task.num_attributes)
        check = partial(_check, self.num_classes, self.share)
        tables = {reply.client: _table(reply) for reply in answers(task, clients, ask, length=length, check=check)}
        total = sum((tables[client] for client in sorted(tables)), np.zeros(length))
        if not total[self.num_classes : 2 * self.num_classes].any():
            return None
        of_client = {
            client: tuple(table[: 2 * self.num_classes].reshape(2, -1).sum(axis=1).tolist())
            for client, table in sorted(tables.items())
        }
        return HeldOut.of(self._split(total), of_client)

    def _split(self, total: NDArray[np.float64]) -> Accuracies:
        """From the sum of answers to `EvaluateHeldOut`."""
        of_class, of_group = np.split(np.rint(total).astype(np.int64), [2 * self.num_classes])
        found = accuracies(of_class.reshape(2, self.num_classes, 1), attributes_known=False)
        return with_estimated(found, of_group.reshape(2, self.num_classes, -1)) if of_group.size else found

    def state(self) -> Plain:
        """What must be remembered between sessions: how groups are read."""
        return {} if self.reader is None else {"groups": self.reader.estimator.state()}

    def restore(self, state: Plain) -> None:
        """Take back what `state` gave."""
        if self.reader is not None and state.get("groups"):
            self.reader.estimator.restore(state["groups"])


def of_test_set(evaluate: "TestSet | Evaluation | None", attributes_known: bool) -> Evaluation:
    """A function of θ is a test set."""
    return evaluate if isinstance(evaluate, Evaluation) else Evaluation(evaluate, attributes_known)


def _table(reply: Reply) -> NDArray[np.float64]:
    return reply.numbers.astype(np.float64)


def _check(num_classes: int, share: float, reply: Reply) -> str | None:
    """Counts are whole and not negative, no more answers are right than there are samples, and of these no more than a
    client with so many samples to train on holds out (`data.holdout`: rounded for each class)."""
    counts = _table(reply)
    if (counts < 0).any() or (counts != np.rint(counts)).any():
        return "its counts are not all whole numbers"
    of_class, of_group = (part.reshape(2, -1) for part in np.split(counts, [2 * num_classes]))
    if (of_class[0] > of_class[1]).any() or (of_group[0] > of_group[1]).any():
        return "it counts more right answers than samples"
    if of_group[1].sum() > of_class[1].sum():
        return "it counts more samples in groups than in classes"
    most = (share * (reply.num_examples + num_classes / 2) / (1 - share) + num_classes / 2) if share else MOST
    if (held := of_class[1].sum()) > most:
        return f"it counts {held:,.0f} samples held out, where {reply.num_examples:,} to train on leave {most:,.0f}"
    return None
