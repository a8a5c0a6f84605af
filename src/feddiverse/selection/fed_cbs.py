"""Fed-CBS: class-balanced sampling.

Zhang, Li, Tang, Sun, Chen, Zhang, Chen, Chen, Li: "Fed-CBS: a heterogeneity-aware client sampling mechanism for
federated learning via class-imbalance reduction", ICML 2023. The formulas, β_m = m and λ = 10 are those of three public
reimplementations; neither the paper's text nor the authors' own code was at hand to check. There the server learns the
inner products of label distributions under homomorphic encryption; here clients send their class counts in the clear,
which gives the same numbers.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from feddiverse.messages import Plain
from feddiverse.selection.labels import Floats, LabelSelector

EXPLORATION = 10.0  # λ
LEAST = 1e-3  # of QCID, by which the rule divides: sets more balanced than this count as equally good


def imbalance(counts: Floats) -> Floats:
    """QCID of each row [K, classes]: Σ_y (share of class y − 1/|Y|)²."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
    result: Floats = np.square(shares - 1 / counts.shape[1]).sum(axis=1)
    return result


class FedCBS(LabelSelector):
    """One client after the other, the more likely the more balanced it makes the pooled labels.

    The first is drawn with probability ∝ 1/QCID + λ·√(3 ln t / (2 T_c)), T_c being how often c was chosen in t rounds;
    the m-th with probability ∝ 1/QCID(those chosen and c)^m. (The paper's formulas for m ≥ 2 have a numerator that is
    the same for every candidate.)

    Ours: 1/QCID counts as λ at most for the first. A perfectly balanced client would else have an endless weight, and
    nothing would be explored; where no client alone is balanced, as in the paper's experiments, that changes little.
    """

    def __init__(self, seed: int, num_classes: int) -> None:
        super().__init__(seed, num_classes)
        self._times_chosen: Counter[int] = Counter()
        self._num_rounds = 0

    def pick(self, ids: NDArray[np.int64], counts: Floats, k: int, rng: np.random.Generator) -> list[int]:
        self._num_rounds += 1
        left = np.ones(len(counts), bool)
        pooled = np.zeros(counts.shape[1])
        chosen: list[int] = []
        for m in range(1, k + 1):
            qcid = np.maximum(imbalance(counts + pooled), LEAST)
            if m == 1:
                times = np.array([max(1, self._times_chosen[i]) for i in ids.tolist()])
                weights = np.minimum(1 / qcid, EXPLORATION)
                weights += EXPLORATION * np.sqrt(1.5 * np.log(self._num_rounds) / times)
            else:  # 1/QCID^m, as parts of the largest: a thousandth power would be no number
                weights = np.where(left, qcid[left].min() / qcid, 0.0) ** m
            chosen.append(int(rng.choice(len(counts), p=weights / weights.sum())))
            left[chosen[-1]] = False
            pooled += counts[chosen[-1]]
        self._times_chosen.update(ids[chosen].tolist())
        return chosen

    def state(self) -> Plain:
        return {
            **super().state(),
            "times_chosen": [list(pair) for pair in self._times_chosen.items()],
            "num_rounds": self._num_rounds,
        }

    def restore(self, state: Plain) -> None:
        super().restore(state)
        self._times_chosen = Counter(dict(state["times_chosen"]))
        self._num_rounds = int(state["num_rounds"])
