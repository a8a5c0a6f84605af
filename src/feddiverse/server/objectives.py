"""What clients minimise besides cross-entropy, and what each would remember from one of its rounds to the next.

A real client of FedDyn or MOON keeps a vector as long as θ. Engines here keep nothing of clients, so that any worker
can answer for any client and a killed run goes on with the same bits. So the server keeps that vector in the client's
place, sends it along with the question, and saves it with the run. It can: the vector follows from what the client sent
anyway. The bytes this costs are counted apart, as `memory`; clients that keep state would save them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from feddiverse.messages import Plain, Reply, Train, Vector


class Objective:
    """The base: cross-entropy alone, with FedProx's pull where the run sets `prox_mu`. Nothing is remembered.

    One's own overrides `prepare` (what is asked of clients) and `remembered` (what is kept of an answer).
    """

    memories: Mapping[int, Vector] = MappingProxyType({})
    """Client → what it would remember; arrays are never changed in place."""

    def prepare(self, task: Train, clients: Sequence[int]) -> Train:
        """The training to ask `clients` for."""
        return task

    def remembered(self, theta: Vector, reply: Reply) -> Vector | None:
        """What the client of this usable reply, trained from θ, remembers from now on; None: nothing."""
        return None

    def watch(self, theta: Vector, replies: Iterator[Reply]) -> Iterator[Reply]:
        """The replies as they stream by; what they leave in their clients' memories is kept."""
        self.memories = memories = dict(self.memories)
        for reply in replies:
            if (kept := self.remembered(theta, reply)) is not None:
                memories[reply.client] = kept
            yield reply

    def state(self) -> Plain:
        """What must be remembered between rounds."""
        return {"memories": {str(client): vector for client, vector in self.memories.items()}} if self.memories else {}

    def restore(self, state: Plain) -> None:
        """Take back what `state` gave."""
        self.memories = {int(client): vector for client, vector in state.get("memories", {}).items()}

    def _of(self, clients: Sequence[int]) -> dict[int, Vector]:
        return {client: self.memories[client] for client in clients if client in self.memories}


class FedDyn(Objective):
    """Acar et al., "Federated learning based on dynamic regularization", ICLR 2021, Alg. 1; with the aggregator
    `feddyn`, which the shorthand `--aggregator feddyn` sets as well.

    Clients minimise L_k(θ_k) − ⟨g_k, θ_k⟩ + (α/2)·‖θ_k − θ‖². With g_k = −α·h_k, where h_k is the sum of all its
    updates θ_k − θ so far, that is FedProx with the centre θ − h_k. α is the same for all, as in the paper; the
    authors' code (alpemreacar/FedDyn) divides it by the client's share of the samples, clips gradients, and has no
    local momentum.
    """

    def __init__(self, alpha: float = 0.01) -> None:
        self.alpha = alpha

    def prepare(self, task: Train, clients: Sequence[int]) -> Train:
        pull = task.prox_mu + self.alpha  # of both towards θ; only FedDyn's is shifted
        shifts = {client: h * (self.alpha / pull) for client, h in self._of(clients).items()}
        return replace(task, prox_mu=pull, memories=shifts)

    def remembered(self, theta: Vector, reply: Reply) -> Vector | None:
        update = reply.numbers - theta
        before = self.memories.get(reply.client)
        return update if before is None else before + update


class Moon(Objective):
    """Li, He, Song: "Model-contrastive federated learning", CVPR 2021, and the authors' code (QinbinLi/MOON).

    Clients add µ times the cross-entropy of [cos(z, z_θ), cos(z, z_before)]/τ to their loss: what they see of a picture
    (z) shall be nearer to what θ sees than to what their own last model saw. z is what enters the model's head (theirs
    have a projection head for it). A client that has not trained yet has nothing to keep away from: plain training.
    """

    def __init__(self, mu: float = 1.0, temperature: float = 0.5) -> None:
        self.mu, self.temperature = mu, temperature

    def prepare(self, task: Train, clients: Sequence[int]) -> Train:
        return replace(task, moon_mu=self.mu, moon_temperature=self.temperature, memories=self._of(clients))

    def remembered(self, theta: Vector, reply: Reply) -> Vector | None:
        return reply.vector
