"""The paper's own estimator, seen from the server: a question to each client, three numbers in reply."""

from collections.abc import Mapping
from dataclasses import replace

from feddiverse.errors import UserError
from feddiverse.estimation.base import Estimator, Triplet
from feddiverse.estimation.plausible import triplet_problem
from feddiverse.messages import Ask, PaperTriplet, Reply
from feddiverse.server.replies import answers, triplet_in

NUM_ATTRIBUTES = 2  # a class's majority and its minority


class Paper(Estimator):
    """The paper's own estimator: each client trains a biased model on its data and sends three numbers.

    What a client calls attribute 0 another may call attribute 1, so there are no matrices to share.

    `sees`: what the attribute classifier sees, the `biased` model's features (as released) or those of the `global`
    model. `num_classes`: a triplet that no table of so many classes and the client's samples has is no answer (0: not
    known).
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
        num_classes: int = 0,
    ) -> None:
        self.num_classes = num_classes
        if sees not in ("biased", "global"):
            raise UserError(f"estimator.sees must be 'biased' or 'global', not {sees!r}.")
        self.question = PaperTriplet(
            seed, 0, gce_q, bias_steps, attribute_steps, batch_size, lr, momentum, weight_decay, sees
        )

    def estimate(self, round: int, clients: Mapping[int, int], ask: Ask) -> dict[int, Triplet]:
        found = {}
        question = replace(self.question, round=round)

        def check(reply: Reply) -> str | None:
            if not self.num_classes:
                return None
            return triplet_problem(triplet_in(reply), clients[reply.client], self.num_classes, NUM_ATTRIBUTES)

        for reply in answers(question, clients, ask, check=check):
            found[reply.client] = triplet_in(reply)
        return found
