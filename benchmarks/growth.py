"""How seconds and memory of a round grow with clients, selected clients, weights and pixels, and how selecting and
measuring grow with clients. Every case runs in a process of its own, so that its memory is its own.

Data are embedded digits, drawn with replacement, so a federation can have any number of clients. The exponent e of
"seconds ∝ size^e" is fitted by least squares on logarithms: 0 is no growth, 1 is linear.

    python -m benchmarks.growth
"""

import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.machine import describe
from benchmarks.peers.launch import cpu_seconds, proportional_mb

RESULT = Path(__file__).parent / "results" / "growth.json"
WORKERS = 2


@dataclass(frozen=True)
class Case:
    """One federation, model and number of selected clients; `size` is what the sweep varies."""

    size: int
    clients: int = 24
    selected: int = 8  # an even number, so that two workers end together
    samples: int = 200
    model: str = "cnn"
    side: int = 28
    rounds: int = 12


SWEEPS: dict[str, tuple[str, list[Case]]] = {
    "clients": ("clients", [Case(k, clients=k) for k in (24, 240, 2_400, 24_000, 100_000)]),
    "selected": (
        "selected clients",
        [Case(s, clients=240, selected=s, rounds=max(4, 96 // s)) for s in (8, 24, 72, 216)],
    ),
    "weights": (
        "weights",
        [
            Case(87_810),
            Case(2_226_434, model="mobilenet", rounds=3),
            Case(25_029_002, model="benchmarks.growth:wide", rounds=3),
        ],
    ),
    "pixels": (
        "pixels of a picture",
        [Case(n * n, selected=2, samples=56, model="mobilenet", side=n, rounds=3) for n in (28, 96, 224)],
    ),
}
QUICK = 2  # rounds of each case in a quick run


def wide(num_classes: int, shape: tuple[int, int, int]) -> Any:
    """A plain network of 25 million weights: cheap arithmetic, expensive messages."""
    from torch import nn

    inputs = int(np.prod(shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8192), nn.ReLU(), nn.Linear(8192, 700), nn.ReLU(),
                         nn.Linear(700, num_classes))  # fmt: skip


class Drawn(Sequence[NDArray[np.int64]]):
    """Each client's array is made when it is asked for: clients that nobody asks cost nothing."""

    def __init__(self, num_clients: int, make: Callable[[int], NDArray[np.int64]]) -> None:
        self.num_clients, self.make = num_clients, make

    def __len__(self) -> int:
        return self.num_clients

    def __getitem__(self, k: int) -> NDArray[np.int64]:
        return self.make(k)


class Enlarged:
    """A source whose pictures are shown larger, each pixel repeated."""

    def __init__(self, source: Any, side: int) -> None:
        self._source, self._side = source, side
        self.shape = (3, side, side)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def train_x(self, ids: NDArray[np.int64], a: NDArray[np.int64]) -> NDArray[np.uint8]:
        images = self._source.train_x(ids, a)
        where = np.arange(self._side) * images.shape[-1] // self._side
        return np.ascontiguousarray(images[:, :, where][:, :, :, where])


def federation_of(case: Case) -> Any:
    from feddiverse import seeding
    from feddiverse.data import open_federation
    from feddiverse.data.federation import Federation

    source: Any = open_federation("digits-gsc", seed=0).source
    pool = len(source.train_y)
    counts = np.full((case.clients, 2, 2), case.samples // 4)
    ids = Drawn(case.clients, lambda k: seeding.rng(0, "growth", client=k).integers(0, pool, case.samples))
    a = Drawn(case.clients, lambda k: np.arange(case.samples) % 2)
    shown = source if case.side == source.shape[1] else Enlarged(source, case.side)
    return Federation("growth", shown, counts, case.selected, ids, a, np.arange(len(source.test_y)))


def measure_case(case: Case) -> dict[str, float]:
    """Median seconds of a round after the first, processor seconds, start-up, and peak memory of all processes."""
    from feddiverse.engine.local import LocalEngine
    from feddiverse.messages import Train
    from feddiverse.models import ModelSpec, initial_theta
    from feddiverse.selection.uniform import Uniform
    from feddiverse.server.aggregation import FedAvg
    from feddiverse.server.rounds import Plan, rounds

    started = time.perf_counter()
    federation = federation_of(case)
    source = federation.source
    spec = ModelSpec(case.model, 2, source.shape, source.mean, source.std)
    theta = initial_theta(spec, seed=0)
    me, seconds, cpu, busy = psutil.Process(), [], [], []
    with LocalEngine(federation, spec, WORKERS, "cpu") as engine, Peak(me) as peak:
        plan = Plan(Train(0, 0), case.rounds, case.selected, evaluate_every=case.rounds + 1)
        loop = rounds(engine, Uniform(), FedAvg(), lambda theta: np.ones((2, 2, 2), np.int64), plan, theta)
        first = 0.0
        before = cpu_seconds(me)
        for done in loop:
            now = cpu_seconds(me)
            first = first or time.perf_counter() - started
            seconds.append(done.seconds)
            cpu.append(now - before)
            busy.append(done.traffic["train"]["client_seconds"] / WORKERS)
            before = now
    rest = slice(1, None) if len(seconds) > 1 else slice(None)
    return {
        "round_s": statistics.median(seconds[rest]),
        "round_s_min": min(seconds[rest]),
        "round_s_max": max(seconds[rest]),
        "cpu_s": statistics.median(cpu[rest]),
        "not_training_s": statistics.median(s - b for s, b in zip(seconds[rest], busy[rest], strict=True)),
        "first_round_s": first,
        "peak_mb": peak.mb,
    }


class Peak:
    """The most memory a process and its children had together, sampled in a thread."""

    def __init__(self, process: psutil.Process) -> None:
        self.process, self.mb = process, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(0.25):
            self.mb = max(self.mb, proportional_mb(self.process))

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.mb = max(self.mb, proportional_mb(self.process))
        self._stop.set()
        self._thread.join()


def measure_sizes(what: str, num_clients: int) -> dict[str, float]:
    """Selecting a thousandth (at least 9) of, or measuring, this many clients; processor seconds of one thread."""
    if what == "measuring":
        from feddiverse.heterogeneity import measure

        counts = np.random.default_rng(0).integers(1, 100, (num_clients, 2, 2))
        work: Callable[[], object] = lambda: measure(counts)  # noqa: E731
    else:
        from benchmarks.selection import Told, silent, triplets_of
        from feddiverse import registry
        from feddiverse.seeding import rng
        from feddiverse.selection.feddiverse import FedDiverse

        clients = dict.fromkeys(range(num_clients), 100)
        if what == "feddiverse":
            selector: Any = FedDiverse(Told(triplets_of("spread", num_clients)))
            selector._learn(0, clients, silent)
            selector.choose(1, 9, clients, silent, rng(0, "select", 1))
        else:
            selector = registry.make(registry.SELECTOR, what, {"seed": 0})
        k = max(9, num_clients // 1000)
        work = lambda: selector.choose(2, k, clients, silent, rng(0, "select", 2))  # noqa: E731
    work()
    found = []
    for _ in range(3):
        repeats, start = 0, time.process_time()
        while time.process_time() - start < 0.05:
            work()
            repeats += 1
        found.append((time.process_time() - start) / repeats)
    return {"seconds": statistics.median(found), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000}


MANY = (100, 1_000, 10_000, 100_000, 1_000_000)
BY_NUMBER = ("feddiverse", "uniform", "measuring")


def run(*, quick: bool = False, say: Callable[[str], None] = print) -> dict[str, Any]:
    """All figures, also written to `results/growth.json`."""
    result: dict[str, Any] = {"machine": describe(), "workers": WORKERS}
    for name, (unit, cases) in SWEEPS.items():
        points = []
        for index, case in enumerate(cases):
            case = replace(case, rounds=QUICK) if quick else case
            points.append({"size": case.size, **_in_own_process("case", name, index, case.rounds)})
            say(f"{name} {case.size:,}: {points[-1]['round_s']:.3f} s a round, {points[-1]['peak_mb']:.0f} MB")
        result[name] = {"unit": unit, "points": points, **_exponents(points, ("cpu_s", "round_s", "peak_mb"))}
    for what in BY_NUMBER:
        sizes = MANY[:3] if quick else MANY
        points = [{"size": n, **_in_own_process("many", what, n, 0)} for n in sizes]
        result[what] = {"unit": "clients", "points": points, **_exponents(points, ("seconds",))}
        say(f"{what}: {points[-1]['seconds']:.4f} s for {sizes[-1]:,} clients")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return result


def _in_own_process(*arguments: object) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.growth", *map(str, arguments)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _exponents(points: list[dict[str, float]], keys: Sequence[str]) -> dict[str, float]:
    return {f"exponent_{key}": exponent([p["size"] for p in points], [p[key] for p in points]) for key in keys}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """e of values ∝ sizes^e."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["case", name, index, num_rounds]:
            multiprocessing.set_start_method("fork")
            chosen = replace(SWEEPS[name][1][int(index)], rounds=int(num_rounds))
            print(json.dumps(measure_case(chosen)))
        case ["many", what, number, _]:
            print(json.dumps(measure_sizes(what, int(number))))
        case rest:
            run(quick="--quick" in rest)
