"""Samples that clients never train on, so that a model can be judged where the data is.

Who holds what out follows from the seed, the client's number and its labels alone: a deployed client, which has no more
than its own file, draws the same samples as in a simulation.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from feddiverse import seeding
from feddiverse.data.federation import Federation, Ids, Samples


def is_held_out(y: Ids, share: float, seed: int, client: int) -> NDArray[np.bool_]:
    """[n]: about `share` of each class of a client, rounded; never all of a class.

    >>> is_held_out(np.array([0, 0, 0, 0, 0, 1]), 0.2, seed=0, client=3).sum()
    np.int64(1)
    """
    held = np.zeros(len(y), np.bool_)
    for label in np.unique(y).tolist():
        members = np.flatnonzero(y == label)
        number = min(int(share * len(members) + 0.5), len(members) - 1)
        held[seeding.rng(seed, "held out", round=label, client=client).permutation(members)[:number]] = True
    return held


def hold_out_of(samples: Samples, share: float, seed: int, client: int) -> Samples:
    """A client's samples, the share it holds out apart."""
    held = is_held_out(samples.y, share, seed, client)
    a = None if samples.a is None else samples.a[~held]
    return Samples(samples.x[~held], samples.y[~held], a, held_out=Samples(samples.x[held], samples.y[held], None))


def with_holdout(federation: Federation, share: float, seed: int) -> Federation:
    """`Federation.with_holdout`. Its counts are those of the samples to train on."""
    ids, attributes, held_out = [], [], []
    counts = np.zeros_like(federation.counts)
    for k, (own, a) in enumerate(zip(federation.client_ids, federation.client_a, strict=True)):
        y = federation.source.train_y[own]
        held = is_held_out(y, share, seed, k)
        ids.append(own[~held])
        attributes.append(a[~held])
        held_out.append((own[held], a[held]))
        np.add.at(counts[k], (y[~held], a[~held]), 1)
    return replace(federation, counts=counts, client_ids=ids, client_a=attributes, held_out=held_out)
