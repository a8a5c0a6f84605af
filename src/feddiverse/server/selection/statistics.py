"""What explains a run: who was chosen how often, and what data each round pooled."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddiverse.heterogeneity import Counts


@dataclass(frozen=True)
class SelectionStatistics:
    """Of T rounds over K clients."""

    times_chosen: NDArray[np.int64]  # [K]
    effective_clients: float  # exp of the entropy of the shares of choices: K if all alike, 1 if always the same one
    pooled: NDArray[np.int64]  # [T, class, attribute]: samples of each group at the chosen clients
    smallest_share: NDArray[np.float64]  # [T]: the smallest group's share of that round's samples; 1/(Y·A) is balance

    def summary(self) -> dict[str, float]:
        """The few numbers for a table."""
        return {
            "clients_chosen": float((self.times_chosen > 0).sum()),
            "effective_clients": self.effective_clients,
            "most_often": float(self.times_chosen.max(initial=0)),
            "smallest_share_mean": float(self.smallest_share.mean()) if len(self.smallest_share) else 0.0,
        }


def statistics(selected: Sequence[Sequence[int]], counts: Counts) -> SelectionStatistics:
    """From the ids chosen in each round and the federation's counts [K, class, attribute]."""
    num_clients = len(counts)
    times = np.bincount(np.array([i for ids in selected for i in ids], np.int64), minlength=num_clients)
    shares = times[times > 0] / max(1, times.sum())
    groups = counts.shape[1:]
    pooled = np.array([counts[list(ids)].sum(axis=0) for ids in selected], np.int64).reshape(-1, *groups)
    samples = pooled.sum(axis=(1, 2))
    return SelectionStatistics(
        times_chosen=times,
        effective_clients=float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else 0.0,
        pooled=pooled,
        smallest_share=pooled.min(axis=(1, 2)) / np.maximum(samples, 1),
    )
