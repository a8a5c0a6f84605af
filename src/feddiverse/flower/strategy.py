"""Client selection for any Flower strategy: it decides how many to train and how to aggregate, our selector whom.

The wrapped strategy configures its own messages for as many nodes as it likes; we send the same contents to the nodes
our selector chose. So `fraction_train`, `min_train_nodes` and what else it knows keep their meaning, and nothing need
be known of it. (Showing it a grid of chosen nodes only would make it take a fraction of these, and wait for more.)
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from feddiverse import registry, seeding
from feddiverse.errors import UserError, as_text
from feddiverse.estimation.base import Oracle
from feddiverse.experiment.config import KEYS, from_mapping
from feddiverse.experiment.config import settings as settings_of
from feddiverse.flower import wire
from feddiverse.flower.engine import NAMED, FlowerEngine, Timeouts
from feddiverse.flower.heads import rebalanced
from feddiverse.messages import MOST, Plain, Reply, Task, Vector
from feddiverse.selection.base import Selector
from feddiverse.selection.hcsfed import HCSFed
from feddiverse.selection.limited import limited
from feddiverse.server.meter import Meter
from feddiverse.server.privacy import Privacy
from feddiverse.server.rounds import checked_choice
from feddiverse.server.secagg import SecureSums

NO_WEIGHTS = ("running_mean", "running_var", "num_batches_tracked")  # what BatchNorm counts, in a state_dict
NO_THETA = np.empty(0, np.float32)
NUMPY = "numpy.ndarray"  # Flower's name for the usual way to write an array


class Selecting(Strategy):
    """`strategy` with nodes chosen by a selector: a known name, `package.module:Class`, a class or an object.

    Settings are the selector's own parameters (those of its constructor), config keys (`lr`, `pow_d_candidates`, …),
    `num_classes` and `num_attributes`, for those selectors that need them, and `estimator`, likewise a name, a class or
    an object. Clients must answer questions: `feddiverse.flower.answer_questions`.

    `chosen`: round → the clients asked to train in it. `findings()`: what the selector has learnt of clients.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> strategy = Selecting(FedAvg(fraction_train=0.4), "pow_d", pow_d_candidates=20)
    >>> class Largest(Selector):
    ...     def choose(self, round, k, clients, ask, rng):
    ...         return sorted(clients, key=lambda client: -clients[client])[:k]
    >>> strategy = Selecting(FedAvg(fraction_train=0.4), Largest())
    """

    def __init__(
        self,
        strategy: Strategy,
        selector: str | Selector | type[Selector] = "uniform",
        *,
        seed: int = 0,
        pretraining_rounds: int | None = None,
        query_timeout: float = 600.0,
        secure_sums: SecureSums | bool = False,
        privacy_epsilon: float = 0.0,
        **settings: Any,
    ) -> None:
        """`pretraining_rounds`: rounds in which every client trains before the first choice (default: one for selectors
        that estimate triplets). `secure_sums`: hide clients' parts of sums from the server.
        `privacy_epsilon`: ε of the noise on each table of counts; your app trains, so noise on updates is its own."""
        self.strategy = strategy
        made = _make(selector, {**settings, "seed": seed})
        _check_answerable(made)
        if pretraining_rounds is None:
            pretraining_rounds = int(hasattr(made, "estimator"))
        self.selector = limited(made, float(settings.get("coverage", 0.0)))
        self.pretraining_rounds = pretraining_rounds
        self.chosen: dict[int, list[int]] = {}  # round → the clients asked to train
        self._seed = seed
        sums = SecureSums() if secure_sums is True else secure_sums or None
        self._privacy = Privacy(privacy_epsilon, sums=sums)
        self._timeouts = Timeouts(query=query_timeout, hello=query_timeout)
        self._engine: FlowerEngine | None = None
        self._warned: set[str] = set()
        self._theta: Vector | None = None

    def findings(self) -> Plain:
        """What the selector has learnt of clients by now: `triplets` by client id, where it estimates them."""
        return self.selector.findings()

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
            log(INFO, "%s", f"Round {server_round}: all {len(chosen)} clients train, before the first choice.")
        else:
            chosen = self._choose(server_round, len(messages), clients, engine, messages[0].content)
        self.chosen[server_round] = chosen
        self._theta = _flat(arrays) if self.selector.wants_updates else None
        return [
            _addressed(messages[i % len(messages)], node)
            for i, node in enumerate(engine.nodes[client] for client in chosen)
        ]

    def _choose(
        self, server_round: int, k: int, clients: Mapping[int, int], engine: FlowerEngine, model: RecordDict
    ) -> list[int]:
        """The selector's choice, told in one line; whose answers it could not use is told too."""
        meter = Meter(_AppEngine(engine, model), self._privacy)
        rng = seeding.rng(self._seed, "select", server_round)
        wanted = self.selector.choose(server_round, k, clients, meter.with_theta(NO_THETA), rng)
        chosen = _still_there(checked_choice(wanted, clients), engine.nodes, rng)
        for warning in (*meter.warnings(), *self.selector.warnings()):
            self._warn(warning)
        log(INFO, "%s", f"Round {server_round}: {self._description(chosen, len(clients))}")
        return chosen

    def _description(self, chosen: Sequence[int], num_clients: int) -> str:
        """Who was chosen, and by which triplets where the selector goes by triplets."""
        triplets = self.findings().get("triplets", {})
        named = []
        for client in chosen[:NAMED]:
            numbers = triplets.get(str(client))
            named.append(str(client) if numbers is None else f"{client} ({', '.join(f'{n:.2f}' for n in numbers)})")
        more = f" and {len(chosen) - NAMED} more" if len(chosen) > NAMED else ""
        what = " (CI, AI, SC)" if triplets else ""
        name = type(self.selector).__name__
        return f"{name} chose {len(chosen)} of {num_clients} clients{what}: {', '.join(named)}{more}."

    def _warn(self, warning: str) -> None:
        """In Flower's log, each sentence once."""
        if warning not in self._warned:
            self._warned.add(warning)
            log(WARNING, "%s", warning)

    def _connect(self, grid: Grid) -> FlowerEngine:
        """The engine through which we ask, which waits for all nodes that are there when it is made."""
        if self._engine is None:
            self._engine = FlowerEngine(grid, len(list(grid.get_node_ids())), self._timeouts)
        return self._engine

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As the wrapped strategy does, given the replies in the order of clients: sums then have one order.

        Replies that would spoil the average, or end the wrapped strategy's round, are left out.
        """
        sound = self._sound(server_round, replies)
        if server_round > self.pretraining_rounds and self.chosen.get(server_round):
            usable = [(c, m) for c, m in sound if c is not None and not m.has_error()]
            theta = NO_THETA if self._theta is None else self._theta
            self.selector.observe(server_round, theta, _with_steps([_seen(c, m, self._theta) for c, m in usable]))
        return self.strategy.aggregate_train(server_round, [message for _, message in sound])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's own business."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The wrapped strategy's own business, but for replies that would end its round."""
        return self.strategy.aggregate_evaluate(server_round, [m for _, m in self._sound(server_round, replies)])

    def _sound(self, server_round: int, replies: Iterable[Message]) -> list[tuple[int | None, Message]]:
        """Replies that can be averaged, each with its client, in the order of clients; others are told of. What a reply
        of the user's own app has to hold, most of the others show."""
        clients = {node: client for client, node in self._engine.nodes.items()} if self._engine else {}
        known = [(clients.get(m.metadata.src_node_id), m) for m in replies]
        ordered = sorted(known, key=lambda pair: (pair[0] is None, pair[0] or 0))
        problems = [None if message.has_error() else _problem(message.content) for _, message in ordered]
        forms = [
            None if problem or message.has_error() else _form(message.content)
            for problem, (_, message) in zip(problems, ordered, strict=True)
        ]
        usual = Counter(form for form in forms if form is not None).most_common(1)
        sound = []
        for (client, message), problem, form in zip(ordered, problems, forms, strict=True):
            if problem is None and form is not None and form != usual[0][0]:
                problem = "it sent other records, or arrays of other shapes, than most clients did"
            if problem is None:
                sound.append((client, message))
            else:
                who = f"node {message.metadata.src_node_id}" if client is None else f"client {client}"
                self._warn(f"Round {server_round}: {who} is left out: {problem}.")
        return sound

    def summary(self) -> None:
        """The wrapped strategy's own."""
        self.strategy.summary()

    def rebalance(
        self,
        grid: Grid,
        arrays: ArrayRecord,
        config: ConfigRecord | None = None,
        *,
        head: str = "",
        num_attributes: int = 2,
        dimensions: int = 2048,
    ) -> ArrayRecord:
        """The model with its last layer solved anew, every hidden group of equal weight: for the `arrays` of a result.

        `head`: the name of the last layer (`fc`, for `fc.weight` and `fc.bias`), if it is not the last with a bias of
        one number a class. `config` is for the wrapped strategy's train messages; features beyond `dimensions` are
        projected at random. Hidden groups are read with this model, and nothing need be remembered by clients. Where it
        cannot be done, Flower's log says why, and the model comes back as it was.
        """
        messages = list(self.strategy.configure_train(self._last_round + 1, arrays, config or ConfigRecord(), grid))
        if not messages:
            raise UserError("The wrapped strategy asks nobody to train, so there is no message to ask about its model.")
        engine = self._connect(grid)
        engine.greeting = messages[0].content
        meter = Meter(_AppEngine(engine, messages[0].content), self._privacy)
        exact = not self._privacy.epsilon
        changed, said = rebalanced(arrays, head, meter, self._seed, num_attributes, dimensions, exact)
        for warning in meter.warnings():
            self._warn(warning)
        if changed is None:
            self._warn(said)
            return arrays
        log(INFO, "%s", said)
        return changed

    @property
    def _last_round(self) -> int:
        return max(self.chosen, default=0)


