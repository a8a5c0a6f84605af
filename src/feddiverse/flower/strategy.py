"""Client selection for any Flower strategy: it decides how many to train and how to aggregate, our selector whom.

The wrapped strategy configures its own messages for as many nodes as it likes; we send the same contents to the nodes
our selector chose. So `fraction_train`, `min_train_nodes` and what else it knows keep their meaning, and nothing need
be known of it. (Showing it a grid of chosen nodes only would make it take a fraction of these, and wait for more.)
"""

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from feddiverse import registry, seeding
from feddiverse.errors import UserError
from feddiverse.estimation.base import Oracle
from feddiverse.experiment.config import Config
from feddiverse.flower import wire
from feddiverse.flower.engine import FlowerEngine, Notices, Timeouts
from feddiverse.messages import Reply, Task, Vector
from feddiverse.selection.base import Selector
from feddiverse.selection.hcsfed import HCSFed

NO_WEIGHTS = ("running_mean", "running_var", "num_batches_tracked")  # what BatchNorm counts, in a state_dict


class Selecting(Strategy):
    """`strategy` with nodes chosen by one of our selectors, by name or as an object.

    Settings are config keys (`lr`, `pow_d_candidates`, …), `num_classes` and `num_attributes`, for those selectors that
    need them. Clients must answer questions: `feddiverse.flower.answer_questions`.
    """

    def __init__(
        self,
        strategy: Strategy,
        selector: str | Selector = "uniform",
        *,
        seed: int = 0,
        pretraining_rounds: int | None = None,
        query_timeout: float = 600.0,
        **settings: Any,
    ) -> None:
        """`pretraining_rounds`: rounds in which every client trains before the first choice (default: one for selectors
        that estimate triplets)."""
        if settings and isinstance(selector, Selector):
            raise UserError(
                f"The setting '{min(settings)}' cannot reach a selector that is made already: give it to"
                f" {type(selector).__name__}, or name the selector instead."
            )
        self.strategy = strategy
        self.selector = selector if isinstance(selector, Selector) else _build(selector, {**settings, "seed": seed})
        _check_answerable(self.selector)
        if pretraining_rounds is None:
            pretraining_rounds = int(hasattr(self.selector, "estimator"))
        self.pretraining_rounds = pretraining_rounds
        self.chosen: dict[int, list[int]] = {}  # round → the clients asked to train
        self._seed = seed
        self._timeouts = Timeouts(query=query_timeout, hello=query_timeout)
        self._engine: FlowerEngine | None = None
        self._notices = Notices()
        self._warnings: set[str] = set()  # of the selector, told already
        self._theta: Vector | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages, addressed to the nodes of the chosen clients."""
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        if not messages:
            return messages
        engine = self._connect(grid)
        engine.greeting = messages[0].content
        clients = engine.clients
        if server_round <= self.pretraining_rounds:
            chosen = sorted(clients)
        else:
            ask = functools.partial(self._ask, engine, messages[0].content)
            rng = seeding.rng(self._seed, "select", server_round)
            chosen = self.selector.choose(server_round, len(messages), clients, ask, rng)
            chosen = _still_there(chosen, engine.nodes, rng)
            self._tell_warnings()
        self.chosen[server_round] = chosen
        self._theta = _flat(arrays) if self.selector.wants_updates else None
        return [
            _addressed(messages[i % len(messages)], node)
            for i, node in enumerate(engine.nodes[client] for client in chosen)
        ]

    def _ask(self, engine: FlowerEngine, model: RecordDict, task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        """A selector's question; who fails to answer is told in the log, since selectors do without."""
        failed = defaultdict(list)
        for reply in engine.ask_about(task, model, clients):
            if reply.failure is not None:
                failed[reply.failure].append(reply.client)
            yield reply
        for reason, who in failed.items():
            self._notices.tell("client", who, f"no answer to {wire.message_type(task)}: {reason}")

    def _tell_warnings(self) -> None:
        """What the selector has to say of its choices, each sentence once."""
        for warning in self.selector.warnings():
            if warning not in self._warnings:
                self._warnings.add(warning)
                log(WARNING, "%s", warning)

    def _connect(self, grid: Grid) -> FlowerEngine:
        """The engine through which we ask, which waits for all nodes that are there when it is made."""
        if self._engine is None:
            self._engine = FlowerEngine(grid, len(list(grid.get_node_ids())), self._timeouts)
        return self._engine

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As the wrapped strategy does, given the replies in the order of clients: sums then have one order."""
        clients = {node: client for client, node in self._engine.nodes.items()} if self._engine else {}
        known = [(clients.get(m.metadata.src_node_id), m) for m in replies]
        ordered = sorted(known, key=lambda pair: (pair[0] is None, pair[0] or 0))
        if server_round > self.pretraining_rounds and self.chosen.get(server_round):
            usable = [(c, m) for c, m in ordered if c is not None and not m.has_error()]
            theta = np.empty(0, np.float32) if self._theta is None else self._theta
            self.selector.observe(server_round, theta, _with_steps([_seen(c, m, self._theta) for c, m in usable]))
        return self.strategy.aggregate_train(server_round, [message for _, message in ordered])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's own business."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The wrapped strategy's own business."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """The wrapped strategy's own."""
        self.strategy.summary()


