"""What the server asks clients to protect, in every question: whoever asks need not know of it (docs/trust.md)."""

from dataclasses import dataclass, replace

from feddiverse.errors import UserError
from feddiverse.messages import Counted, Evaluate, EvaluateHeldOut, Loss, PaperTriplet, Summed, Task, Train
from feddiverse.server.secagg import SecureSums

WITHOUT_NOISE = {
    Loss: "losses leave clients without noise: choose a selector that does not ask for them",
    PaperTriplet: "the paper's estimator counts what models say that were trained on the same samples, so noise on its"
    " counts hides nothing: choose the estimator consensus",
    Evaluate: "right answers on clients' own data leave them without noise",
    EvaluateHeldOut: "right answers on samples held out leave clients without noise: set holdout to 0",
    Summed: "each client's moments would leave it without noise: set secure_sums to true as well",
}


@dataclass(frozen=True)
class Privacy:
    """`epsilon`: of each table of counts that leaves a client; `clip`, `noise`: of updates; `sums`: how sums are
    hidden. 0 and None: not at all.
    """

    epsilon: float = 0.0
    clip: float = 0.0
    noise: float = 0.0
    sums: SecureSums | None = None

    def applied(self, task: Task) -> Task:
        """The question with the noise that was agreed upon; refused where none would protect the answer."""
        if isinstance(task, Train):
            return replace(task, clip=self.clip, noise=self.noise) if self.clip else task
        if not self.epsilon:
            return task
        self.check(type(task), hidden=isinstance(task, Summed) and task.bits > 0)
        if isinstance(task, Counted):
            stricter = 0 < task.epsilon < self.epsilon  # what is below 0, or no number, asks for no noise at all
            return replace(task, epsilon=task.epsilon if stricter else self.epsilon)
        return task

    def check(self, kind: type[Task], hidden: bool) -> None:
        """Refuse a kind of question that ε does not cover. `hidden`: asked as a part of a secure sum."""
        if not self.epsilon or hidden:
            return
        for uncovered, why in WITHOUT_NOISE.items():
            if issubclass(kind, uncovered):
                raise UserError(f"privacy_epsilon is {self.epsilon:g}, but {why}.")
