"""The paper's own estimator, seen from the server: a question to each client, three numbers in reply."""

from collections.abc import Mapping
from dataclasses import replace

from feddiverse.errors import UserError
from feddiverse.estimation.base import Estimator, Triplet
from feddiverse.messages import Ask, PaperTriplet
from feddiverse.server.replies import answers, triplet_in


class Paper(Estimator):
    """The paper's own estimator: each client trains a biased model on its data and sends three numbers.

    What a client calls attribute 0 another may call attribute 1, so there are no matrices to share.

    `sees`: what the attribute classifier sees, the `biased` model's features (as released) or those of the `global`
    model.
    """

    def __init__(
        self,
        seed: int,
        gce_q: float = 0.3,
        bias_steps: int = 50,
        attribute_steps: int = 10,
        batch_size: int = 28,
        lr: float = 0.001,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        sees: str = "biased",
    ) -> None:
        super().__init__()
        if sees not in ("biased", "global"):
            raise UserError(f"estimator.sees must be 'biased' or 'global', not {sees!r}.")
        self.question = PaperTriplet(
            seed, 0, gce_q, bias_steps, attribute_steps, batch_size, lr, momentum, weight_decay, sees
        )

    def estimate(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, Triplet]:
        found = {}
        question = replace(self.question, round=round)
        for reply in answers(question, clients, ask):
            found[reply.client] = triplet_in(reply)
        return found
