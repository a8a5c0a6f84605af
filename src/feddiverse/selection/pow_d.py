"""pow-d: power of choice (paper, Sec. V-C, baseline 4).

Cho, Wang, Joshi: "Towards understanding biased client selection in federated learning", AISTATS 2022 (first as
"Client selection in federated learning: convergence analysis and power-of-choice selection strategies"), Sec. 4.
"""

from collections.abc import Mapping

import numpy as np

from feddiverse.messages import Ask, Loss
from feddiverse.selection.base import Selector
from feddiverse.selection.draws import by_weight, clipped, lowest, sorted_ids
from feddiverse.server.replies import answers


class PowD(Selector):
    """The `k` clients with the highest loss of the current model, among d candidates.

    Candidates are drawn without replacement with probability proportional to their number of samples, as Cho et al.
    do; d = 0 takes every client, as our paper's overhead section does. (Its text asks for the lowest losses: a slip.)

    `loss_quantile` (ours; 1: off): losses above this quantile count as it, so that those who claim most draw lots.
    """

    def __init__(self, seed: int, pow_d_candidates: int = 0, loss_quantile: float = 1.0) -> None:
        self.seed = seed
        self.num_candidates = pow_d_candidates
        self.loss_quantile = loss_quantile

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        ids = sorted_ids(clients)
        sizes = np.array([clients[i] for i in ids.tolist()], np.float64)
        num_candidates = max(k, self.num_candidates) if self.num_candidates else len(ids)
        candidates = np.sort(np.array(by_weight(ids, sizes, num_candidates, rng), np.int64))
        asked = {i: clients[i] for i in candidates.tolist()}
        losses = {reply.client: reply.metrics["loss"] for reply in answers(Loss(self.seed, round), asked, ask)}
        values = clipped(np.array([*losses.values()], np.float64), self.loss_quantile)
        losses = dict(zip(losses, values.tolist(), strict=True))
        # Who gave no answer may fail again: it comes last.
        return lowest(candidates, np.array([-losses.get(i, -np.inf) for i in asked], np.float64), k, rng)
