"""The door where clients' answers come in: what is behind it can rely on every number of a reply.

A client may be anyone's code. Each reply is checked once, against its question (`Task.form`): types, lengths, ranges,
finiteness. What is no answer becomes a failure of that client alone, with the reason; the run is told, and goes on.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import as_text
from feddiverse.messages import EVALUATION_ONLY, MOST, TRIPLET, Ask, Engine, Form, Range, Reply, Task, Vector

MOST_METRICS = 1000
PRECISION = 1e-6  # of sums of float32 numbers
UNKNOWN: Mapping[int, int] = MappingProxyType({})


class Door:
    """An engine of whose replies each is an answer that can be used, or has a `failure`.

    A reply's numbers are Python's own (`int`, `float`), whatever the engine's were.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sizes: Mapping[int, int] = UNKNOWN

    @property
    def clients(self) -> Mapping[int, int]:
        """The engine's: id → number of samples. What replies say of it later is held against this."""
        self._sizes = self._engine.clients
        return self._sizes

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        """One reply per client, in the order of `clients`. An empty `theta` says nothing of the model's size."""
        return checked(task, self._engine.ask(task, theta, clients), clients, theta.size or None, self._sizes)

    def close(self) -> None:
        self._engine.close()


def checked(
    task: Task,
    replies: Iterable[Reply],
    clients: Sequence[int],
    num_weights: int | None = None,
    sizes: Mapping[int, int] = UNKNOWN,
) -> Iterator[Reply]:
    """`replies` of `clients` to `task`, one for each, in this order; those that are no answer as failures.

    `sizes`: how many samples clients said they have, where that is known.
    """
    arriving = iter(replies)
    for client in clients:
        yield _checked(task, client, next(arriving, None), num_weights, sizes.get(client, MOST))


class _NoAnswer(Exception):
    """What is wrong with a reply."""


def _checked(task: Task, client: int, reply: Any, num_weights: int | None, size: int) -> Reply:
    try:
        return _sound(task, client, reply, num_weights, size)
    except _NoAnswer as problem:
        return Reply(client, failure=str(problem))
    except Exception as error:  # objects of someone's own engine may fail in any way when they are looked at
        return Reply(client, failure=f"its answer cannot be read ({type(error).__name__})")


def _sound(task: Task, client: int, reply: Any, num_weights: int | None, size: int) -> Reply:
    """The reply in plain types, or what is wrong with it."""
    if not isinstance(reply, Reply):
        raise _NoAnswer("it gave no answer")
    if reply.failure is not None:
        return Reply(client, failure=as_text(reply.failure).rstrip("."), lost=bool(reply.lost))
    if reply.client != client:
        raise _NoAnswer("another client's answer came in its place")
    num_examples = int(_number("num_examples", reply.num_examples, (0, MOST), Integral))
    if num_examples > size:
        raise _NoAnswer(f"it trained on {num_examples:,} samples where it said that it has {size:,}")
    form = task.form(num_examples, num_weights)
    return Reply(
        client,
        num_examples,
        _vector(form, reply.vector),
        _metrics(form, reply.metrics, num_examples),
        seconds=_number("seconds", reply.seconds, (0, MOST)),
        payload=_payload(form, reply.payload),
    )


def _payload(form: Form, payload: Any) -> bytes:
    if not isinstance(payload, bytes) or bool(payload) != form.payload:
        raise _NoAnswer("it sent no bytes of a secure sum" if form.payload else "it sent bytes that nobody asked for")
    return payload


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _number(name: str, value: Any, within: Range, kind: type = Real) -> float:
    """A number as a client sent it, if it is one and in its range."""
    low, high = within
    if isinstance(value, np.generic):
        value = value.item()  # of few bits: the bounds would not fit into it
    if not _is(kind, value):
        raise _NoAnswer(f"its {as_text(name)} is no {'whole ' if kind is Integral else ''}number")
    if not low <= value <= high:  # nor is NaN
        shown = f"{value:g}" if isinstance(value, float) else as_text(value)[:20]
        raise _NoAnswer(f"its {as_text(name)} is {shown}, not within [{round(low, 3) + 0.0:g}, {round(high, 3):g}]")
    return float(value)


def _metrics(form: Form, metrics: Any, num_examples: int) -> dict[str, float]:
    """Those asked for, each in its range; others may be there for a selector of the user's own."""
    if not isinstance(metrics, Mapping) or len(metrics) > MOST_METRICS:
        raise _NoAnswer("its metrics cannot be read")
    if missing := [name for name in form.metrics if name not in metrics]:
        raise _NoAnswer(f"its answer lacks {missing[0]}")
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise _NoAnswer("its metrics cannot be read")
        if not name.startswith(EVALUATION_ONLY):
            found[name] = _number(name, value, form.metrics.get(name, (-_LARGEST, _LARGEST)))
        elif _compares(name) and _is(Real, value) and 0 <= value <= num_examples:
            found[name] = float(value)
    return found