class FedDiverse(Selecting):
    """`strategy` with clients that complement each other (paper, Sec. IV).

    The first `pretraining_rounds` rounds train every client, as the paper does, aggregated by the wrapped strategy.

    >>> strategy = FedDiverse(FedAvg(fraction_train=0.4), num_classes=10)
    """

    def __init__(
        self,
        strategy: Strategy,
        num_classes: int,
        num_attributes: int = 2,
        *,
        estimator: str = "consensus",
        pretraining_rounds: int = 1,
        **settings: Any,
    ) -> None:
        super().__init__(
            strategy,
            "feddiverse",
            num_classes=num_classes,
            num_attributes=num_attributes,
            estimator=estimator,
            pretraining_rounds=pretraining_rounds,
            **settings,
        )

    @property
    def triplets(self) -> dict[int, list[float]]:
        """What is known of clients by now: id → [CI, AI, SC]."""
        return {int(client): triplet for client, triplet in self.selector.findings()["triplets"].items()}


def _build(name: str, settings: dict[str, Any]) -> Selector:
    defaults = Config(selector=name).plain() | {"num_attributes": 2}
    if unknown := settings.keys() - defaults.keys() - {"num_classes"}:
        raise UserError(f"There is no setting '{min(unknown)}': settings are config keys and num_classes.")
    known: dict[str, Any] = {**defaults, **settings}
    estimator = known["estimator"]
    known["estimator"] = registry.Later(lambda: registry.make(registry.ESTIMATOR, estimator, known))
    made: Selector = registry.make(registry.SELECTOR, name, known)
    return made


def _check_answerable(selector: Selector) -> None:
    """Some questions only our own clients can answer: who needs these would choose at random here, and not say so."""
    if isinstance(selector, HCSFed):
        raise UserError(
            "The selector 'hcsfed' does not work inside your own Flower app: it has clients train for itself, which"
            " only your app knows how to do; choose another selector."
        )
    if isinstance(getattr(selector, "estimator", None), Oracle):
        raise UserError(
            "The estimator 'oracle' does not work inside your own Flower app: it asks for the true attributes, which"
            " nobody knows there; choose 'consensus' or 'paper'."
        )


def _still_there(chosen: Sequence[int], there: Collection[int], rng: np.random.Generator) -> list[int]:
    """Who went away while being asked is replaced by anyone who did not, as long as there are such clients."""
    stayed = [client for client in chosen if client in there]
    others = sorted(set(there) - set(stayed))
    return stayed + [others[i] for i in rng.permutation(len(others))[: len(chosen) - len(stayed)]]


def _addressed(message: Message, node: int) -> Message:
    about = message.metadata
    return Message(message.content, node, about.message_type, ttl=about.ttl, group_id=about.group_id)


def _flat(arrays: ArrayRecord) -> Vector:
    """The weights as one vector, by name, as clients may order them otherwise; counters and statistics are none."""
    weights = [array.numpy() for name, array in sorted(arrays.items()) if name.rpartition(".")[2] not in NO_WEIGHTS]
    floating = [array.ravel() for array in weights if np.issubdtype(array.dtype, np.floating)]
    return np.concatenate([np.empty(0, np.float32), *floating]).astype(np.float32)


def _seen(client: int, message: Message, theta: Vector | None) -> Reply:
    """What a selector may learn of a reply to a train message: its numbers, and its weights where they are wanted."""
    numbers = next(iter(message.content.metric_records.values()), MetricRecord())
    metrics = {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}
    arrays = next(iter(message.content.array_records.values()), None)
    vector = None if theta is None or arrays is None else _flat(arrays)
    if vector is not None and theta is not None and (vector.shape != theta.shape or not np.isfinite(vector).all()):
        vector = None
    try:
        num_examples = wire.natural(wire.NUM_EXAMPLES, metrics.get(wire.NUM_EXAMPLES, 0))
    except ValueError:  # for the wrapped strategy to judge; a selector learns nothing from it
        num_examples = 0
    return Reply(client, num_examples=num_examples, vector=vector, metrics=metrics)


def _with_steps(replies: list[Reply]) -> list[Reply]:
    """Where not every client says how many steps it took, `steps` is its number of samples, which grows alike.

    FedPNS compares updates per step, and only their ratio matters.
    """
    if all("steps" in reply.metrics for reply in replies):
        return replies
    return [replace(reply, metrics={**reply.metrics, "steps": float(reply.num_examples)}) for reply in replies]
