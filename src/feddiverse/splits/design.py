"""Counts that meet given metrics: search over integers, one client at a time.

From a random start, every client in turn tries to move some of its samples from one group to another, and keeps
the move that brings the six metrics nearest to their targets. Step sizes from half a client down to one sample
make the search quick. If clients of equal size cannot meet the targets, further starts give them unequal ones.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import UserError
from feddiverse.heterogeneity import METRICS, Counts, measure, triplet

Array = NDArray[np.float64]

CLOSE_ENOUGH = 0.001  # no further search below this distance
RESTARTS = 5
SWEEPS = 60
MOST_VISITS = RESTARTS * SWEEPS * 1000
"""Clients looked at in one search, however many there are: a few minutes."""
LARGEST = 50_000_000  # numbers in all moves of a client: some 3 GB of memory


@dataclass(frozen=True)
class Design:
    """Counts found, their largest difference from a target, and the metric that has it."""

    counts: Counts
    distance: float
    worst: str


def search(
    targets: Mapping[str, float],
    clients: int,
    samples: int,
    classes: int,
    attributes: int,
    rng: np.random.Generator,
) -> Design:
    """Counts `[client, class, attribute]` as near to `targets` as could be found.

    `targets` maps names of `METRICS` to values in [0, 1]; a metric left out (or NaN) is free.
    """
    wanted = np.array([targets.get(name, math.nan) for name in METRICS])
    if np.isnan(wanted).all():
        raise UserError(f"A design needs at least one target among {', '.join(METRICS)}.")
    best: Design | None = None
    visits = iter(range(MOST_VISITS))
    for attempt in range(RESTARTS):
        shares = rng.dirichlet(np.ones(clients)) if attempt else np.full(clients, 1 / clients)
        sizes = _sizes(shares, samples)
        mixes = rng.dirichlet(np.ones(classes * attributes), size=clients)
        start = rng.multinomial(sizes, mixes).reshape(clients, classes, attributes)
        counts = _descend(start, wanted, rng, visits)
        gaps = np.nan_to_num(np.abs(measure(counts).six - wanted))
        if best is None or gaps.max() < best.distance:
            best = Design(counts, float(gaps.max()), METRICS[int(gaps.argmax())])
        if best.distance < CLOSE_ENOUGH or next(visits, None) is None:
            break
    assert best is not None
    return best


def _descend(counts: Counts, wanted: Array, rng: np.random.Generator, visits: Iterator[int]) -> Counts:
    """Sweep over the clients until a sweep helps little, the metrics are close enough, or `visits` are used up."""
    triplets, pooled = triplet(counts), counts.sum(axis=0)
    means = triplets.mean(axis=0)
    loss = _loss(triplet(pooled), means, wanted)
    for _ in range(SWEEPS):
        before = loss
        for k, _ in zip(rng.permutation(len(counts)), visits, strict=False):
            moves = _moves(counts[k])
            if not len(moves):
                continue
            after = triplet(counts[k] + moves)
            means_after = means + (after - triplets[k]) / len(counts)
            losses = _loss(triplet(pooled + moves), means_after, wanted)
            i = int(losses.argmin())
            if losses[i] < loss:
                counts[k] += moves[i]
                pooled += moves[i]
                triplets[k], means, loss = after[i], means_after[i], losses[i]
        if loss > 0.95 * before or loss < CLOSE_ENOUGH**2:
            break
    return counts


def _sizes(shares: Array, samples: int) -> NDArray[np.int64]:
    """Whole sizes of at least one sample that add up to `samples`, near to `shares` of it."""
    ends = np.round(np.cumsum(shares) * (samples - len(shares))).astype(np.int64)
    return np.diff(ends, prepend=0) + 1


def _moves(table: Counts) -> Counts:
    """All ways to move 1, 2, 4, … samples, or a whole group, to another group: changes `[move, class, attribute]`."""
    flat = table.ravel()
    powers = [2**i for i in range(int(flat.sum()).bit_length())]
    steps = {source: {*(p for p in powers if p < flat[source]), int(flat[source])} for source in np.flatnonzero(flat)}
    if sum(map(len, steps.values())) * (flat.size - 1) * flat.size > LARGEST:
        raise UserError(
            f"A design with {len(table)} classes and {table.shape[1]} attributes does not fit into memory: use fewer "
            "of them, or fewer samples a client."
        )
    units = np.eye(flat.size, dtype=np.int64)
    changes = [
        step * (units[to] - units[source])
        for source in steps
        for to in range(flat.size)
        if to != source
        for step in steps[source]
    ]
    return np.array(changes, dtype=np.int64).reshape(-1, *table.shape)


def _loss(pooled: Array, means: Array, wanted: Array) -> Array:
    """Sum of squared differences from the targets that are given. Rounded, so that the last bit of a logarithm, which
    differs between machines, does not decide between two moves."""
    gaps = np.nan_to_num(np.concatenate([pooled, means], axis=-1) - wanted)
    return np.asarray(np.round((gaps**2).sum(axis=-1), 12))
