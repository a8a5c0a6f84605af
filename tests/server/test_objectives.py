"""What the server keeps in its clients' place, and FedDyn's promise: the right optimum from partial participation."""

from collections.abc import Iterator, Sequence

import numpy as np

from feddiverse.messages import Reply, Task, Train, Vector
from feddiverse.selection.uniform import Uniform
from feddiverse.server.aggregation import Aggregator, FedAvg, FedDyn
from feddiverse.server.meter import Meter
from feddiverse.server.objectives import FedDyn as FedDynObjective
from feddiverse.server.objectives import Moon, Objective
from feddiverse.server.rounds import Plan, rounds


class Quadratics:
    """Clients whose loss is a_k/2·‖θ − c_k‖², solved exactly under the pull of the task they are given."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        self.a, self.c = draw.uniform(0.2, 3.0, 10), draw.normal(size=(10, 3))
        self.clients = dict.fromkeys(range(10), 5)
        self.tasks: list[tuple[int, Train]] = []

    @property
    def optimum(self) -> np.ndarray:
        return self.a @ self.c / self.a.sum()

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        for k in clients:
            own = task.of(k)
            assert isinstance(own, Train)
            assert set(own.memories) <= {k}  # a client gets nobody else's
            self.tasks.append((k, own))
            centre = theta - own.memories.get(k, 0.0)
            solved = (self.a[k] * self.c[k] + own.prox_mu * centre) / (self.a[k] + own.prox_mu)
            yield Reply(k, 5, solved.astype(np.float32), {"loss": 1.0, "steps": 1.0})

    def close(self) -> None: ...


def final(aggregator: Aggregator, objective: Objective, num_rounds: int = 300, t0: int = 0) -> tuple[np.ndarray, list]:
    engine = Quadratics()
    plan = Plan(Train(0, 0), num_rounds, num_selected=4, evaluate_every=999, pretraining_rounds=t0)
    done = list(rounds(engine, Uniform(), aggregator, None, plan, np.zeros(3, np.float32), objective=objective))
    return done[-1].theta - engine.optimum, done


def test_feddyn_finds_the_optimum_where_fedavg_does_not() -> None:
    """FedAvg of exact local solutions wanders around the mean of the c_k; FedDyn settles at the weighted optimum."""
    off, _ = final(FedDyn(num_clients=10), FedDynObjective(alpha=1.0))
    assert np.linalg.norm(off) < 1e-3
    off, _ = final(FedAvg(), Objective())
    assert np.linalg.norm(off) > 0.05


def test_feddyn_by_hand() -> None:
    """One round of clients 0 and 1 of 4: θ̄ = 2, its update 2, s = 2·2/4 = 1, θ = 3. The next: updates −1 and 1."""
    aggregator, objective = FedDyn(num_clients=4), FedDynObjective(alpha=0.5)
    theta = np.zeros(1, np.float32)
    replies = [Reply(k, 5, np.array([value], np.float32)) for k, value in enumerate((1.0, 3.0))]
    theta = aggregator.step(theta, objective.watch(theta, iter(replies)))
    assert theta.tolist() == [3.0]
    task = objective.prepare(Train(0, 1), [0, 1, 2])
    assert task.prox_mu == 0.5
    assert {k: m.tolist() for k, m in task.memories.items()} == {0: [1.0], 1: [3.0]}
    replies = [Reply(k, 5, np.array([value], np.float32)) for k, value in enumerate((2.0, 4.0))]
    theta = aggregator.step(theta, objective.watch(theta, iter(replies)))
    assert theta.tolist() == [4.0]  # θ̄ = 3, s stays at 1
    assert {k: m.tolist() for k, m in objective.memories.items()} == {0: [0.0], 1: [4.0]}


def test_moon_sends_back_what_a_client_last_trained() -> None:
    objective = Moon(mu=3.0, temperature=0.7)
    theta = np.zeros(2, np.float32)
    replies = [Reply(k, 5, np.full(2, k, np.float32)) for k in (4, 9)]
    assert list(objective.watch(theta, iter(replies))) == replies
    task = objective.prepare(Train(0, 1), [9, 5])
    assert (task.moon_mu, task.moon_temperature, task.prox_mu) == (3.0, 0.7, 0.0)
    assert {k: m.tolist() for k, m in task.memories.items()} == {9: [9.0, 9.0]}
    assert task.of(5).memories == {}
    assert task.own[9].nbytes == 8
    assert 5 not in task.own


def test_pretraining_is_plain_whatever_the_objective() -> None:
    engine = Quadratics()
    plan = Plan(Train(0, 0), 3, num_selected=10, evaluate_every=9, pretraining_rounds=2)
    list(rounds(engine, Uniform(), FedAvg(), None, plan, np.zeros(3, np.float32), objective=FedDynObjective()))
    assert [bool(task.prox_mu) for _, task in engine.tasks] == [False] * 20 + [True] * 10
    assert not any(task.memories for _, task in engine.tasks)  # nothing of T0 is remembered


def test_memory_is_counted_apart() -> None:
    engine = Quadratics()
    meter = Meter(engine)
    theta = np.zeros(3, np.float32)
    plain = Train(0, 1)
    list(meter.ask(plain, theta, [1, 2]))
    without = meter.take()
    list(meter.ask(Train(0, 1, memories={2: theta}), theta, [1, 2]))
    with_memory = meter.take()
    assert with_memory.pop("memory") == {"messages": 1, "bytes_down": 12, "bytes_up": 0, "client_seconds": 0.0}
    assert with_memory["train"]["bytes_down"] == without["train"]["bytes_down"]
    assert "memory" not in without


def test_state_is_plain_and_restores() -> None:
    _, done = final(FedDyn(num_clients=10), first := FedDynObjective(alpha=1.0), num_rounds=5)
    again = FedDynObjective(alpha=1.0)
    again.restore(first.state())
    task = Train(0, 6)
    mine, theirs = (objective.prepare(task, range(10)).memories for objective in (first, again))
    assert mine.keys() == theirs.keys() == {k for one in done for k in one.selected}
    assert all((mine[k] == theirs[k]).all() for k in mine)
    assert Objective().state() == {}
