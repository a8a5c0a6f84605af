"""What the aggregator takes the mean of: clients' weights as they are, or so that a few liars cannot choose it.

An average is a filter, replies in and replies out, so it goes with every aggregator, its momentum included, and with
every selector. Nothing is remembered between rounds. `share` is the share of a round's replies that may be lies. Where
all replies are needed at once they lie in a temporary file (`Spool`): memory stays bounded however many there are.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import UserError
from feddiverse.messages import Reply, Vector
from feddiverse.server.spool import Spool

Floats = NDArray[np.float64]

LONG = 10.0
"""An update so many times as long as its round's median one is told of; honest digits reach 4.6, of 100 clients 9.4."""
BLOCK = 1 << 16


class Average:
    """The base: every reply as it is. It says so if an update is much longer than the others.

    One's own overrides `combine`. `self.lengths` are the lengths of the updates that have passed in this round.

    >>> class First(Average):
    ...     def combine(self, theta, replies):
    ...         yield next(iter(replies))
    >>> replies = [Reply(client, vector=np.full(2, client, np.float32)) for client in (1, 2)]
    >>> [reply.client for reply in First()(np.zeros(2, np.float32), replies)]
    [1]
    """

    def __init__(self) -> None:
        self.lengths: dict[int, float] = {}  # client → ‖θ_k − θ‖

    def __call__(self, theta: Vector, replies: Iterable[Reply]) -> Iterator[Reply]:
        """The replies of a round whose mean is to be taken; all have a finite vector of θ's length."""
        self.lengths = {}
        return self.combine(theta, self._measured(theta, replies))

    def combine(self, theta: Vector, replies: Iterable[Reply]) -> Iterator[Reply]:
        yield from replies

    def _measured(self, theta: Vector, replies: Iterable[Reply]) -> Iterator[Reply]:
        for reply in replies:
            self.lengths[reply.client] = length(reply.numbers, theta)
            yield reply

    def warnings(self) -> list[str]:
        """Whose update of this round was much longer than the others."""
        usual = float(np.median([*self.lengths.values()])) if self.lengths else 0.0
        return [
            f"Client {client} sent an update more than {LONG:g} times as long as the median one of its round:"
            " data unlike the others', or a lie; `average` says how much it counts."
            for client, size in self.lengths.items()
            if size > LONG * usual > 0
        ]


def length(vector: Vector, theta: Vector) -> float:
    """‖vector − θ‖, without a copy of either."""
    squares = 0.0
    for start in range(0, theta.size, BLOCK):
        place = slice(start, start + BLOCK)
        difference = np.subtract(vector[place], theta[place], dtype=np.float64)
        squares += float(difference @ difference)
    return math.sqrt(squares)


class ClippedMean(Average):
    """No update counts for more than a length of M: θ_k − θ becomes (θ_k − θ)·min(1, M/‖θ_k − θ‖).

    M is `norm`, fixed (Sun, Kairouz, Suresh, McMahan: "Can you really backdoor federated learning?", 2019), or where
    that is 0, `times` the median length of the round (Nguyen et al., "FLAME", USENIX Security 2022; theirs is once).
    """

    def __init__(self, norm: float = 0.0, times: float = 1.0) -> None:
        super().__init__()
        if not (norm >= 0 and times > 0):
            raise UserError(f"average.norm must be at least 0 and average.times above 0, not {norm:g} and {times:g}.")
        self.norm, self.times = norm, times

    def combine(self, theta: Vector, replies: Iterable[Reply]) -> Iterator[Reply]:
        if self.norm:
            for reply in replies:
                yield self._clipped(theta, reply, self.norm)
            return
        with Spool(theta.size) as spool:
            kept = spooled(replies, spool)
            limit = self.times * float(np.median([*self.lengths.values()])) if kept else 0.0
            for position, reply in enumerate(kept):
                yield self._clipped(theta, replace(reply, vector=spool.row(position)), limit)

    def _clipped(self, theta: Vector, reply: Reply, limit: float) -> Reply:
        size = self.lengths[reply.client]
        if size <= limit:
            return reply
        update = np.subtract(reply.numbers, theta, dtype=np.float64)
        update *= limit / size
        update += theta
        return replace(reply, vector=update.astype(np.float32))


