"""The engine over Flower's grid: the same questions, to nodes on many machines.

Clients are named by their partition, not by node ids, which are random in every run. A reply is recognised by the
message it answers, so it does not matter in which order replies come, or who says that a node is gone.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from feddiverse.errors import RunError, as_text
from feddiverse.flower import wire
from feddiverse.messages import Reply, Task, Train, Vector

PUSHED_AT_ONCE = 256  # messages in one request to the SuperLink
PULLED_AHEAD = 16  # replies fetched before it is their turn; the rest wait at the SuperLink, not in our memory
SHORTEST_POLL, LONGEST_POLL, GROWTH = 0.005, 0.5, 1.1  # seconds; so a reply waits a tenth of its time at most
GONE = (3, 4, 5)  # Flower's error codes for a message that expired, a reply that did, and a node that is away
NO_LIMIT = 12 * 3600.0  # how long Flower keeps messages anyway
NOBODY = -1  # no client's id
NAMED = 10  # clients or nodes that one warning lists


@dataclass(frozen=True)
class Timeouts:
    """Seconds to wait for all answers to one question; `hello`: for clients to be there at all."""

    train: float = NO_LIMIT
    query: float = NO_LIMIT
    hello: float = 300.0

    def of(self, task: Task) -> float:
        return self.train if isinstance(task, Train) else self.query


class Notices:
    """Warnings in Flower's log. Each is given once of each client or node, though it may be true in every round."""

    def __init__(self) -> None:
        self._told: set[tuple[str, int]] = set()

    def tell(self, kind: str, numbers: Iterable[int], what: str) -> None:
        """That `what` is true of the clients or nodes (`kind`) with these numbers."""
        new = sorted({number for number in numbers if (what, number) not in self._told})
        if new:
            self._told |= {(what, number) for number in new}
            more = f" and {len(new) - NAMED} more" if len(new) > NAMED else ""
            log(WARNING, "%s %s%s: %s", kind, ", ".join(map(str, new[:NAMED])), more, what)


