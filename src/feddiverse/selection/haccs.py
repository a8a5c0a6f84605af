"""HACCS: heterogeneity-aware clustered client selection.

Wolfrath, Sreekumar, Kumar, Wang, Chandra: "HACCS: heterogeneity-aware clustered client selection for accelerated
federated learning", IPDPS 2022, and the authors' code (NS-PhD-Research/HACCS: common/summary, server/scheduler), its
summary P(y). Clients tell their label histograms, with noise if asked to; OPTICS (min_samples 2, cut at 0.25 as DBSCAN
would) gathers those of small Hellinger distance; clusters are drawn by their loss, so that every distribution is heard,
not every client.

Left out, because a choice that depends on the clock cannot be repeated: there half of a cluster's weight is how fast
its clients are (ρ = 0.5; here 0), and the fastest of it are taken; here any. Their code measures Euclidean distance,
with the paper's Hellinger distance in a comment; here it is Hellinger's. Their loss is the share of wrong answers that
every client tells after each round; ours is the loss a client met in its last training, which costs nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feddiverse.messages import LabelCounts, Plain, Reply, Vector
from feddiverse.selection.labels import Floats, LabelSelector

MIN_SAMPLES, RADIUS = 2, 0.25


def hellinger(counts: Floats) -> Floats:
    """[K, K]: √(Σ_y (√p_y − √q_y)²)/√2 between the label shares p, q of the rows of `counts` [K, classes]."""
    roots = np.sqrt(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300))
    squared = np.square(roots).sum(axis=1)[:, None] + np.square(roots).sum(axis=1) - 2 * roots @ roots.T
    between: Floats = np.sqrt(np.clip(squared, 0.0, None) / 2)
    np.fill_diagonal(between, 0.0)
    return between


def clusters(counts: Floats) -> NDArray[np.intp]:
    """[K]: the cluster of each client; one that is like no other is a cluster of its own."""
    from sklearn.cluster import OPTICS

    if len(counts) < MIN_SAMPLES:
        return np.arange(len(counts))
    optics = OPTICS(min_samples=MIN_SAMPLES, cluster_method="dbscan", eps=RADIUS, metric="precomputed")
    labels: NDArray[np.intp] = optics.fit_predict(hellinger(counts)).astype(np.intp)
    alone = np.flatnonzero(labels < 0)
    labels[alone] = labels.max() + 1 + np.arange(len(alone))
    return labels


class HACCS(LabelSelector):
    """Places for clusters of clients with similar labels, in proportion to the mean squared loss of each; any client
    within. Clusters nobody was heard of yet count as much as the worst of the others.

    `epsilon` > 0: clients add discrete Laplace noise to their counts before they send them, as with the config key
    `privacy_epsilon` (docs/trust.md).
    """

    def __init__(self, seed: int, num_classes: int, epsilon: float = 0.0) -> None:
        super().__init__(seed, num_classes)
        self.epsilon = epsilon
        self._losses: dict[int, float] = {}  # client → the mean loss of its last training
        self._clustered: tuple[Floats, NDArray[np.intp]] | None = None  # clusters of these counts

    def question(self, round: int) -> LabelCounts:
        return LabelCounts(self.seed, round, epsilon=self.epsilon)

    def pick(self, ids: NDArray[np.int64], counts: Floats, k: int, rng: np.random.Generator) -> list[int]:
        if self._clustered is None or not np.array_equal(self._clustered[0], counts):
            self._clustered = counts, clusters(counts)
        cluster = self._clustered[1]
        weights = self._weights(ids, cluster)
        members = [rng.permutation(np.flatnonzero(cluster == h)).tolist() for h in range(len(weights))]
        chosen: list[int] = []
        for h, expected in enumerate((k * weights / weights.sum()).astype(np.int64).tolist()):
            chosen += members[h][:expected]
            members[h] = members[h][expected:]
        while len(chosen) < k:  # the rest at random, by the same weights
            open_weights = np.array([w if m else 0.0 for w, m in zip(weights, members, strict=True)])
            chosen.append(members[int(rng.choice(len(weights), p=open_weights / open_weights.sum()))].pop())
        return chosen

    def _weights(self, ids: NDArray[np.int64], cluster: NDArray[np.intp]) -> Floats:
        squared = np.array([self._losses.get(i, np.nan) ** 2 for i in ids.tolist()])
        heard = np.isfinite(squared)
        num_clusters = int(cluster.max()) + 1
        sums = np.bincount(cluster[heard], squared[heard], num_clusters)
        sizes = np.bincount(cluster[heard], minlength=num_clusters)
        means = sums / np.maximum(sizes, 1)
        weights: Floats = np.where(sizes > 0, means, means.max() if heard.any() else 1.0)
        return np.maximum(weights, 1e-12)

    def observe(self, round: int, theta: Vector, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if np.isfinite(loss := reply.metrics.get("loss", np.nan)):
                self._losses[reply.client] = float(loss)

    def findings(self) -> Plain:
        known = sorted(self._counts)
        if not known:
            return {}
        labels = clusters(np.array([self._counts[i] for i in known], np.float64)).tolist()
        return {"clusters": {str(i): label for i, label in zip(known, labels, strict=True)}}

    def state(self) -> Plain:
        return {**super().state(), "losses": [[i, loss] for i, loss in self._losses.items()]}

    def restore(self, state: Plain) -> None:
        super().restore(state)
        self._losses = {int(i): float(loss) for i, loss in state["losses"]}
        self._clustered = None
