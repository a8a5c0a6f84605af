"""HiCS-FL: hierarchical clustered sampling, guided by how balanced a client's labels seem.

Chen, Vikalo: "Heterogeneity-guided client sampling: towards fast and efficient non-IID federated learning", NeurIPS
2024 (arXiv 2310.00198), Alg. 1, eq. 7, 9 and 10; constants from the authors' code (CityChan/HiCS-FL).

Training on cross-entropy moves the bias of a model's output layer towards the client's own label distribution. So the
server reads off each update it gets anyway how even the labels behind it are: no client is asked anything.

Where code and paper differ, the paper: the code takes the mean of each row of the output layer's *weights* in place of
its bias for the entropy, both of them for the angle, draws uniformly within a cluster, falls back to clustered sampling
where entropies vary much, and keeps a client's first update where clients are made to differ in how even they are.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from feddiverse.messages import Ask, Plain, Reply, Vector
from feddiverse.selection.base import Selector
from feddiverse.selection.draws import Floats, Ids, by_weight, sorted_ids


def estimated_entropy(updates: Floats, temperature: float) -> Floats:
    """Ĥ [K] of bias updates Δb [K, classes]: the entropy of softmax(Δb/T) (eq. 7)."""
    logits = updates / temperature
    logits = logits - logits.max(axis=1, keepdims=True)
    shares = np.exp(logits)
    sums = shares.sum(axis=1)
    result: Floats = np.log(sums) - (shares * logits).sum(axis=1) / sums
    return result


def distances(updates: Floats, entropies: Floats, entropy_weight: float) -> Floats:
    """[K, K]: the angle between two clients' Δb, and λ times the difference of their entropies (eq. 9)."""
    norms = np.linalg.norm(updates, axis=1)
    directions = updates / np.where(norms > 0, norms, 1.0)[:, None]
    angles = np.arccos(np.clip(directions @ directions.T, -1.0, 1.0))
    angles[norms == 0] = 0.0
    angles[:, norms == 0] = 0.0
    result: Floats = angles + entropy_weight * np.abs(entropies[:, None] - entropies)
    return result


def clusters(between: Floats, num_clusters: int) -> NDArray[np.intp]:
    """[K]: the cluster of each client, by Ward's method on the rows of `between` [K, K], as in the authors' code."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist

    if len(between) < 2:
        return np.zeros(len(between), np.intp)
    merges = linkage(pdist(between), "ward")  # rows as points, though they are distances themselves
    labels: NDArray[np.intp] = fcluster(merges, num_clusters, criterion="maxclust") - 1
    return labels


class HiCSFL(Selector):
    """Until everyone was asked once, clients never asked; then clusters drawn with probability ∝ exp(γ_t·H̄), H̄ the mean
    estimated entropy of their clients' labels, and in them clients by their number of samples.

    γ_t = γ·(1 − t/T) falls to 0 in the run's T rounds: first balanced clients are preferred, in the end none. There are
    as many clusters as clients a round (`clusters` = 0), as in the authors' experiments. The temperature is given in
    units of the learning rate, since updates are proportional to it: theirs is 0.001 or 0.0015 at a rate of 0.001.
    A client whose update never comes rests for 2, 4, 8, … rounds (ours), so that it is not tried in each.
    """

    wants_updates = True

    def __init__(
        self,
        head_bias: slice,
        rounds: int,
        lr: float = 0.001,
        clusters: int = 0,
        temperature: float = 1.0,
        entropy_weight: float = 10.0,
        gamma: float = 4.0,
    ) -> None:
        self.head_bias = head_bias
        self.rounds = rounds
        self.temperature = temperature * lr
        self.num_clusters = clusters
        self.entropy_weight = entropy_weight
        self.gamma = gamma
        self._updates: dict[int, list[float]] = {}  # client → Δb of its last round
        self._tried: dict[int, tuple[int, int]] = {}  # client without one → how often it was asked, and when last

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        ids = sorted_ids(clients)
        known = np.array([i in self._updates for i in ids.tolist()], bool)
        rests = np.array([self._rests(i, round) for i in ids.tolist()], bool)
        chosen = by_weight(ids[~known & ~rests], np.ones(int((~known & ~rests).sum())), k, rng)
        chosen += self._from_clusters(round, ids[known], clients, k, k - len(chosen), rng)
        chosen += by_weight(ids[~known & rests], np.ones(int((~known & rests).sum())), k - len(chosen), rng)
        for i in chosen:
            if i not in self._updates:
                self._tried[i] = (self._tried.get(i, (0, 0))[0] + 1, round)
        return chosen

    def _rests(self, client: int, round: int) -> bool:
        times, last = self._tried.get(client, (0, 0))
        return times > 0 and round <= last + 2**times

    def _from_clusters(
        self, round: int, ids: Ids, clients: Mapping[int, int], k: int, places: int, rng: np.random.Generator
    ) -> list[int]:
        """`places` of `ids`, or all of them."""
        if not len(ids) or not places:
            return []
        entropies, cluster = self._clustered(ids, self.num_clusters or k)
        num_clusters = int(cluster.max()) + 1
        mean = np.bincount(cluster, entropies, num_clusters) / np.bincount(cluster, minlength=num_clusters)
        exponents = self.gamma * max(0.0, 1 - round / self.rounds) * mean
        preference = np.exp(exponents - exponents.max())
        left = np.array([clients[i] for i in ids.tolist()], np.float64)
        left = np.where(left > 0, left, 1e-9)
        chosen: list[int] = []
        for _ in range(min(places, len(ids))):
            weights = preference * (np.bincount(cluster, left, num_clusters) > 0)
            members = left * (cluster == rng.choice(num_clusters, p=weights / weights.sum()))
            position = int(rng.choice(len(ids), p=members / members.sum()))
            chosen.append(int(ids[position]))
            left[position] = 0.0
        return chosen

    def _clustered(self, ids: Ids, num_clusters: int) -> tuple[Floats, NDArray[np.intp]]:
        updates = np.array([self._updates[i] for i in ids.tolist()], np.float64)
        entropies = estimated_entropy(updates, self.temperature)
        return entropies, clusters(distances(updates, entropies, self.entropy_weight), num_clusters)

    def observe(self, round: int, theta: Vector, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if reply.vector is not None:
                before, after = theta[self.head_bias], reply.vector[self.head_bias]
                self._updates[reply.client] = (after.astype(np.float64) - before).tolist()
                self._tried.pop(reply.client, None)

    def findings(self) -> Plain:
        known = sorted(self._updates)
        if not known:
            return {}
        updates = np.array([self._updates[i] for i in known], np.float64).reshape(len(known), -1)
        entropies = estimated_entropy(updates, self.temperature).tolist()
        return {"estimated_label_entropy": {str(i): entropy for i, entropy in zip(known, entropies, strict=True)}}

    def state(self) -> Plain:
        return {
            "updates": [[i, *update] for i, update in self._updates.items()],
            "tried": [[i, times, last] for i, (times, last) in self._tried.items()],
        }

    def restore(self, state: Plain) -> None:
        self._updates = {int(i): list(update) for i, *update in state["updates"]}
        self._tried = {int(i): (int(times), int(last)) for i, times, last in state["tried"]}
