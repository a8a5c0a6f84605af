"""A guard against growing slow: work is counted (modules, messages, bytes, pictures, passes, memory), never timed.

Counts do not depend on the machine or on what else it does, so a limit here can be tight. Where a limit is on memory,
the test also shows that the waste it guards against would go beyond it.
"""

import json
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from feddiverse import registry
from feddiverse.data.federation import Federation, deal
from feddiverse.engine.local import LocalEngine
from feddiverse.estimation.base import Oracle
from feddiverse.experiment.checkpoint import Snapshot, Writer, pack
from feddiverse.heterogeneity import measure
from feddiverse.messages import BYTES_PER_SCALAR, FeatureMoments, Reply, Task, Train, Vector
from feddiverse.models import ModelSpec, initial_theta
from feddiverse.selection.uniform import Uniform
from feddiverse.server import aggregation
from feddiverse.server.rounds import Plan, Round, rounds

SPEC = ModelSpec("cnn", 2, (3, 8, 8), (0.5,) * 3, (0.5,) * 3)


class CountedSource:
    """Pictures of noise; counts how many were asked for."""

    name, fingerprint = "counted", "0"
    class_names, attribute_names = ("a", "b"), ("c", "d")
    shape, mean, std = SPEC.shape, SPEC.mean, SPEC.std

    def __init__(self, num_train: int = 4_000, num_test: int = 600) -> None:
        self.train_y, self.train_a = np.arange(num_train) % 2, np.arange(num_train) // 2 % 2
        self.test_y, self.test_a = np.arange(num_test) % 2, np.arange(num_test) // 2 % 2
        self.train_loads: list[int] = []
        self.test_loads: list[int] = []

    def train_x(self, ids: NDArray[np.int64], a: NDArray[np.int64]) -> NDArray[np.uint8]:
        self.train_loads.append(len(ids))
        return np.random.default_rng(len(ids)).integers(0, 256, (len(ids), *self.shape), dtype=np.uint8)

    def test_x(self, ids: NDArray[np.int64], a: NDArray[np.int64]) -> NDArray[np.uint8]:
        self.test_loads.append(len(ids))
        return np.zeros((len(ids), *self.shape), np.uint8)


@pytest.fixture
def federation() -> Federation:
    """24 clients of 32 samples each."""
    return deal("counted", CountedSource(), np.full((24, 2, 2), 8), num_selected=9, seed=0)


