"""HCSFed: hybrid client selection by clusters (paper, Sec. V-C, baseline 6).

Song, Shen, Gao, Yang, Zhou, Pan, Lou, Zhou: "Fast heterogeneous federated learning with hybrid client selection",
UAI 2023 (arXiv 2208.05135), as the released code of our paper has it (Erosinho13/SpuriousFL, `weighting_strategy.py`),
the full text of Song et al. not being at hand:

1. Every client trains once and sends its update compressed to a fraction of |θ| (`Sketch`, in the first choice).
2. k-means gathers the sketches in clusters.
3. A cluster of N_h clients gets m_h ∝ N_h·S_h of the k places, S_h = Σ_{i,j} ‖x_i − x_j‖²/(N_h − 1) over its sketches
   x. (Neyman's allocation, the one of least variance, would have a deviation in the place of S_h, which is a variance
   times 2·N_h.) No cluster has a place for sure: a single client has S_h = 0, and a place only when all others are
   full.
4. Within its cluster a client is drawn without replacement with probability proportional to its sketch's norm.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from feddiverse import seeding
from feddiverse.messages import Ask, Plain, Reply, Sketch
from feddiverse.selection.base import Selector
from feddiverse.selection.draws import by_weight, sorted_ids
from feddiverse.server.replies import answers

Floats = NDArray[np.float64]


def allocate(sizes: Floats, spreads: Floats, k: int) -> list[int]:
    """Places m_h of each cluster: m_h ∝ N_h·S_h in whole numbers, m_h ≤ N_h, summing to `k` ≤ ΣN_h.

    Places are given one at a time to the cluster farthest below its share; without any spread shares are the clusters'
    sizes.
    """
    shares = sizes * spreads if (sizes * spreads).any() else sizes
    shares = shares * k / shares.sum()
    places = np.zeros(len(sizes), np.int64)
    while places.sum() < k:
        places[np.where(places < sizes, shares - places, -np.inf).argmax()] += 1
    result: list[int] = places.tolist()
    return result


class HCSFed(Selector):
    """Clusters of similar clients, the varied and large ones more than the others, and in each who moves θ most.

    Clients that come later send their sketch then and join the nearest cluster.
    """

    def __init__(
        self,
        seed: int,
        hcsfed_clusters: int = 3,
        hcsfed_rate: float = 1e-5,
        epochs: int = 1,
        batch_size: int = 28,
        lr: float = 0.001,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        prox_mu: float = 0.0,
        flip: bool = False,
        crop_padding: int = 0,
        padding: str = "constant",
    ) -> None:
        self.num_clusters = hcsfed_clusters
        self.question = Sketch(
            seed, 0, epochs, batch_size, lr, momentum, weight_decay, prox_mu, flip, crop_padding, padding,
            rate=hcsfed_rate,
        )  # fmt: skip
        self._sketches: dict[int, list[float]] = {}
        self._centres: Floats = np.zeros((0, 0))

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        self._gather(round, clients, ask)
        ids = sorted_ids(clients)
        silent = np.array([i not in self._sketches for i in ids.tolist()], bool)
        chosen = self._from_clusters(ids[~silent], min(k, int((~silent).sum())), rng)
        # Who sent no sketch is asked only where the others are too few.
        return chosen + by_weight(ids[silent], np.ones(int(silent.sum())), k - len(chosen), rng)

    def _gather(self, round: int, clients: Mapping[int, int], ask: Ask) -> None:
        new = {i: size for i, size in clients.items() if i not in self._sketches}
        if not new:
            return
        length = self._centres.shape[1] if len(self._centres) else None
        question = replace(self.question, round=round)
        found = {
            reply.client: reply.vector.astype(np.float64).tolist()
            for reply in answers(question, new, ask, length=length, check=_check_sketch)
            if reply.vector is not None
        }
        if found:
            # |θ| is not known here: how long a sketch is, most clients tell. Others are asked again, and then refused.
            usual = length or Counter(map(len, found.values())).most_common(1)[0][0]
            self._sketches |= {i: sketch for i, sketch in found.items() if len(sketch) == usual}
        if self._sketches and not len(self._centres):
            known = np.array([self._sketches[i] for i in sorted(self._sketches)], np.float64)
            self._centres = centres(known, self.num_clusters, self.question.seed)

    def _from_clusters(self, ids: NDArray[np.int64], k: int, rng: np.random.Generator) -> list[int]:
        if not k:
            return []
        sketches = np.array([self._sketches[i] for i in ids.tolist()], np.float64)
        nearest = np.linalg.norm(sketches[:, None] - self._centres[None], axis=2).argmin(axis=1)
        members = [np.flatnonzero(nearest == h) for h in np.unique(nearest)]
        spreads = np.array([spread(sketches[m]) for m in members])
        places = allocate(np.array([len(m) for m in members], np.float64), spreads, k)
        norms = np.linalg.norm(sketches, axis=1)
        return [i for m, n in zip(members, places, strict=True) for i in by_weight(ids[m], norms[m], n, rng)]

    def findings(self) -> Plain:
        return {"centres": self._centres.tolist(), "sketches": {str(i): s for i, s in sorted(self._sketches.items())}}

    def state(self) -> Plain:
        return {"sketches": [[i, *s] for i, s in self._sketches.items()], "centres": self._centres.tolist()}

    def restore(self, state: Plain) -> None:
        self._sketches = {int(i): list(s) for i, *s in state["sketches"]}
        self._centres = np.array(state["centres"], np.float64)


def spread(sketches: Floats) -> float:
    """S_h of a cluster's sketches [N, d]: Σ_{i,j} ‖x_i − x_j‖²/(N − 1), where the sum is 2N² times their variance."""
    n = len(sketches)
    return 2 * n * n * float(sketches.var(axis=0).sum()) / (n - 1) if n > 1 else 0.0


def _check_sketch(reply: Reply) -> str | None:
    return None if reply.vector is not None and reply.vector.size else "its sketch is empty"


def centres(sketches: Floats, num_clusters: int, seed: int) -> Floats:
    """k-means centres [h, d] of sketches [K, d]; fewer where there are fewer different sketches."""
    from sklearn.cluster import KMeans

    num_clusters = min(num_clusters, len(np.unique(sketches, axis=0)))
    state = seeding.integer(seed, "hcsfed clusters") % 2**32
    found: Floats = KMeans(num_clusters, n_init=10, random_state=state).fit(sketches).cluster_centers_
    return found