class FedDiverse(Selecting):
    """`strategy` with clients that complement each other (paper, Sec. IV).

    The first `pretraining_rounds` rounds train every client, as the paper does, aggregated by the wrapped strategy.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> strategy = FedDiverse(FedAvg(fraction_train=0.4), num_classes=10)
    >>> strategy.triplets  # filled by the first choice
    {}
    """

    def __init__(
        self,
        strategy: Strategy,
        num_classes: int,
        num_attributes: int = 2,
        *,
        estimator: Any = "consensus",
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
        return {int(client): triplet for client, triplet in self.findings()["triplets"].items()}


@dataclass(frozen=True)
class _AppEngine:
    """The engine with the model in the records of the user's own app, where ours has one vector θ."""

    engine: FlowerEngine
    model: RecordDict

    @property
    def clients(self) -> Mapping[int, int]:
        return self.engine.clients

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        return self.engine.ask_about(task, self.model, clients)

    def close(self) -> None:
        self.engine.close()


def _make(selector: Any, given: dict[str, Any]) -> Selector:
    """The selector, by the registry: its own parameters are what is given and no config key."""
    if not isinstance(selector, str | type):
        if others := given.keys() - {"seed"}:
            raise UserError(
                f"The setting '{min(others)}' cannot reach a selector that is made already: give it to"
                f" {type(selector).__name__}, or name the selector instead."
            )
        same: Selector = registry.make(registry.SELECTOR, selector, {})  # refuses what is no selector
        return same
    own = {name: value for name, value in given.items() if name not in KEYS and "." not in name}
    num_classes, estimator = own.pop("num_classes", None), given.get("estimator", "consensus")
    keys = {name: value for name, value in given.items() if name not in (*own, "num_classes", "estimator")}
    config = from_mapping(keys, "the settings of the strategy")
    known: dict[str, Any] = {
        **settings_of(config, num_classes=0, num_attributes=2, num_selected=0),
        "num_classes": num_classes or registry.Later(_no_classes),
        "estimator": registry.Later(
            lambda: registry.make(registry.ESTIMATOR, estimator, known | unneeded, config.parameters("estimator"))
        ),
    }
    # The paper's estimator only checks answers by it.
    unneeded = {"num_classes": num_classes or 0} if estimator == "paper" else {}
    made: Selector = registry.make(registry.SELECTOR, selector, known, {**config.parameters("selector"), **own})
    return made


def _no_classes() -> Any:
    raise UserError("This selector must know how many classes there are: give the strategy num_classes=….")


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


def _problem(content: RecordDict) -> str | None:
    """What is wrong with a reply to a train message that no strategy could average; None: nothing."""
    for arrays in content.array_records.values():
        for name, array in arrays.items():
            if array.stype == NUMPY:  # others are for the wrapped strategy to read
                try:
                    values = array.numpy()
                except Exception:
                    return f"its {as_text(name)} cannot be read"
                if np.issubdtype(values.dtype, np.inexact) and not np.isfinite(values).all():
                    return f"its {as_text(name)} is not all finite"
    for numbers in content.metric_records.values():
        try:
            wire.natural(wire.NUM_EXAMPLES, numbers.get(wire.NUM_EXAMPLES, 0), MOST)
        except (TypeError, ValueError) as error:
            return f"its {as_text(error)}"
    return None


def _form(content: RecordDict) -> tuple[Any, ...]:
    """What must be the same in all replies for them to be averaged: names of records and keys, and arrays' shapes."""
    arrays = {
        (record, name, tuple(array.shape))
        for record, held in content.array_records.items()
        for name, array in held.items()
    }
    numbers = {
        (record, name, isinstance(value, list))
        for record, held in content.metric_records.items()
        for name, value in held.items()
    }
    return frozenset(content.array_records), frozenset(arrays), frozenset(content.metric_records), frozenset(numbers)


def _seen(client: int, message: Message, theta: Vector | None) -> Reply:
    """What a selector may learn of a reply to a train message: its numbers, and its weights where they are wanted."""
    numbers = next(iter(message.content.metric_records.values()), MetricRecord())
    metrics = {
        name: float(value)
        for name, value in numbers.items()
        if isinstance(value, int | float) and abs(value) <= wire.LARGEST  # neither NaN nor infinite
    }
    arrays = next(iter(message.content.array_records.values()), None)
    vector = None if theta is None or arrays is None else _flat(arrays)
    if vector is not None and theta is not None and vector.shape != theta.shape:
        vector = None
    return Reply(client, num_examples=int(metrics.get(wire.NUM_EXAMPLES, 0)), vector=vector, metrics=metrics)


def _with_steps(replies: list[Reply]) -> list[Reply]:
    """Where not every client says how many steps it took, `steps` is its number of samples, which grows alike.

    FedPNS compares updates per step, and only their ratio matters.
    """
    if all(reply.metrics.get("steps", 0) > 0 for reply in replies):
        return replies
    return [replace(reply, metrics={**reply.metrics, "steps": float(reply.num_examples)}) for reply in replies]
