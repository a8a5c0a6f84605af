"""What travels between the server and a client: a small frozen question (`Task`) and its answer (`Reply`).

Both sides import this module and neither imports the other. Model weights travel beside the task as one flat
float32 vector θ. A client's data never travels: what leaves a client is a `Reply`, and its size is counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

BYTES_PER_SCALAR = 8

TRIPLET = ("ci", "ai", "sc")

TOTAL = -1
"""In place of a client: the sum of what many answered, of which nobody saw the parts."""

EVALUATION_ONLY = "evaluation_only."
"""Metrics so named compare with a truth that only an experiment knows: `evaluation_only.e.t` counts samples of
estimated attribute e and true attribute t. They are sent where the data's attributes are known, decide nothing, and
their bytes are not counted: no real client could send them."""


MOST = 2**40
"""The most samples or seconds that a client is believed: sums over a million clients then stay within 63 bits."""
FAR = 1e15
"""No number of an honest client comes near it; products of such numbers, summed over a million clients, stay finite."""
ROUNDING = 1e-6  # how far out of its range a number may be that was computed or sent with less precision

Range = tuple[float, float]
ANY: Range = (-FAR, FAR)
SHARE: Range = (-ROUNDING, 1 + ROUNDING)


@dataclass(frozen=True)
class Form:
    """What an answer to a question looks like: the server's door (`server.replies`) lets in nothing else.

    `metrics`: the numbers it has, each with the least and the most it can be. `numbers`: the least and the most that
    those of its vector can be; None: it has no vector. `length`: how many these are; None: whoever asks knows.
    `total`: the least and the most of their sum, where they count samples. `optional`: a vector may be missing.
    `payload`: it is bytes of secure aggregation, which only that can read.
    """

    metrics: Mapping[str, Range] = field(default_factory=dict)
    numbers: Range | None = None
    length: int | None = None
    total: Range | None = None
    optional: bool = False
    payload: bool = False


def _nothing() -> NDArray[np.float32]:
    return np.zeros((0, 0), np.float32)


def _nobody() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


def _optional(default: float | str) -> Any:
    """A value that a question usually lacks: it travels, and counts, only where it is not `default`."""
    return field(default=default, kw_only=True, metadata={"lacks": default})


@dataclass(frozen=True)
class Task:
    """A question to a client. `seed` and `round` key the randomness the client may need to answer it.

    >>> Loss(seed=0, round=3).num_bytes
    16
    """

    seed: int
    round: int

    @property
    def num_bytes(self) -> int:
        """Size of the question itself on the wire, without θ and what goes to single clients (`own`)."""
        there = [f for f in fields(self) if f.metadata.get("lacks") is None or getattr(self, f.name) != f.default]
        values = [value for f in there if not isinstance(value := getattr(self, f.name), Mapping)]
        return sum(v.nbytes if isinstance(v, np.ndarray) else BYTES_PER_SCALAR for v in values)

    @property
    def own(self) -> Mapping[int, NDArray[Any]]:
        """What single clients get with the question, and nobody else: client → array."""
        return {}

    def of(self, client: int) -> "Task":
        """The question as one client gets it: the same for all, but for what is that client's alone."""
        if self.own.keys() <= {client}:
            return self
        name = next(f.name for f in fields(self) if getattr(self, f.name) is self.own)
        changes: dict[str, Any] = {name: {client: self.own[client]} if client in self.own else {}}
        return replace(self, **changes)

    def form(self, num_examples: int, num_weights: int | None = None) -> Form:
        """What the answer of a client with so many samples looks like, of a model with so many weights (None: unknown).

        One's own question says it here; as it is, any numbers that can be counted with will do.
        """
        return Form(numbers=ANY, optional=True)


