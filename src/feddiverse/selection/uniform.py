"""Uniform random selection (paper, Sec. V-C, baseline 1)."""

from collections.abc import Mapping

import numpy as np

from feddiverse.messages import Ask
from feddiverse.selection.base import Selector
from feddiverse.selection.draws import sorted_ids


class Uniform(Selector):
    """Every set of `k` clients is equally likely, whatever happened before."""

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        ids = sorted_ids(clients)
        chosen: list[int] = rng.choice(ids, size=min(k, len(ids)), replace=False).tolist()
        return chosen
