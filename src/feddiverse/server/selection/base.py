"""The seam of client selection: one small base class, one file a selector."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from feddiverse.messages import Ask, Plain, Reply, Vector


class Selector:
    """Chooses whom to ask in each round. Subclasses override what they need; state is plain data.

    `pretraining_rounds`: rounds of plain FedAvg with every client before the first choice (the paper's T0).
    `wants_updates`: whether `observe` needs the clients' vectors θ_k (else they are dropped as soon as aggregated).
    """

    pretraining_rounds: int = 0
    wants_updates: ClassVar[bool] = False

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        """`min(k, len(clients))` different ids out of `clients` (id → number of samples, any order)."""
        raise NotImplementedError

    def observe(self, round: int, theta: Vector, replies: Sequence[Reply]) -> None:
        """What came back from the chosen clients, trained from `theta`; failed ones are left out."""

    def doubts(self) -> list[str]:
        """Why the last choice may not be what its reader thinks, a sentence each; the loop makes them warnings."""
        return []

    def findings(self) -> Plain:
        """What a reader of the run wants to see of what the selector has learnt (triplets, clusters, …)."""
        return {}

    def state(self) -> Plain:
        """What must be remembered between rounds: plain data that survives a trip through JSON."""
        return {}

    def restore(self, state: Plain) -> None:
        """Take back what `state` gave, so that a resumed run makes the same choices."""
