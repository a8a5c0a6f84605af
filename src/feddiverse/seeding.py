"""All randomness of a run, keyed by (seed, purpose, round, client).

Nothing else in the package makes random numbers. A key never depends on order, time, process or engine, which is
why one worker or many, interrupted and resumed or not, give the same bits.
"""

import hashlib

import numpy as np


def _sequence(seed: int, purpose: str, round: int, client: int) -> np.random.SeedSequence:
    digest = hashlib.sha256(purpose.encode()).digest()
    return np.random.SeedSequence([seed, int.from_bytes(digest[:8], "big"), round, client])


def rng(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """The random stream for one purpose ("train", "select", "split", …) in one round on one client."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, round, client)))


def integer(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit seed for a library that keeps its own generator, such as torch."""
    return int(_sequence(seed, purpose, round, client).generate_state(1, np.uint64)[0] >> np.uint64(1))
