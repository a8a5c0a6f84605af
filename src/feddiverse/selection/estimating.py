"""What selectors share that choose by clients' triplets: each is estimated once, and remembered."""

from collections.abc import Mapping

from feddiverse.estimation.base import Estimator, estimated
from feddiverse.messages import Ask, Plain
from feddiverse.selection.base import Selector


class EstimatingSelector(Selector):
    """Knows an estimator, and the triplets it found. A client whose estimate failed is asked again next round."""

    def __init__(self, estimator: Estimator) -> None:
        self.estimator = estimator
        self._triplets: dict[int, list[float]] = {}

    def _learn(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, int]:
        """Ask for the triplets that are not yet known; returns who was asked."""
        new = {client: size for client, size in clients.items() if client not in self._triplets}
        if new:
            found = estimated(self.estimator, round, new, ask)
            self._triplets |= {client: triplet.tolist() for client, triplet in found.items()}
        return new

    def findings(self) -> Plain:
        return {
            "estimator": type(self.estimator).__name__.lower(),
            "triplets": {str(client): triplet for client, triplet in sorted(self._triplets.items())},
            "warnings": list(self.estimator.warnings),
        }

    def state(self) -> Plain:
        return {
            "estimator": self.estimator.state(),
            "triplets": [[client, *triplet] for client, triplet in self._triplets.items()],
        }

    def restore(self, state: Plain) -> None:
        self.estimator.restore(state["estimator"])
        self._triplets = {int(client): triplet for client, *triplet in state["triplets"]}