@pytest.fixture
def engine(federation: Federation) -> Iterator[LocalEngine]:
    with LocalEngine(federation, SPEC, device="cpu", in_process=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def theta() -> Vector:
    return initial_theta(SPEC, seed=0)


def play(
    engine: LocalEngine, theta: Vector, selector: str = "uniform", num_rounds: int = 3, pretraining_rounds: int = 0
) -> list[Round]:
    made = registry.make(registry.SELECTOR, selector, {"estimator": Oracle(0, num_classes=2, num_attributes=2)})
    plan = Plan(Train(seed=0, round=0), num_rounds, 9, evaluate_every=2, pretraining_rounds=pretraining_rounds)
    return list(rounds(engine, made, aggregation.FedAvg(), engine.evaluate, plan, theta))


# --- what a command imports -----------------------------------------------------------------------------------------

HEAVY = {"torch", "matplotlib", "scipy", "sklearn", "pandas", "mlxtend", "flwr", "ray", "PIL", "jinja2", "safetensors"}


@pytest.mark.parametrize(
    ("command", "most"), [(["--help"], 300), (["measure", "spawrious-gsc"], 800), (["federations"], 800)]
)
def test_light_commands_import_nothing_heavy(command: list[str], most: int) -> None:
    program = (
        "import sys, json; from feddiverse.cli import main\n"
        f"sys.argv = ['feddiverse', *{command!r}]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = json.loads(done.stderr.splitlines()[-1])
    assert not HEAVY & {name.partition(".")[0] for name in modules}
    assert len(modules) < most


def test_reading_the_attribute_imports_no_library_that_takes_longer_than_the_reading() -> None:
    program = (
        "import sys, numpy as np; from feddiverse.estimation.directions import fit\n"
        "fit(np.arange(10.0)[:, None], np.ones((2, 10)), 2, 0)\n"
        "print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"sklearn", "pandas", "scipy.stats", "torch"} & set(done.stdout.split())


# --- what a round asks, sends and reads -----------------------------------------------------------------------------


def test_a_round_asks_those_selected_once_and_counts_every_byte(engine: LocalEngine, theta: Vector) -> None:
    # All but memories, which are counted apart, an empty draw, and what there is not: samples set aside, clip, noise.
    down = theta.nbytes + BYTES_PER_SCALAR * (len(fields(Train)) - 5)
    up = theta.nbytes + 2 * BYTES_PER_SCALAR  # θ_k, loss, steps
    for done in play(engine, theta):
        assert set(done.traffic) == {"train"}
        traffic = done.traffic["train"]
        assert (traffic["messages"], traffic["bytes_down"], traffic["bytes_up"]) == (9, 9 * down, 9 * up)


def test_triplets_are_asked_for_once(engine: LocalEngine, theta: Vector) -> None:
    first, second, *later = play(engine, theta, "feddiverse", num_rounds=4, pretraining_rounds=1)
    assert {kind: row["messages"] for kind, row in first.traffic.items()} == {"train": 24}  # T0
    assert {kind: row["messages"] for kind, row in second.traffic.items()} == {"train": 9, "true_matrix": 24}
    assert all(set(done.traffic) == {"train"} for done in later)


def test_data_are_read_for_asked_clients_only_and_once(
    engine: LocalEngine, federation: Federation, theta: Vector
) -> None:
    for _ in range(3):
        list(engine.ask(Train(seed=0, round=1), theta, [3, 5, 8]))
    assert federation.source.train_loads == [32, 32, 32]
    assert federation.source.test_loads == []


def test_the_test_set_is_seen_when_due_and_read_once(
    engine: LocalEngine, federation: Federation, theta: Vector
) -> None:
    evaluated = [done.round for done in play(engine, theta, num_rounds=5) if done.test]
    assert evaluated == [2, 4, 5]
    assert sum(federation.source.test_loads) == 600


# --- passes through the model ---------------------------------------------------------------------------------------


@pytest.fixture
def seen(engine: LocalEngine) -> list[int]:
    """The size of every batch that goes through the engine's model."""
    batches: list[int] = []
    module = engine._pool._worker._model.module
    features, taped_features = module.features, module.taped_features
    module.features = lambda x: batches.append(len(x)) or features(x)
    module.taped_features = lambda x, tape: batches.append(len(x)) or taped_features(x, tape)
    return batches


def test_training_passes_each_sample_once_an_epoch(engine: LocalEngine, theta: Vector, seen: list[int]) -> None:
    (reply,) = engine.ask(Train(seed=0, round=1, epochs=2), theta, [0])
    assert reply.failure is None
    assert seen == [28, 4] * 2
    assert reply.metrics["steps"] == len(seen)


def test_a_question_about_features_is_one_pass(engine: LocalEngine, theta: Vector, seen: list[int]) -> None:
    (reply,) = engine.ask(FeatureMoments(seed=0, round=1, dimensions=16), theta, [0])
    assert reply.failure is None
    assert sum(seen) == 32


def test_evaluation_passes_each_sample_once(engine: LocalEngine, theta: Vector, seen: list[int]) -> None:
    assert engine.evaluate(theta)[1].sum() == 600
    assert sum(seen) == 600
    assert len(seen) <= 600 / 32  # in batches, not one by one


# --- memory ---------------------------------------------------------------------------------------------------------


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that Python and NumPy held during `work`, beyond what they held before."""
    work()  # what is made once and kept is not counted
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def replies_of(theta: Vector, num_clients: int) -> Iterator[Reply]:
    for client in range(num_clients):
        yield Reply(client, 10, theta + np.float32(client), {"steps": 3.0, "loss": 1.0})


@pytest.mark.parametrize(("name", "most"), [("fedavg", 5), ("fedavgm", 8.5), ("fednova", 8.5), ("fedadam", 11)])
def test_aggregation_holds_one_reply_at_a_time(name: str, most: float) -> None:
    """In units of θ: the float64 sum counts two; a reply and what is made of it are the rest."""
    theta = np.zeros(100_000, np.float32)
    aggregator = registry.make(registry.AGGREGATOR, name, {})

    def units(num_clients: int, step: Callable[[Vector, Iterable[Reply]], Vector]) -> float:
        return peak_bytes(lambda: step(theta, replies_of(theta, num_clients))) / theta.nbytes

    assert units(40, aggregator.step) < most
    hoarding = lambda theta, replies: aggregator.step(theta, list(replies))  # noqa: E731
    assert units(40, hoarding) > most


def test_the_loop_keeps_no_reply_that_nobody_wants(engine: LocalEngine, theta: Vector) -> None:
    alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    most: list[int] = []

    class Watched:
        clients = engine.clients

        def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
            for client in clients:
                vector = theta + np.float32(client)
                alive[client] = vector
                most.append(len(alive))
                yield Reply(client, 10, vector, {"loss": 1.0, "steps": 1.0})
                del vector

        def close(self) -> None: ...

    def most_alive(wants_updates: bool) -> int:
        most.clear()
        selector = Uniform()
        selector.wants_updates = wants_updates
        plan = Plan(Train(seed=0, round=0), 1, num_selected=20, evaluate_every=1)
        list(rounds(Watched(), selector, aggregation.FedAvg(), engine.evaluate, plan, theta))
        return max(most)

    assert most_alive(wants_updates=False) <= 2
    assert most_alive(wants_updates=True) == 20


def test_clients_nobody_asks_cost_only_their_counts() -> None:
    counts = np.ones((24_000, 2, 2), np.int64)
    source = CountedSource(num_train=4 * len(counts))
    cost = peak_bytes(lambda: deal("many", source, counts, 9, seed=0)) / len(counts)
    assert cost < 200  # a deck's place for each sample, and where it begins
    assert peak_bytes(lambda: [np.arange(4) for _ in counts]) / len(counts) > 100  # arrays alone, without their content
    assert source.train_loads == []


def test_measuring_needs_few_bytes_a_client() -> None:
    counts = np.ones((50_000, 2, 2), np.int64)
    assert peak_bytes(lambda: measure(counts)) / len(counts) < 250


# --- the run directory ----------------------------------------------------------------------------------------------


def test_a_checkpoint_is_written_beside_the_round_not_in_it() -> None:
    written: list[str] = []
    go = threading.Event()

    def write(snapshot: Snapshot) -> None:
        go.wait()
        written.append(threading.current_thread().name)

    writer = Writer(write)
    snapshot = Snapshot(1, np.zeros(4, np.float32), {}, {}, 0, 0.0)
    for number in range(1, 50):
        writer.submit(replace(snapshot, round=number))  # would stand still here, were it to wait for the disk
    go.set()
    writer.close()
    assert 1 <= len(written) <= 2  # the first, and the newest of those that waited
    assert threading.current_thread().name not in written


def test_a_checkpoint_is_theta_and_momentum() -> None:
    theta, m = np.zeros(90_000, np.float32), np.zeros(90_000)
    assert len(pack(Snapshot(1, theta, {"m": m}, {}, 0, 0.0))) < theta.nbytes + m.nbytes + 2_000


def test_a_round_is_one_short_line(tmp_path: Path, engine: LocalEngine, theta: Vector) -> None:
    from feddiverse.experiment.records import as_record

    assert all(len(json.dumps(as_record(done))) < 1_500 for done in play(engine, theta))