_LARGEST = float(np.finfo(np.float64).max)


def _compares(name: str) -> bool:
    """Whether a comparison with the truth names two attributes; it decides nothing, so nonsense is just dropped."""
    return re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", name.removeprefix(EVALUATION_ONLY), re.ASCII) is not None


def _vector(form: Form, vector: Any) -> Vector | None:
    if vector is None or form.numbers is None:
        if form.numbers is None and vector is not None and np.size(vector):
            raise _NoAnswer(f"it sent {np.size(vector):,} numbers where none are expected")
        if form.numbers is not None and not form.optional:
            raise _NoAnswer("it sent no vector")
        return None
    if not isinstance(vector, np.ndarray) or vector.dtype != np.float32 or vector.ndim != 1:
        raise _NoAnswer("its vector is no line of float32 numbers")
    if form.length is not None and vector.size != form.length:
        raise _NoAnswer(f"it sent {vector.size:,} numbers where {form.length:,} are expected")
    if vector.size:
        _check_numbers(form, vector)
    return vector


def _check_numbers(form: Form, vector: Vector) -> None:
    assert form.numbers is not None
    (low, high), least, most = form.numbers, float(vector.min()), float(vector.max())
    if not (np.isfinite(least) and np.isfinite(most)):
        raise _NoAnswer("its numbers are not all finite")
    if not (low <= least and most <= high):
        worst = least if least < low else most
        raise _NoAnswer(f"one of its numbers is {worst:g}, not within [{low:g}, {high:g}]")
    if form.total is not None:
        total = float(vector.sum(dtype=np.float64))
        if not form.total[0] * (1 - PRECISION) <= total <= form.total[1] * (1 + PRECISION):
            raise _NoAnswer(f"its counts add up to {total:g}, not within [{form.total[0]:g}, {form.total[1]:g}]")


class CheckedAsk:
    """An `Ask` whose replies come through the door, such as the loop's. Who finds one of no use for a reason that only
    they know says so by `leave_out`, so that the run can tell."""

    def __call__(self, task: Task, clients: Sequence[int]) -> Iterator[Reply]:
        raise NotImplementedError

    def leave_out(self, task: Task, client: int, why: str) -> None:
        raise NotImplementedError


Check = Callable[[Reply], str | None]
"""What is wrong with a reply that came through the door, if anything."""


def answers(
    task: Task,
    clients: Mapping[int, int],
    ask: Ask,
    *,
    length: int | None = None,
    check: Check = lambda reply: None,
) -> Iterator[Reply]:
    """Ask every client, the largest first (so that none is left alone at the end); leave out those without an answer.

    `length` of vectors, where the question alone does not tell it, and what else only whoever asks can `check`.
    The loop's `ask` is told whom this leaves out; anyone else's is put behind the door first.
    """
    ids = sorted(clients, key=lambda k: (-clients[k], k))
    replies = ask(task, ids)
    if not isinstance(ask, CheckedAsk):
        replies = checked(task, replies, ids)
    for reply in replies:
        if reply.failure is not None:
            continue
        size = 0 if reply.vector is None else reply.vector.size
        expected = length is None or size == length
        problem = check(reply) if expected else f"it sent {size:,} numbers where {length:,} are expected"
        if problem is None:
            yield reply
        elif isinstance(ask, CheckedAsk):
            for client in reply.members or (reply.client,):
                ask.leave_out(task, client, problem)


def triplet_in(reply: Reply) -> NDArray[np.float64]:
    """The three numbers a client sent, without what rounding added."""
    return np.clip([reply.metrics[name] for name in TRIPLET], 0.0, 1.0)


@dataclass
class TrainedReplies:
    """Lets trained weights through, one at a time, and keeps what the record and the selector need of them."""

    round: int
    keep_vectors: bool
    usable: list[Reply] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __call__(self, replies: Iterator[Reply]) -> Iterator[Reply]:
        for reply in replies:
            if reply.failure is not None:
                self.failed.append(reply.client)
                self.warnings.append(f"Round {self.round}: client {reply.client} is left out: {reply.failure}.")
                continue
            yield reply
            self.usable.append(reply if self.keep_vectors else replace(reply, vector=None))

    @property
    def train_loss(self) -> float | None:
        """The mean of the losses that clients met while training; None where noise keeps them with the clients."""
        losses = [reply.metrics["loss"] for reply in self.usable if "loss" in reply.metrics]
        return float(np.mean(losses)) if losses else None