class FlowerEngine:
    """Asks clients through `grid`. The first question waits until `expected` clients are there (fewer, if nodes
    say that there are fewer partitions). `num_clients`: how many the federation has; None: whoever comes is a client.

    A client that does not answer in time is left out until its node says who it is again: when it is back.
    """

    def __init__(
        self, grid: Grid, expected: int = 1, timeouts: Timeouts | None = None, num_clients: int | None = None
    ) -> None:
        self._grid = grid
        self._num_clients = num_clients
        self._expected = expected
        self._timeouts = timeouts or Timeouts()
        self.greeting = RecordDict()  # what nodes may need to know in order to say who they are
        self.num_partitions = 0  # as nodes say; 0: none said
        self.nodes: dict[int, int] = {}  # client → the node it is reached at
        self._sizes: dict[int, int] = {}
        self._greeted: dict[str, int] = {}  # unanswered greeting → node
        self._refused: dict[int, str] = {}  # node → why it is no client of ours, for now
        self._replaced: set[int] = set()  # nodes whose partition came back under another node
        self._notices = Notices()

    def check(self) -> None:
        """Called while we wait: raises where it can be known that nobody will answer any more."""

    def wait(self, seconds: float) -> None:
        """Until somebody may have answered, `seconds` at most. Flower tells nobody: one has to look again."""
        time.sleep(seconds)

    @property
    def clients(self) -> Mapping[int, int]:
        """The clients there now: id → number of training samples. Who comes back, or was refused, is greeted here."""
        self._refused.clear()  # what made a node fail last time may be over
        deadline = time.monotonic() + self._timeouts.hello
        for _ in self._until(deadline):
            self.check()
            self._meet()
            if len(self._sizes) + len(self._refused) + len(self._replaced) >= self._expected:
                break
        for reason in sorted(set(self._refused.values())):
            nodes = [node for node, its_reason in self._refused.items() if its_reason == reason]
            self._notices.tell("node", nodes, f"left out until the next round, when it is greeted again: {reason}")
        if not self._sizes:
            raise self._nobody()
        self._expected = 1  # from now on the run goes on with those who are there
        return dict(sorted(self._sizes.items()))

    def _nobody(self) -> RunError:
        if not self._refused:
            return RunError(f"No client said who it is within {self._timeouts.hello:.0f} s: are SuperNodes connected?")
        node, reason = next(iter(self._refused.items()))
        return RunError(
            f"No client said who it is, {len(self._refused)} nodes failed to: does their ClientApp answer our"
            f" questions? Node {node}: {reason}"
        )

    def _meet(self) -> None:
        """Forget who is gone, greet who is new, hear who answered. Waits for nobody."""
        online = set(self._grid.get_node_ids())
        for client in [client for client, node in self.nodes.items() if node not in online]:
            self._forget(client)
        self._greeted = {message: node for message, node in self._greeted.items() if node in online}
        self._refused = {node: reason for node, reason in self._refused.items() if node in online}
        self._replaced &= online
        known = {*self.nodes.values(), *self._greeted.values(), *self._refused, *self._replaced}
        strangers = online - known
        greetings = [Message(self.greeting, node, wire.HELLO, ttl=self._timeouts.hello) for node in sorted(strangers)]
        self._push(greetings)
        self._greeted |= {m.metadata.message_id: m.metadata.dst_node_id for m in greetings}
        for answered, message in self._pull(self._greeted).items():
            self._hear(self._greeted.pop(answered), message)

    def _hear(self, node: int, message: Message) -> None:
        """A node's answer to our greeting. One that makes no sense is no client of ours (until it is greeted anew)."""
        if message.has_error():
            if message.error.code not in GONE:
                self._refused[node] = f"it failed to say who it is ({as_text(message.error.reason)})"
            return
        try:
            client, size, num_partitions = wire.read_introduction(message.content, self._num_clients)
        except ValueError as error:
            self._refused[node] = str(error)
            return
        if client in self.nodes:  # it came back under another id; the old one may not be known to be dead yet
            self._replaced.add(self.nodes[client])
            self._notices.tell("node", [self.nodes[client]], f"left out, since node {node} now is client {client}")
        self.nodes[client], self._sizes[client] = node, size
        self._expected = min(self._expected, num_partitions or self._expected)
        self.num_partitions = max(self.num_partitions, num_partitions)

    def _forget(self, client: int) -> None:
        self.nodes.pop(client, None)
        self._sizes.pop(client, None)

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        """One reply per client, in the order of `clients`, however they come in; whoever is lost fails alone."""
        return self.ask_about(task, wire.model_for(task, theta), clients)

    def ask_about(self, task: Task, model: RecordDict, clients: Sequence[int]) -> Iterator[Reply]:
        """`ask` with the model in any records: those of another Flower app, which its clients know how to read."""
        patience = self._timeouts.of(task)
        content = wire.encode_task(task.of(NOBODY), model)  # for all: Flower sends equal contents to the SuperLink once
        kind, group = wire.message_type(task), str(task.round)
        messages = {
            client: Message(
                wire.encode_task(task.of(client), model) if client in task.own else content,
                self.nodes[client], kind, ttl=patience, group_id=group,
            )
            for client in clients
            if client in self.nodes
        }  # fmt: skip
        pushed = self._push(messages.values())
        asked = {c: m.metadata.message_id for c, m in messages.items() if m.metadata.message_id in pushed}
        return self._replies(clients, asked, patience)

    def ask_each(self, message_type: str) -> dict[int, RecordDict]:
        """What every client there answers to an empty message of this type, within the time to say who it is."""
        messages = {
            client: Message(RecordDict(), node, message_type, ttl=self._timeouts.hello)
            for client, node in sorted(self.nodes.items())
        }
        self._push(messages.values())
        waiting = {message.metadata.message_id: client for client, message in messages.items()}
        found: dict[int, RecordDict] = {}
        for _ in self._until(time.monotonic() + self._timeouts.hello):
            self.check()
            for answered, message in self._pull(waiting).items():
                client = waiting.pop(answered)
                if not message.has_error():
                    found[client] = message.content
            if not waiting:
                break
        return dict(sorted(found.items()))

    def _replies(self, clients: Sequence[int], asked: Mapping[int, str], patience: float) -> Iterator[Reply]:
        deadline = time.monotonic() + patience
        arrived: dict[str, Message] = {}
        for position, client in enumerate(clients):
            if client not in asked:
                yield Reply(client, failure="it is not connected", lost=True)
                continue
            soon = [asked[c] for c in clients[position : position + PULLED_AHEAD] if c in asked]
            for _ in self._until(deadline, self.wait):
                self.check()
                arrived |= self._pull([message for message in soon if message not in arrived])
                if asked[client] in arrived:
                    break
            yield self._reply(client, arrived.pop(asked[client], None), patience)

    def _reply(self, client: int, message: Message | None, patience: float) -> Reply:
        if message is None:
            self._forget(client)
            return Reply(client, failure=f"it did not answer within {patience:.0f} s", lost=True)
        if message.has_error():
            if message.error.code in GONE:
                self._forget(client)
            return Reply(client, failure=f"its node failed ({as_text(message.error.reason)})", lost=True)
        return wire.decode_reply(client, message.content)

    def _push(self, messages: Iterable[Message]) -> set[str]:
        """Send; the ids of those that the SuperLink took."""
        queue, pushed = list(messages), set[str]()
        for start in range(0, len(queue), PUSHED_AT_ONCE):
            pushed |= set(self._grid.push_messages(queue[start : start + PUSHED_AT_ONCE]))
        return pushed

    def _pull(self, questions: Iterable[str]) -> dict[str, Message]:
        """What has been answered by now: message asked → reply."""
        ids = list(questions)
        return {m.metadata.reply_to_message_id: m for m in self._grid.pull_messages(ids)} if ids else {}

    def _until(self, deadline: float, wait: Callable[[float], None] = time.sleep) -> Iterator[None]:
        """Tries at growing intervals: at least one, and one more at the deadline. `wait` may be shorter, but not where
        each try asks for the answers of everybody: looking at every answer would cost their number's square."""
        interval = SHORTEST_POLL
        while True:
            yield
            left = deadline - time.monotonic()
            if left <= 0:
                return
            wait(min(interval, left))
            interval = min(GROWTH * interval, LONGEST_POLL)

    def close(self) -> None:
        """The grid and the nodes are Flower's to close."""