@dataclass(frozen=True)
class Train(Task):
    """Local SGD from θ. Reply: vector θ_k; metrics `loss` (mean over the steps) and `steps`.

    `flip`, `crop_padding` and `padding` ("constant", "edge") change pictures at random: see `client.augmentation`.
    `prox_mu` pulls θ_k towards θ, or where the client has a memory (and `moon_mu` is 0) towards θ less that memory;
    `moon_mu` keeps what the model sees away from what the model in the client's memory sees. `memories`: client → such
    a vector; a client gets its own only (`of`). See `server.objectives`.
    `clip` > 0: θ_k − θ is cut to this length, and Gaussian noise of deviation `noise`·`clip` is added to each of its
    numbers; with noise, the loss stays with the client.
    `draw` [Y, A]: weights of groups by which the client draws its epoch, attributes as it remembers to have read them
    (`AttributeTriplet`) with at least `draw_confidence`; empty: every sample once. `set_aside`: the share of its
    samples that the client does not train on, the same ones in every round (`client.draws.is_aside`).
    """

    epochs: int = 1
    batch_size: int = 28
    lr: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 0.0
    prox_mu: float = 0.0
    flip: bool = False
    crop_padding: int = 0
    padding: str = "constant"
    moon_mu: float = 0.0
    moon_temperature: float = 0.5
    memories: Mapping[int, Vector] = field(default_factory=dict)
    draw: NDArray[np.float32] = field(default_factory=_nothing, compare=False)
    draw_confidence: float = 0.0
    set_aside: float = _optional(0.0)
    clip: float = _optional(0.0)
    noise: float = _optional(0.0)

    @property
    def own(self) -> Mapping[int, Vector]:
        return self.memories

    def form(self, num_examples: int, num_weights: int | None = None) -> Form:
        most_steps = self.epochs * num_examples  # batches of one
        loss = {} if self.noise else {"loss": ANY}
        return Form({**loss, "steps": (0, most_steps)}, numbers=ANY, length=num_weights)


@dataclass(frozen=True)
class Loss(Task):
    """Mean cross-entropy of θ over the client's data, without training (pow-d, Oort). Reply: metrics `loss`,
    `loss_rms` (root of the mean squared per-sample loss)."""

    def form(self, num_examples: int, num_weights: int | None = None) -> Form:
        return Form(dict.fromkeys(("loss", "loss_rms"), (-ROUNDING, FAR)))


@dataclass(frozen=True)
class Evaluate(Task):
    """Right answers of θ on the client's own data. Reply: vector [2, classes, attributes] flattened: correct, total."""

    num_attributes: int = 0  # 0: as many as the client's own data shows

    def form(self, num_examples: int, num_weights: int | None = None) -> Form:
        return Form(numbers=(0, num_examples), total=(0, 2 * num_examples))


@dataclass(frozen=True)
class Sketch(Train):
    """A compressed local update (HCSFed): train as asked, send only `rate`·|θ| numbers of θ_k − θ."""

    rate: float = 1e-5

    def length(self, num_weights: int) -> int:
        """How many numbers are sent: two at least."""
        return max(2, int(self.rate * num_weights))

    def form(self, num_examples: int, num_weights: int | None = None) -> Form:
        return Form(numbers=ANY, length=None if num_weights is None else self.length(num_weights))


@dataclass(frozen=True)
class Counted(Task):
    """A question that is answered by counts of samples.

    `epsilon` > 0: with noise that makes the answer ε-differentially private (`client.noise`); whatever else is told is
    computed from the noisy counts.
    """

    epsilon: float = _optional(0.0)

    def form(self, num_examples: int, num_weights: int | None = None) -> Form:
        return Form(numbers=(0, num_examples), total=(1, num_examples))  # with noise too: see `client.noise.possible`


@dataclass(frozen=True)
class LabelCounts(Counted):
    """The client's class marginal M^k (Fed-CBS, label entropy, HACCS). Reply: vector [classes]."""


@dataclass(frozen=True)
class TrueMatrix(Counted):
    """The true interaction matrix N^k, known only in experiments (oracle, evaluation). Reply: vector [Y·A].

    With `remember`, the client takes the true attributes for what it read, as in `AttributeTriplet`.
    """

    num_attributes: int = 0  # 0: as many as the client's own data shows
    remember: bool = False


@dataclass(frozen=True)
class PaperTriplet(Task):
    """The paper's estimator (Sec. IV-A, steps 2 and 3). Reply: metrics `ci`, `ai`, `sc`; nothing else.

    `features`: what the attribute classifier sees, features of the `biased` model (as released) or of θ (`global`).
    """

    gce_q: float = 0.3
    bias_steps: int = 50
    attribute_steps: int = 10
    batch_size: int = 28
    lr: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 0.0
    features: str = "biased"

    def form(self, num_examples: int, num_weights: int | None = None) -> Form:
        return Form(dict.fromkeys(TRIPLET, SHARE))


@dataclass(frozen=True)
class Projected(Task):
    """A question about features under θ, projected to d = `dimensions` if they are more, alike on all clients."""

    dimensions: int = 256


