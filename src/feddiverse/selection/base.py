"""The seam of client selection: one small base class, one file a selector."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from feddiverse.messages import Ask, Plain, Reply, Vector


class Selector(ABC):
    """Chooses whom to ask in each round. Subclasses override what they need; state is plain data.

    >>> class Largest(Selector):
    ...     def choose(self, round, k, clients, ask, rng):
    ...         return sorted(clients, key=lambda client: -clients[client])[:k]
    >>> Largest().choose(1, 2, {0: 10, 1: 30, 2: 20}, ask=None, rng=np.random.default_rng(0))
    [1, 2]

    `wants_updates`: whether `observe` needs the clients' vectors θ_k (else they are dropped as soon as aggregated).
    """

    wants_updates: ClassVar[bool] = False

    @abstractmethod
    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        """`min(k, len(clients))` different ids out of `clients` (id → number of samples, any order)."""

    def observe(self, round: int, theta: Vector, replies: Sequence[Reply]) -> None:  # noqa: B027 (may stay so)
        """What came back from the chosen clients, trained from `theta`; failed ones are left out."""

    def warnings(self) -> list[str]:
        """What a reader of the choices and findings should know, a sentence each; a run tells each once."""
        return []

    def findings(self) -> Plain:
        """What a reader of the run wants to see of what the selector has learnt (triplets, clusters, …)."""
        return {}

    def state(self) -> Plain:
        """What must be remembered between rounds: plain data that survives a trip through JSON."""
        return {}

    def restore(self, state: Plain) -> None:  # noqa: B027 (may stay so)
        """Take back what `state` gave, so that a resumed run makes the same choices."""
