"""Oort: guided participant selection.

Lai, Zhu, Madhyastha, Chowdhury: "Oort: efficient federated learning via guided participant selection", OSDI 2021,
Alg. 1. Scores, and the constants 0.9, 0.2 and 5, are those of the authors' code (SymbioticLab/Oort: oort/oort.py, and
the defaults of training/argParser.py at 25c8853). Three constants are not: DECAY, CLIP and CUT_OFF are there 0.95, 0.98
and 0.7; ours are the paper's, as we know them (its text was not at hand to check).

Left out: the penalty on slow clients and the pacer that relaxes it. They read the clock, and a choice that depends on
the clock cannot be repeated; without the penalty (their α = 0) the statistical part is the whole rule.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from feddiverse.messages import Ask, Loss, Plain
from feddiverse.selection.base import Selector
from feddiverse.selection.draws import by_weight, clipped, sorted_ids
from feddiverse.server.replies import answers

Floats = NDArray[np.float64]

FIRST_EXPLORATION, DECAY, LEAST_EXPLORATION = 0.9, 0.98, 0.2  # the share of a round given to clients never tried
CLIP = 0.95  # utilities above this quantile count as that quantile
CUT_OFF = 0.95  # clients within this part of the score after the last place have a chance
WINDOW = 5  # unexplored clients considered for each place, the largest first


class Oort(Selector):
    """Exploits clients of high utility |D_k|·√(mean squared loss) that were not asked for long, and explores new ones.

    Oort's clients report the losses met in training; ours are asked for them when chosen, which costs them one forward
    pass and gives a similar number: of the model before its training, in evaluation mode.

    A client that gives no loss rests for 2, 4, 8, … rounds (ours): else it would stay new, and be tried every round.

    `loss_quantile` (ours; 1: off): rewards above this quantile count as it before all else. Oort itself clips the
    utilities but scales by the largest unclipped, so one false loss makes those of all others vanish.
    """

    def __init__(self, seed: int, loss_quantile: float = 1.0) -> None:
        self.seed = seed
        self.loss_quantile = loss_quantile
        self._utility: dict[int, tuple[float, int]] = {}  # client → its utility, and in which round it was learnt
        self._failed: dict[int, tuple[int, int]] = {}  # client → how often in a row it gave no loss, and when last
        self._exploration = FIRST_EXPLORATION
        self._num_rounds = 0

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        self._num_rounds += 1
        ids = sorted_ids(clients)
        tried = np.array([i in self._utility for i in ids.tolist()], bool)
        rests = np.array([self._rests(i) for i in ids.tolist()], bool)
        new = ids[~tried & ~rests]
        self._exploration = max(self._exploration * DECAY, LEAST_EXPLORATION)
        exploration = self._exploration if len(new) else 0.0
        chosen = self._exploit(ids[tried & ~rests], new, clients, int(k * (1 - exploration)), rng)
        chosen += self._explore(new, clients, k - len(chosen), rng)
        rest = np.setdiff1d(ids, chosen)
        chosen += by_weight(rest, (~np.isin(rest, ids[rests])).astype(np.float64), k - len(chosen), rng)
        self._learn(round, {i: clients[i] for i in chosen}, ask)
        return chosen

    def _rests(self, client: int) -> bool:
        times, last = self._failed.get(client, (0, 0))
        return times > 0 and self._num_rounds <= last + 2**times

    def _learn(self, round: int, chosen: Mapping[int, int], ask: Ask) -> None:
        """Ask the chosen for their losses; remember who gave none."""
        losses = {reply.client: reply.metrics["loss_rms"] for reply in answers(Loss(self.seed, round), chosen, ask)}
        for i, size in chosen.items():
            if i in losses:
                self._utility[i] = (size * losses[i], self._num_rounds)
                self._failed.pop(i, None)
            else:
                times, _ = self._failed.get(i, (0, 0))
                self._failed[i] = (times + 1, self._num_rounds)

    def _exploit(
        self,
        ids: NDArray[np.int64],
        new: NDArray[np.int64],
        clients: Mapping[int, int],
        k: int,
        rng: np.random.Generator,
    ) -> list[int]:
        """`k` of `ids`, who were tried: drawn among those near the first score that is not among the k best."""
        k = min(k, len(ids))
        if not k:
            return []
        scores = self._scores(ids, np.array([clients[i] for i in new.tolist()], np.float64))
        admitted = scores >= CUT_OFF * np.sort(scores)[::-1][min(k, len(ids) - 1)]
        return by_weight(ids[admitted], scores[admitted], k, rng)

    def _scores(self, ids: NDArray[np.int64], sizes_of_new: Floats) -> Floats:
        """Clipped utilities scaled to 0…1, plus √(0.1·ln t / last round asked) for what may have changed since.

        Quantile and scale are those of all positive rewards: utilities of clients that were tried, sizes of those that
        were not, which is what the authors' code registers new clients with.
        """
        utilities, last = np.array([self._utility[i] for i in ids.tolist()], np.float64).T
        rewards = clipped(np.concatenate([utilities, sizes_of_new]), self.loss_quantile)
        rewards = rewards[rewards > 0] if rewards.any() else rewards
        lowest = rewards.min() * 0.999
        width = max(rewards.max() - lowest, 1e-4)
        limit = np.sort(rewards)[min(int(CLIP * len(rewards)), len(rewards) - 1)]
        scores: Floats = (np.minimum(utilities, limit) - lowest) / width
        scores += np.sqrt(0.1 * np.log(self._num_rounds) / last)
        return scores

    def _explore(
        self, ids: NDArray[np.int64], clients: Mapping[int, int], k: int, rng: np.random.Generator
    ) -> list[int]:
        sizes = np.array([clients[i] for i in ids.tolist()], np.float64)
        considered = np.lexsort((rng.random(len(ids)), -sizes))[: WINDOW * k]
        return by_weight(ids[considered], sizes[considered], k, rng)

    def state(self) -> Plain:
        return {
            "utility": [[i, value, last] for i, (value, last) in self._utility.items()],
            "failed": [[i, times, last] for i, (times, last) in self._failed.items()],
            "exploration": self._exploration,
            "num_rounds": self._num_rounds,
        }

    def restore(self, state: Plain) -> None:
        self._utility = {int(i): (float(value), int(last)) for i, value, last in state["utility"]}
        # Checkpoints from before failures were kept have none.
        self._failed = {int(i): (int(times), int(last)) for i, times, last in state.get("failed", [])}
        self._exploration = float(state["exploration"])
        self._num_rounds = int(state["num_rounds"])