@dataclass(frozen=True)
class Summed(Projected):
    """A question whose answers only matter as their sum over clients. Reply: one vector.

    With `bits`, it is the third step of secure aggregation (`server.secagg`): the reply is the vector in fixed point of
    `bits` binary places, masked, as `payload`. `sum` is the number of the sum, `members` are those who shared their
    keys, `letters` what a client's neighbours sealed for it.
    """

    sum: int = _optional(0)
    bits: int = _optional(0)
    members: NDArray[np.int64] = field(default_factory=_nobody, compare=False, kw_only=True)
    letters: Mapping[int, NDArray[np.uint8]] = field(default_factory=dict, compare=False, kw_only=True)

    @property
    def own(self) -> Mapping[int, NDArray[np.uint8]]:
        return self.letters

    def form(self, num_examples: int, num_weights: int | None = None) -> Form:
        return Form(payload=True) if self.bits else self.plain_form(num_examples)

    def plain_form(self, num_examples: int) -> Form:
        """What the vector looks like where it is not masked. `estimation.plausible` knows more of it."""
        return Form(numbers=ANY)


@dataclass(frozen=True)
class AdvertiseKeys(Task):
    """Secure aggregation, first step: begin the sum of this number. Reply: payload, three public keys."""

    sum: int = 0

    def form(self, num_examples: int, num_weights: int | None = None) -> Form:
        return Form(payload=True)


@dataclass(frozen=True, kw_only=True)
class ShareKeys(AdvertiseKeys):
    """Secure aggregation, second step: everybody's `keys`, in the order of `members` on a ring.

    Reply: payload, a sealed letter to each of the client's neighbours with a share of its two secrets.
    """

    members: NDArray[np.int64]  # [n]
    keys: NDArray[np.uint8]  # [n, 96]
    neighbours: int
    threshold: float


@dataclass(frozen=True, kw_only=True)
class Unmask(AdvertiseKeys):
    """Secure aggregation, last step: whose parts arrived. Reply: payload, a share for each neighbour that sent a
    letter: of its own mask's seed if its part arrived, else of its private key. A client answers this once."""

    survivors: NDArray[np.int64]


@dataclass(frozen=True)
class FeatureMoments(Summed):
    """Consensus, first question: the spread of features under θ (docs/estimators.md).

    Reply: one vector, to be summed over clients: [1 | classes present | counts Y | sums Y·d | scatter within the
    client's classes, upper triangle d(d+1)/2 | products of its class sums over their counts, likewise].
    """


@dataclass(frozen=True, kw_only=True)
class FeatureHistogram(Summed):
    """Consensus, second question: where samples lie along the directions in which clients differ.

    A sample's coordinates are `projected @ directions − origin`, [q]. Reply: vector [Y, bins, …, bins] flattened, to be
    summed over clients: counts per class on a grid from −`reach` to `reach` on each axis; what is beyond counts at the
    edge.
    """

    directions: NDArray[np.float32]  # [d, q]
    origin: NDArray[np.float32]  # [q]
    bins: int = 128
    reach: float = 5.0


@dataclass(frozen=True, kw_only=True)
class AttributeTriplet(Projected, Counted):
    """Consensus, third question: the client's triplet.

    Coordinates (as above) of class y and attribute a lie around `centres[y, a]` with unit covariance; about
    `shares[y, a]` of all clients' samples of class y show a. Reply: metrics `ci`, `ai`, `sc`.

    With `matrix`, also the vector [Y·A] of counts, of samples read with a posterior of at least `confidence`. With
    `remember`, the client keeps what it read, for `Train.draw`, `GroupSums` and `HeadErrors`.
    """

    directions: NDArray[np.float32]  # [d, q]
    origin: NDArray[np.float32]  # [q]
    centres: NDArray[np.float32]  # [Y, A, q]
    shares: NDArray[np.float32]  # [Y, A]
    matrix: bool = False
    confidence: float = 0.0
    remember: bool = False

    def form(self, num_examples: int, num_weights: int | None = None) -> Form:
        triplet = Form(dict.fromkeys(TRIPLET, SHARE))
        if not self.matrix:
            return triplet
        return replace(triplet, numbers=(0, num_examples), length=self.shares.size, total=(0, num_examples))


@dataclass(frozen=True, kw_only=True)
class Grouped(Summed):
    """A question about features under θ in which each sample has the weight of its group [Y, A].

    Attributes are those that the client remembers, or, where `centres` are given, read anew off the same features as
    `AttributeTriplet` does (in `reading_dimensions`). Samples read with less than `confidence` do not count. With one
    column, groups are classes, and no attribute is needed. With `set_aside`, sums are those of the samples that `Train`
    trains on, and errors those of the samples set aside.
    """

    weights: NDArray[np.float32]  # [Y, A]; groups of weight 0 do not count
    confidence: float = 0.0
    set_aside: float = _optional(0.0)
    reading_dimensions: int = 0
    directions: NDArray[np.float32] = field(default_factory=_nothing)
    origin: NDArray[np.float32] = field(default_factory=_nothing)
    centres: NDArray[np.float32] = field(default_factory=_nothing)
    shares: NDArray[np.float32] = field(default_factory=_nothing)


