"""FedDiverse: clients whose kinds of heterogeneity complement each other (paper, Sec. IV)."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from feddiverse.errors import UserError
from feddiverse.estimation.base import Estimator
from feddiverse.messages import Ask, Plain
from feddiverse.selection.draws import Floats, Ids, lowest, sorted_ids
from feddiverse.selection.estimating import EstimatingSelector
from feddiverse.selection.feddiverse_pool import Pool, arrange
from feddiverse.selection.feddiverse_rule import choose_as_released, choose_as_written
from feddiverse.selection.limited import resting

FEW = 4096  # up to this many clients scanning them all is faster than laying out a pool


class FedDiverse(EstimatingSelector):
    """Groups of three clients that differ as much as possible in class imbalance, attribute imbalance and spurious
    correlation. Every round starts anew with SC leading; a group cut short by `k` simply ends.

    Triplets are estimated once, in the first choice; for clients that come later, when they come. A client whose
    estimate failed is asked again next round, and meanwhile chosen only where those with a triplet are too few.

    `coverage` (ours, not the paper's; 0: off) keeps the rule from asking the same few clients again and again: a
    client rests while it has been chosen `coverage` times as often as uniform selection would have chosen it.

    `smoothing` (ours; 0: off) is added to every dimension before a triplet is normalised. A triplet of zeros, or hardly
    more than what few samples give by chance, then leans to no side, where by the paper's rule zeros are least aligned
    with everyone, and anything just above them is as far out as a whole federation of one class.

    `rule`: the `paper`'s text, or what its `released` code does (`choose_as_released` says where they differ).
    """

    def __init__(
        self, estimator: Estimator, coverage: float = 0.0, smoothing: float = 0.0, rule: str = "paper"
    ) -> None:
        if rule not in ("paper", "released"):
            raise UserError(f"selector.rule must be 'paper' or 'released', not {rule!r}.")
        super().__init__(estimator)
        self.coverage = coverage
        self.smoothing = smoothing
        self.rule = rule
        self._times_chosen: Counter[int] = Counter()
        self._pool: tuple[Ids, Ids, Pool] | None = None  # ids ascending, ids as arranged, and the pool of these

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Ask, rng: np.random.Generator) -> list[int]:
        if asked := self._learn(round, clients, ask):
            self._pool = None
        unknown = sorted_ids({client: size for client, size in asked.items() if client not in self._triplets})
        ids = sorted_ids(clients)
        away = self._resting(ids, k)
        without = np.union1d(unknown, away)
        chosen = self._diverse(ids, without, k, rng)
        for spare in (np.setdiff1d(unknown, away), away):  # only where the rule has too few to choose from
            chosen += lowest(spare, self._times(spare), k - len(chosen), rng)
        self._times_chosen.update(chosen)
        return chosen

    def _diverse(self, ids: Ids, without: Ids, k: int, rng: np.random.Generator) -> list[int]:
        """The rule's choice among `ids` but those in `without`."""
        if len(ids) <= FEW or self.rule == "released":
            ids = np.setdiff1d(ids, without)
            if self.rule == "released":
                positions = choose_as_released(self._matrix(ids), k, rng)
            else:
                positions = choose_as_written(self._matrix(ids), k, rng, self.smoothing)
            arranged = ids
        else:
            if self._pool is None or not np.array_equal(self._pool[0], ids):
                matrix = self._matrix(ids)
                order = arrange(matrix, self.smoothing)
                self._pool = ids, ids[order], Pool(matrix[order], self.smoothing)
            _, arranged, pool = self._pool
            positions = pool.choose(k, rng, np.flatnonzero(np.isin(arranged, without)).tolist())
        chosen: list[int] = arranged[positions].tolist()
        return chosen

    def _matrix(self, ids: Ids) -> Floats:
        """Triplets of `ids` [K, 3]; zeros for one that is not known."""
        rows = [self._triplets.get(i, (0.0, 0.0, 0.0)) for i in ids.tolist()]
        return np.array(rows, dtype=np.float64).reshape(-1, 3)

    def _resting(self, ids: Ids, k: int) -> Ids:
        """Who was chosen so often that `coverage` gives others a turn."""
        return resting(ids, self._times(ids), k, self.coverage) if self.coverage else ids[:0]

    def _times(self, ids: Ids) -> Floats:
        return np.fromiter((self._times_chosen[i] for i in ids.tolist()), np.float64, len(ids))

    def warnings(self) -> list[str]:
        nobody = [] if self._triplets else ["No client's triplet is known: the least often chosen are taken."]
        return [*nobody, *self.estimator.warnings]

    def state(self) -> Plain:
        return {**super().state(), "times_chosen": [list(pair) for pair in self._times_chosen.items()]}

    def restore(self, state: Plain) -> None:
        super().restore(state)
        self._times_chosen = Counter(dict(state["times_chosen"]))
        self._pool = None
