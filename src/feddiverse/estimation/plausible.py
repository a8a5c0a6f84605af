"""What one client's part of the sums can be, and whose part is left out: no client alone decides how all are measured.

Checked are single answers, as far as they can be (`moments_problem`, `histogram_problem`, `triplet_problem`), and then
the answers beside each other (`trusted_scatter`). Where secure aggregation hides the parts there is nothing to check.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddiverse.estimation.directions import Scatter, leading_axes, num_features
from feddiverse.heterogeneity import class_imbalance
from feddiverse.heterogeneity import triplet as table_triplet
from feddiverse.messages import Reply, Vector
from feddiverse.server.spool import Spool

Floats = NDArray[np.float64]

PRECISION = 1e-4
"""Of sums of float32 numbers, relative to the sum of their squares."""
TOO_LONG = 10.0
"""Mean squared length of a client's features, relative to the median client's, beyond which its sums are left out."""
FEW = 8
"""With fewer clients one that differs from all others is nothing unusual."""
ROUNDING = 1e-6  # of a triplet that was computed or sent with less precision
CI_ERROR = 0.01
ERROR = 0.15
"""How far AI and SC may be from what the client's own histogram says, whose cells are a little wide."""
FINE = 64  # bins an axis from which a histogram is held against a triplet
PRIOR_SAMPLES, ITERATIONS = 2.0, 100  # as clients read their samples: `client.consensus`


def moments_problem(vector: Vector, num_classes: int, num_samples: int, dimensions: int) -> str | None:
    """What is wrong with an answer to `FeatureMoments` of a client with so many samples, if anything.

    `dimensions`: the most features that were asked for; the work grows with their cube.
    """
    if not 1 <= (found := num_features(vector.size, num_classes)) <= dimensions:
        of = f"of {found:,} features where {dimensions:,} are the most" if found else "of features"
        return f"{vector.size:,} numbers are no moments {of}"
    part = Scatter.unpack(vector.astype(np.float64), num_classes)
    counts, total = part.counts, float(part.counts.sum())
    if vector[0] != 1 or counts.min() < 0 or (counts != np.round(counts)).any() or not 1 <= total <= num_samples:
        return f"its moments count {total:g} samples of its {num_samples:,}"
    present = counts > 0
    if vector[1] != present.sum() or part.sums[~present].any():
        return "its moments have sums of classes that it counts no sample of"
    means = part.sums / np.maximum(counts, 1)[:, None]
    products = (means.T * counts) @ means
    size = np.trace(products)
    if np.abs(part.products - products).max() > PRECISION * size:
        return "the products in its moments are not those of its sums"
    try:
        slack = PRECISION * np.trace(part.within) + np.finfo(np.float64).tiny
        np.linalg.cholesky(part.within + slack * np.eye(len(part.within)))
    except np.linalg.LinAlgError:
        return "its scatter is that of no samples: it has a negative eigenvalue"
    return None


def total_problem(total: Reply, counts: Floats) -> str | None:
    """What is wrong with a secure sum in which these `counts` are: all that can be seen of a lie in it, never whose."""
    if counts.min() < 0 or abs(float(counts.sum()) - total.num_examples) > PRECISION * total.num_examples:
        return (
            f"their secure sum counts {counts.sum():g} samples where they have {total.num_examples:,}: one of them lied"
            " or broke the protocol, and nobody can see who"
        )
    return None


def histogram_problem(vector: Vector, counts: Floats) -> str | None:
    """What is wrong with an answer to `FeatureHistogram` of a client whose moments had these class counts [Y]."""
    cells = vector.astype(np.float64).reshape(len(counts), -1)
    if cells.min() < 0:
        return "a cell of its histogram is negative"
    if (np.abs(cells.sum(axis=1) - counts) > PRECISION * np.maximum(1, counts)).any():
        return "its histogram does not add up to the samples of each class that its moments have"
    return None


def triplet_problem(
    triplet: Floats,
    num_samples: int,
    num_classes: int,
    num_attributes: int,
    counts: Floats | None = None,
    implied: Floats | None = None,
) -> str | None:
    """Why no table of so many samples has this triplet, if none has; with its class `counts` told before and the
    triplet `implied` by its histogram, why it is not its own.

    CI and AI cannot be below that of the evenest counts, nor between that of a single odd sample and 1; and mutual
    information is at most the smaller entropy.
    """
    ci, ai, sc = triplet.tolist()
    for name, value, size in (("CI", ci, num_classes), ("AI", ai, num_attributes)):
        if not _is_imbalance(value, num_samples, size):
            return f"no {num_samples:,} samples of {size} kinds have its {name} of {value:g}"
    entropies = [(1 - ci) * math.log(num_classes), (1 - ai) * math.log(num_attributes)]
    if sc * sum(entropies) > 2 * min(entropies) + PRECISION:
        return f"its SC of {sc:g} is more than its CI of {ci:g} and AI of {ai:g} leave room for"
    if counts is not None and abs(ci - (own := float(class_imbalance(counts[:, None])))) > CI_ERROR:
        return f"its CI of {ci:g} is not the {own:g} of the class counts in its moments"
    if implied is not None and np.abs(triplet - implied).max() > ERROR:
        said, shown = (", ".join(f"{value:.2f}" for value in values) for values in (triplet, implied))
        return f"its triplet ({said}) is not the ({shown}) that its histogram shows"
    return None


