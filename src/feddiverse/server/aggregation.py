"""How clients' weights θ_k become the next θ. One streaming pass: never more than one reply in memory.

Sums are float64 in the order of the replies, which the engine keeps: the result does not depend on who answers first.
Every aggregator moves θ along an average update d of its clients: how d is averaged (`average`) and what the server
does with it (`move`) is all they differ in.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from feddiverse.messages import Plain, Reply, Vector

Update = NDArray[np.float64]
Weigh = Callable[[Reply], float]

WEIGHTINGS: dict[str, Weigh] = {"equal": lambda reply: 1.0, "samples": lambda reply: float(reply.num_examples)}


class Aggregator:
    """The base of all: θ moves by the mean update. With no reply at all, θ stays as it is.

    One's own overrides `move` (what the server does with the mean update), `average` (what is averaged), or all of
    `step`; what it remembers between rounds goes through `state` and `restore`.

    >>> class HalfStep(Aggregator):
    ...     def move(self, update):
    ...         return 0.5 * update
    >>> reply = Reply(client=0, vector=np.array([2.0, 4.0], np.float32))
    >>> HalfStep().step(np.zeros(2, np.float32), [reply]).tolist()
    [1.0, 2.0]
    """

    weighting = "equal"  # so that the constructor of one's own need not call this one

    def __init__(self, weighting: str = "equal"):
        self.weighting = weighting

    def step(self, theta: Vector, replies: Iterable[Reply]) -> Vector:
        """The next θ. `replies` are usable: a finite vector of θ's length each. `theta` itself is not changed."""
        update = self.average(theta, replies)
        if update is None:
            return theta
        return np.add(theta, self.move(update), out=np.empty_like(theta), casting="same_kind")  # summed in float64

    def average(self, theta: Vector, replies: Iterable[Reply]) -> Update | None:
        """θ̄ − θ, with θ̄ the weighted mean of θ_k."""
        total = np.zeros(theta.size)
        weight, weigh = 0.0, WEIGHTINGS[self.weighting]
        for reply in replies:
            w, vector = weigh(reply), reply.numbers
            total += vector if w == 1 else np.multiply(vector, w, dtype=np.float64)
            weight += w
        if not weight:
            return None
        total /= weight
        total -= theta
        return total

    def move(self, update: Update) -> Update:
        """The server's own step for an average update."""
        return update

    def state(self) -> Plain:
        """What must be remembered between rounds. Its arrays are never changed in place afterwards."""
        return {}

    def restore(self, state: Plain) -> None:
        """Take back what `state` gave."""


class FedAvg(Aggregator):
    """The mean of the clients' weights (McMahan et al., 2017)."""


class FedAvgM(Aggregator):
    """Server momentum (Hsu et al., 2019): m ← β m + (θ̄ − θ), θ ← θ + η m."""

    def __init__(self, weighting: str = "equal", server_lr: float = 0.1, server_momentum: float = 0.95):
        super().__init__(weighting)
        self._lr, self._beta = server_lr, server_momentum
        self._m: Update | None = None

    def move(self, update: Update) -> Update:
        self._m = update if self._m is None else self._beta * self._m + update
        return self._lr * self._m

    def state(self) -> Plain:
        return {} if self._m is None else {"m": self._m}

    def restore(self, state: Plain) -> None:
        self._m = state.get("m")


class FedNova(FedAvgM):
    """Updates normalised by how far each client walked (Wang et al., 2020, eq. 6 and 7), with server momentum.

    A client that takes τ steps of SGD with momentum ρ moves by −lr Σ_j a_j g_j with a_j = (1 − ρ^(τ−j)) / (1 − ρ),
    j = 0 … τ−1, so its update is divided by ‖a‖₁ (τ itself when ρ = 0); the mean is multiplied by
    τ_eff = Σ p_k ‖a_k‖₁. Momentum and step are FedAvgM's (paper, Sec. V); η = 1 gives the authors' code.
    """

    def __init__(
        self,
        weighting: str = "samples",
        server_lr: float = 0.1,
        server_momentum: float = 0.95,
        momentum: float = 0.9,
    ):
        super().__init__(weighting, server_lr, server_momentum)
        self._local_momentum = momentum

    def average(self, theta: Vector, replies: Iterable[Reply]) -> Update | None:
        """τ_eff Σ p_k (θ_k − θ) / ‖a_k‖₁, with p_k = w_k / Σ w."""
        total = np.zeros(theta.size)
        weight = walked = 0.0
        weigh = WEIGHTINGS[self.weighting]
        for reply in replies:
            w, length = weigh(reply), effective_steps(int(reply.metrics["steps"]), self._local_momentum)
            if not length:  # a client without data took no step: there is nothing to normalise
                continue
            total += (w / length) * np.subtract(reply.numbers, theta, dtype=np.float64)
            weight += w
            walked += w * length
        return total * (walked / weight**2) if weight else None


