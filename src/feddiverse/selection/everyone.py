"""No selection at all: what FedNova is compared with in the paper (Sec. V-C, baseline 3)."""

from collections.abc import Mapping

import numpy as np

from feddiverse.messages import Ask
from feddiverse.selection.base import Selector
from feddiverse.selection.draws import sorted_ids


class Everyone(Selector):
    """All available clients in every round, whatever `k` says."""

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        ids: list[int] = sorted_ids(clients).tolist()
        return ids