def implied_triplet(cells: Floats, points: Floats, centres: Floats, shares: Floats) -> Floats:
    """The triplet that a client with this histogram [Y, cells] finds, had all samples of a cell been in its middle.

    `points` [cells, q]; `centres` [Y, A, q] and `shares` [Y, A] as in `AttributeTriplet`.
    """
    sizes = cells.sum(axis=1)[:, None]
    distances = np.square(points[None, :, None] - centres[:, None]).sum(axis=3)  # [Y, cells, A]
    likelihoods = np.exp(-0.5 * (distances - distances.min(axis=2, keepdims=True)))
    own = shares
    for _ in range(ITERATIONS):
        posterior = likelihoods * own[:, None]
        posterior /= posterior.sum(axis=2, keepdims=True)
        own = ((cells[..., None] * posterior).sum(axis=1) + PRIOR_SAMPLES * shares) / (sizes + PRIOR_SAMPLES)
    nearest = (likelihoods * own[:, None]).argmax(axis=2)
    table = np.stack([(cells * (nearest == a)).sum(axis=1) for a in range(shares.shape[1])], axis=1)
    return np.asarray(table_triplet(table))


def _is_imbalance(value: float, num_samples: int, size: int) -> bool:
    """Whether counts of `num_samples` in `size` kinds can be so uneven."""
    if size < 2:
        return value <= ROUNDING
    evenest = np.full(size, num_samples // size) + (np.arange(size) < num_samples % size)
    one_odd = np.array([num_samples - 1, 1])
    least, most = (1 - _entropy(counts) / math.log(size) for counts in (evenest, one_odd))
    return least - ROUNDING <= value <= most + ROUNDING or value >= 1 - ROUNDING


def _entropy(counts: NDArray[np.int64]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


@dataclass(frozen=True)
class Trusted:
    """The sums of those whose moments are trusted, and why others are left out of them. `counts`: class counts [Y] of
    every client that answered."""

    scatter: Scatter
    counts: Mapping[int, Floats]
    left_out: Mapping[int, str]


def trusted_scatter(
    replies: Iterable[Reply], num_classes: int, num_axes: int, largest_share: float = 0.5
) -> Trusted | None:
    """Add the answers to `FeatureMoments` up, without those that stand against all others; None if there is none.

    How many features there are, most clients tell. Left out is who has features much longer than the others'; and then,
    one at a time, who makes up more than `largest_share` of all that clients differ in along a leading direction: what
    one alone of `FEW` or more clients shows cannot be told from a lie. The answers lie in a temporary file meanwhile.
    """
    with ExitStack() as opened:
        spools: dict[int, Spool] = {}
        senders: dict[int, list[int]] = {}
        lengths: dict[int, float] = {}  # client → mean squared length of its features
        counts: dict[int, Floats] = {}
        for reply in replies:
            size = reply.numbers.size
            if size not in spools:
                spools[size], senders[size] = opened.enter_context(Spool(size)), []
            spools[size].append(reply.numbers)
            senders[size].append(reply.client)
            part = Scatter.unpack(reply.numbers.astype(np.float64), num_classes)
            counts[reply.client] = part.counts
            lengths[reply.client] = float(np.trace(part.within + part.products) / max(1.0, part.counts.sum()))
        if not spools:
            return None
        size = Counter({size: len(clients) for size, clients in senders.items()}).most_common(1)[0][0]
        spool, clients = spools[size], senders[size]
        usual = float(np.median([lengths[client] for client in clients]))
        others = {
            client: f"it has {num_features(other, num_classes):,} features where most clients have"
            f" {num_features(size, num_classes):,}"
            for other in sorted(senders.keys() - {size})
            for client in senders[other]
        }
        left_out = {
            client: f"its features are {math.sqrt(lengths[client] / usual):.0f} times as long as the median client's"
            for client in clients
            if len(clients) > 2 and lengths[client] > TOO_LONG * usual > 0
        }
        while True:
            scatter = _sum(spool, clients, left_out, num_classes)
            if scatter is None or len(clients) - len(left_out) < FEW:
                break
            axes = leading_axes(scatter, num_axes)
            if axes is None:
                break
            kept = [i for i, client in enumerate(clients) if client not in left_out]
            spread = np.stack([_part(spool, i, num_classes).along(scatter, axes) for i in kept])
            shares = (spread / np.maximum(spread.sum(axis=0), 1e-300)).max(axis=1)
            worst = int(shares.argmax())
            if shares[worst] <= largest_share:
                break
            left_out[clients[kept[worst]]] = (
                f"it alone makes up {shares[worst]:.0%} of what clients differ in, which cannot be told from a lie"
            )
    return None if scatter is None else Trusted(scatter, counts, others | left_out)


def _part(spool: Spool, position: int, num_classes: int) -> Scatter:
    return Scatter.unpack(spool.row(position).astype(np.float64), num_classes)


def _sum(spool: Spool, clients: list[int], without: Mapping[int, str], num_classes: int) -> Scatter | None:
    total = np.zeros(spool.length)
    for position, client in enumerate(clients):
        if client not in without:
            total += spool.row(position)
    return Scatter.unpack(total, num_classes) if len(without) < len(clients) else None