@dataclass(frozen=True, kw_only=True)
class GroupSums(Grouped):
    """Rebalancing, first question: weighted sums of features.

    Reply: one vector, to be summed over clients: [Σ w of each class Y | Σ w x of each class Y·d | Σ w xxᵀ, upper
    triangle d(d+1)/2]; with `by_class`, the last of each class, Y·d(d+1)/2. With `views`, each sample counts as the
    mean of itself and of so many copies, changed at random as `Train` changes pictures: a head made of a handful of
    rare pictures would else know them by heart.
    """

    by_class: bool = False
    views: int = _optional(0)
    flip: bool = _optional(False)
    crop_padding: int = _optional(0)
    padding: str = _optional("constant")


@dataclass(frozen=True, kw_only=True)
class HeadErrors(Grouped):
    """Rebalancing, second question: how good are these last layers? Asked of clients whose sums they were not made of.

    Reply: vector [H·Y·A | Y·A]: squared errors of each head, summed over the sure samples of each group; then counts.
    """

    heads: NDArray[np.float32]  # [H, Y, d + 1]: weights and bias

    def plain_form(self, num_examples: int) -> Form:
        return Form(numbers=(0, FAR), length=(len(self.heads) + 1) * self.weights.size)


@dataclass(frozen=True, kw_only=True)
class ReadHeldOut(Projected):
    """Evaluation: read the attribute of the samples held out, as `AttributeTriplet` does, and remember it.

    A client reads with the shares of attributes that its training samples show. Reply: nothing.
    """

    directions: NDArray[np.float32]  # [d, q]
    origin: NDArray[np.float32]  # [q]
    centres: NDArray[np.float32]  # [Y, A, q]
    shares: NDArray[np.float32]  # [Y, A]

    def form(self, num_examples: int, num_weights: int | None = None) -> Form:
        return Form()


@dataclass(frozen=True)
class EvaluateHeldOut(Task):
    """Right answers of θ on the samples that a client holds out; on all, where it is the server's own test set.

    Reply: vector [2·Y | 2·Y·A]: correct and total of each class; then of each (class, attribute), of samples that were
    read (`ReadHeldOut`) with at least `confidence`. A = 0: nothing was read.
    """

    num_attributes: int = 0
    confidence: float = 0.0

    def form(self, num_examples: int, num_weights: int | None = None) -> Form:
        return Form(numbers=(0, MOST))  # of samples that are held out, which are not among its examples


@dataclass(frozen=True)
class Reply:
    """A client's answer, or the reason there is none. `lost`: the client might have answered, but its process died or
    its node is away, so that the same run made again may get an answer.

    `payload`: bytes of secure aggregation, which only its protocol can read. A reply of client `TOTAL` is the sum of
    what `members` answered.

    >>> Reply(client=2, metrics={"loss": 0.7}).num_bytes
    8
    """

    client: int
    num_examples: int = 0
    vector: Vector | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str | None = None
    lost: bool = False
    payload: bytes = b""
    members: tuple[int, ...] = ()

    @property
    def numbers(self) -> Vector:
        """Its vector, where there is one for sure: the door lets in no answer without what was asked for."""
        if self.vector is None:
            raise ValueError(f"the reply of client {self.client} has no vector")
        return self.vector

    @property
    def num_bytes(self) -> int:
        """Size of the answer on the wire: its numbers, without the transport's framing."""
        vector = 0 if self.vector is None else self.vector.nbytes
        counted = sum(not name.startswith(EVALUATION_ONLY) for name in self.metrics)
        return vector + BYTES_PER_SCALAR * counted + len(self.payload)


Ask = Callable[[Task, Sequence[int]], Iterator[Reply]]
"""`ask(task, clients)`: the engine's `ask` with the current θ already given; what selectors and estimators use."""


class Engine(Protocol):
    """How a question reaches clients: this machine's workers, or Flower. The loop knows no more than this."""

    @property
    def clients(self) -> Mapping[int, int]:
        """The clients that can be asked now: id → number of training samples."""

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        """One reply per client, in the order of `clients` (so that sums have one order, whatever arrives first).

        A client that fails gives a `Reply` with `failure`; it never takes the others down with it.
        """

    def close(self) -> None:
        """Give back processes and memory. Safe to call twice."""


Plain = dict[str, Any]
"""State as plain data (numbers, strings, lists, dicts, NumPy arrays): what a checkpoint can hold without pickle."""