class Median(Average):
    """Every coordinate is the median of the clients' (Yin, Chen, Ramchandran, Bartlett: "Byzantine-robust distributed
    learning: towards optimal statistical rates", ICML 2018, Option I)."""

    def combine(self, theta: Vector, replies: Iterable[Reply]) -> Iterator[Reply]:
        with Spool(theta.size) as spool:
            kept = spooled(replies, spool)
            if not kept:
                return
            middle = np.empty(theta.size, np.float32)
            for place, block in spool.blocks():
                middle[place] = self._middle(block)
        # All of them send it: sums over clients, such as FedDyn's, keep their size. FedNova then divides by one number
        # of steps, and no claim about them counts.
        steps = float(np.median([reply.metrics.get("steps", 0.0) for reply in kept]))
        for reply in kept:
            yield replace(reply, vector=middle, metrics={**reply.metrics, "steps": steps})

    def _middle(self, block: Floats) -> Floats:
        """[n, width] → [width]"""
        return np.asarray(np.median(block, axis=0))


class TrimmedMean(Median):
    """Every coordinate is the mean of the clients' without its largest and its smallest `share` (Yin et al., 2018,
    Option II): of n values ⌈share·n⌉ at either end, and always so few that one is left."""

    def __init__(self, share: float = 0.2) -> None:
        super().__init__()
        self.share = checked_share(share)

    def _middle(self, block: Floats) -> Floats:
        trimmed = min(at_most(self.share, len(block)), (len(block) - 1) // 2)
        block.sort(axis=0)
        return np.asarray(block[trimmed : len(block) - trimmed].mean(axis=0))


class MultiKrum(Average):
    """The n − f updates that have the nearest neighbours (Blanchard, El Mhamdi, Guerraoui, Stainer: "Machine learning
    with adversaries: Byzantine tolerant gradient descent", NeurIPS 2017), f = ⌈share·n⌉ being the lies.

    An update's score is the sum of squared distances to its n − f − 2 nearest others; the lowest scores stay. Their
    proof wants 2f + 2 < n: with fewer replies f is what that allows, and of two replies both stay.
    """

    def __init__(self, share: float = 0.2) -> None:
        super().__init__()
        self.share = checked_share(share)

    def combine(self, theta: Vector, replies: Iterable[Reply]) -> Iterator[Reply]:
        with Spool(theta.size) as spool:
            kept = spooled(replies, spool)
            if not kept:
                return
            for position in krum(squared_distances(theta, spool), self.share):
                yield replace(kept[position], vector=spool.row(position))


def krum(distances: Floats, share: float) -> list[int]:
    """Who stays, ascending, by the squared distances of all updates [n, n]."""
    n = len(distances)
    lies = max(0, min(at_most(share, n), (n - 3) // 2))
    nearest = np.sort(distances, axis=1)[:, 1 : max(1, n - lies - 1)]  # 0 is its distance to itself
    order = np.argsort(nearest.sum(axis=1), kind="stable")
    stay: list[int] = np.sort(order[: n - lies]).tolist()
    return stay


def squared_distances(theta: Vector, spool: Spool) -> Floats:
    """‖θ_i − θ_j‖² [n, n], in one pass over the coordinates."""
    products = np.zeros((spool.count, spool.count))
    for place, block in spool.blocks():
        block -= theta[place]  # products of small updates, not of large weights, lose no digits
        products += block @ block.T
    squares = products.diagonal()
    return np.asarray(np.maximum(0.0, squares[:, None] + squares - 2 * products))


def spooled(replies: Iterable[Reply], spool: Spool) -> list[Reply]:
    """The replies without their vectors, which are in the spool."""
    kept = []
    for reply in replies:
        spool.append(reply.numbers)
        kept.append(replace(reply, vector=None))
    return kept


def at_most(share: float, n: int) -> int:
    """⌈share·n⌉, rounding errors of the product apart."""
    return math.ceil(share * n - 1e-9)


def checked_share(share: float) -> float:
    if not 0 <= share < 0.5:
        raise UserError(f"average.share must be at least 0 and below 0.5, not {share:g}: most must tell the truth.")
    return share