def effective_steps(steps: int, momentum: float) -> float:
    """‖a‖₁ = Σ_{j=1…τ} (1 − ρ^j) / (1 − ρ): what a client's steps add up to under local momentum ρ."""
    tail = momentum * (1 - momentum**steps) / (1 - momentum)
    return (steps - tail) / (1 - momentum)


class FedDyn(Aggregator):
    """FedDyn's server (Acar et al., 2021, Alg. 1): θ ← θ̄ + s with s ← s + (1/K)·Σ_k (θ_k − θ), K all clients of the
    federation, asked or not. (Theirs is h = −α·s; α cancels.) Meant for the objective `feddyn`.

    θ̄ is the equal mean, as theirs.
    """

    def __init__(self, num_clients: int) -> None:
        super().__init__("equal")
        self._num_clients = num_clients
        self._num_replies = 0
        self._s: Update | None = None

    def average(self, theta: Vector, replies: Iterable[Reply]) -> Update | None:
        self._num_replies = 0
        return super().average(theta, self._counted(replies))

    def _counted(self, replies: Iterable[Reply]) -> Iterator[Reply]:
        for reply in replies:
            self._num_replies += 1
            yield reply

    def move(self, update: Update) -> Update:
        share = (self._num_replies / self._num_clients) * update
        self._s = share if self._s is None else self._s + share
        return update + self._s

    def state(self) -> Plain:
        return {} if self._s is None else {"s": self._s}

    def restore(self, state: Plain) -> None:
        self._s = state.get("s")


class FedOpt(Aggregator):
    """Adaptive server steps (Reddi et al., 2021, alg. 2): m ← β₁ m + (1−β₁) d, θ ← θ + η m / (√v + τ), v₀ = τ²."""

    def __init__(
        self,
        weighting: str = "equal",
        server_lr: float = 0.01,
        server_beta1: float = 0.9,
        server_beta2: float = 0.99,
        server_tau: float = 1e-3,
    ):
        super().__init__(weighting)
        self._lr, self._beta1, self._beta2, self._tau = server_lr, server_beta1, server_beta2, server_tau
        self._m: Update | None = None
        self._v: Update | None = None

    def move(self, update: Update) -> Update:
        m = np.zeros_like(update) if self._m is None else self._m
        v = np.full_like(update, np.square(self._tau)) if self._v is None else self._v
        self._m = self._beta1 * m + (1 - self._beta1) * update
        self._v = self._second_moment(v, update**2)
        return self._lr * self._m / (np.sqrt(self._v) + self._tau)

    def _second_moment(self, v: Update, squared: Update) -> Update:
        raise NotImplementedError

    def state(self) -> Plain:
        return {} if self._m is None else {"m": self._m, "v": self._v}

    def restore(self, state: Plain) -> None:
        self._m, self._v = state.get("m"), state.get("v")


class FedAdam(FedOpt):
    """v ← β₂ v + (1−β₂) d²."""

    def _second_moment(self, v: Update, squared: Update) -> Update:
        return self._beta2 * v + (1 - self._beta2) * squared


class FedYogi(FedOpt):
    """v ← v − (1−β₂) d² sign(v − d²): additive, so that v forgets slowly."""

    def _second_moment(self, v: Update, squared: Update) -> Update:
        return v - (1 - self._beta2) * squared * np.sign(v - squared)


class FedAdagrad(FedOpt):
    """v ← v + d², without momentum (β₁ = 0, as in the experiments of Reddi et al.)."""

    def __init__(self, weighting: str = "equal", server_lr: float = 0.01, server_tau: float = 1e-3):
        super().__init__(weighting, server_lr, server_beta1=0.0, server_tau=server_tau)

    def _second_moment(self, v: Update, squared: Update) -> Update:
        return v + squared
