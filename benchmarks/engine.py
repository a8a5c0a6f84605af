"""What the local engine costs beside the bare training loop, what a second worker brings, memory and start-up.

One round is the paper's cmnist-gsc: MobileNetV2 at 28×28, 9 of its clients with 200 samples each, one epoch. Digits are
drawn with replacement from the embedded ones, so that nothing need be fetched: time does not depend on what they show.
All ways to run a round are timed in turn, several times; figures are medians of ratios within a turn, with their range.
Processor seconds stand beside wall seconds: they hardly change when something else keeps the machine busy.
"""

import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn

from feddiverse import seeding
from feddiverse.client.training import train
from feddiverse.data import open_federation
from feddiverse.data.federation import Federation
from feddiverse.engine.local import LocalEngine
from feddiverse.experiment.config import Config
from feddiverse.experiment.opening import Objects, open_run
from feddiverse.flower import simulation
from feddiverse.messages import Train, Vector
from feddiverse.models import ModelSpec, build, initial_theta
from feddiverse.server.aggregation import FedAvg
from feddiverse.splits import SPLITS

Way = tuple[Callable[[], object], Callable[[], list[int]]]
"""How to run a round, and the processes that work for it."""

RESULT = Path(__file__).parent / "results" / "engine.json"
TURNS = 5
NUM_SELECTED = 9
NUM_TEST = 10_000
TASK = Train(seed=0, round=1)
BASE_BYTES = 600 << 20  # issue "Train": what Python and torch may take besides data and models


def federation_of(num_test: int = NUM_TEST) -> Federation:
    """The counts of cmnist-gsc over embedded digits, drawn with replacement."""
    digits = open_federation("digits-gsc", seed=0)
    source, counts = digits.source, SPLITS["gsc"].counts
    rng = seeding.rng(0, "benchmark")
    pools = [np.flatnonzero(source.train_y == y) for y in range(2)]
    ids = [np.concatenate([rng.choice(pools[y], int(n[y].sum())) for y in range(2)]) for n in counts]
    a = [np.concatenate([np.repeat([0, 1], n[y]) for y in range(2)]) for n in counts]
    test_ids = np.resize(np.arange(len(source.test_y)), num_test)
    return Federation("cmnist-gsc with embedded digits", source, counts, NUM_SELECTED, ids, a, test_ids)


def spec_of(federation: Federation, model: str) -> ModelSpec:
    source = federation.source
    return ModelSpec(model, federation.num_classes, source.shape, source.mean, source.std)


@contextmanager
def bare_loop(
    federation: Federation, spec: ModelSpec, theta: Vector, clients: list[int], num_workers: int
) -> Iterator[Way]:
    """The limit: processes that hold their clients' data and do nothing but our training step over the same batches.

    Clients are dealt beforehand; nothing is sent but "go" and "done", and nothing is averaged.
    """
    context = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    process_ids: list[int] = []
    for first in range(num_workers):
        ours, theirs = context.Pipe()
        mine = clients[first::num_workers]
        process = context.Process(target=_bare_worker, args=(federation, spec, theta, mine, theirs), daemon=True)
        process.start()
        process_ids.append(process.pid or 0)
        theirs.close()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()

    def round() -> None:
        for pipe in pipes:
            pipe.send(None)
        for pipe in pipes:
            pipe.recv()

    yield round, lambda: process_ids
    for pipe in pipes:
        pipe.close()


def _bare_worker(federation: Federation, spec: ModelSpec, theta: Vector, clients: list[int], pipe: Connection) -> None:
    torch.set_num_threads(1)
    model = build(spec)
    samples = {client: federation.client(client) for client in clients}
    pipe.send(None)
    while True:
        try:
            pipe.recv()
        except (EOFError, OSError):
            return
        for client in clients:
            train(TASK, theta, client, samples[client], model)
        pipe.send(None)


def time_rounds(model: str, turns: int) -> dict[str, Any]:
    """Seconds of a round: the bare loop and the engine (with aggregation), on one and on two workers, in turns."""
    federation = federation_of()
    spec = spec_of(federation, model)
    theta = initial_theta(spec, seed=0)
    clients = list(range(NUM_SELECTED))
    even = list(range(NUM_SELECTED + 1))  # a number that two workers can share equally
    few = clients[:3]  # a number with which one of two workers is idle for half of the round
    seconds: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    with ExitStack() as stack:
        engines = {n: stack.enter_context(LocalEngine(federation, spec, n, "cpu")) for n in (1, 2, 3)}

        def ask(num_workers: int, clients: list[int]) -> Way:
            engine = engines[num_workers]
            return lambda: FedAvg().step(theta, engine.ask(TASK, theta, clients)), lambda: engine.process_ids

        def evaluate(num_workers: int) -> Way:
            engine = engines[num_workers]
            return lambda: engine.evaluate(theta), lambda: engine.process_ids

        def bare(num_workers: int, clients: list[int]) -> Way:
            return stack.enter_context(bare_loop(federation, spec, theta, clients, num_workers))

        ways = {
            "bare_2": bare(2, clients),
            "engine_2": ask(2, clients),
            "bare_1": bare(1, clients),
            "engine_1": ask(1, clients),
            "bare_10_on_2": bare(2, even),
            "engine_10_on_2": ask(2, even),
            "bare_10_on_1": bare(1, even),
            "engine_10_on_1": ask(1, even),
            "engine_3_on_2": ask(2, few),
            "engine_3_on_3": ask(3, few),
            "evaluation_2": evaluate(2),
            "evaluation_1": evaluate(1),
        }
        for turn in range(turns + 1):
            for name, (way, process_ids) in ways.items():
                started, started_cpu = time.perf_counter(), cpu_seconds(process_ids())
                way()
                if turn:  # the first turn warms up, and forks
                    seconds.setdefault(name, []).append(time.perf_counter() - started)
                    cpu.setdefault(name, []).append(cpu_seconds(process_ids()) - started_cpu)
    share = NUM_SELECTED // 2 + NUM_SELECTED % 2  # clients on the busier of two workers
    return {
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "cpu_seconds": {name: statistics.median(values) for name, values in cpu.items()},
        "engine_to_bare": {
            key: {"wall": ratio(seconds[ours], seconds[bare]), "cpu": ratio(cpu[ours], cpu[bare])}
            for key, ours, bare in (
                ("9_clients_2_workers", "engine_2", "bare_2"),
                ("9_clients_1_worker", "engine_1", "bare_1"),
                ("10_clients_2_workers", "engine_10_on_2", "bare_10_on_2"),
            )
        },
        "two_workers_over_one": {
            "9_clients": ratio(seconds["engine_1"], seconds["engine_2"]) | {"at_most": NUM_SELECTED / share},
            "9_clients_bare": ratio(seconds["bare_1"], seconds["bare_2"]) | {"at_most": NUM_SELECTED / share},
            "10_clients": ratio(seconds["engine_10_on_1"], seconds["engine_10_on_2"]),
            "10_clients_bare": ratio(seconds["bare_10_on_1"], seconds["bare_10_on_2"]),
            "evaluation": ratio(seconds["evaluation_1"], seconds["evaluation_2"]),
        },
        "three_workers_to_two": {"3_clients": ratio(seconds["engine_3_on_3"], seconds["engine_3_on_2"])},
        "evaluation_pictures_per_second": NUM_TEST / statistics.median(seconds["evaluation_2"]),
    }


def time_flower(model: str, turns: int) -> dict[str, Any]:
    """A round on our Flower engine beside one on the local engine, with two processes each, in turns."""
    federation = federation_of()
    run = open_run(Config(model=model, checkpoint="none"), Objects(federation))
    theta = initial_theta(run.spec, seed=0)
    seconds: dict[str, list[float]] = {"local": [], "flower": []}
    with LocalEngine(federation, run.spec, 2, "cpu") as local, closing(simulation.open_engine(run, 2, "cpu")) as flower:
        for turn in range(turns + 2):
            for name, engine in (("local", local), ("flower", flower)):
                assert engine.clients
                started = time.perf_counter()
                FedAvg().step(theta, engine.ask(TASK, theta, list(range(NUM_SELECTED))))
                if turn > 1:  # both Flower's processes have opened the data by then
                    seconds[name].append(time.perf_counter() - started)
    return {
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "flower_to_local": ratio(seconds["flower"], seconds["local"]),
    }


def cpu_seconds(process_ids: list[int]) -> float:
    """Of this process and of these so far."""
    return time.process_time() + sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in process_ids)


def ratio(over: list[float], under: list[float]) -> dict[str, float]:
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}


def measure_memory(model: str, num_workers: int = 2) -> dict[str, float]:
    """Peak proportional memory (PSS) of the process tree of a fresh process that trains and evaluates, in MB."""
    program = f"from benchmarks.engine import work; work({model!r}, {num_workers}, rounds=2)"
    process = subprocess.Popen([sys.executable, "-c", program])
    peak = peak_pss(process)
    federation = federation_of()
    spec = spec_of(federation, model)
    data = sum(federation.client(k).x.nbytes for k in range(federation.num_clients)) + federation.test().x.nbytes
    weights = 4 * build(spec).num_parameters
    bound = data + (num_workers + 2) * (2 * weights + activation_bytes(spec, TASK.batch_size)) + BASE_BYTES
    return {"peak_mb": peak / 2**20, "bound_mb": bound / 2**20, "ratio": peak / bound}


def peak_pss(process: "subprocess.Popen[Any]") -> int:
    """Of a process and its descendants, sampled until it ends; pages they share are counted once."""
    peak, tree = 0, psutil.Process(process.pid)
    while process.poll() is None:
        total = 0
        try:
            for member in [tree, *tree.children(recursive=True)]:
                total += member.memory_full_info().pss
        except psutil.Error:
            continue  # one of them just ended
        peak = max(peak, total)
        time.sleep(0.02)
    return peak


def activation_bytes(spec: ModelSpec, batch_size: int) -> int:
    """What the plain model's layers give out in one forward pass, all of which backward needs."""
    module, total = build(replace(spec, fast=False)).module, 0

    def count(_: nn.Module, __: Any, output: torch.Tensor) -> None:
        nonlocal total
        total += output.nbytes

    for leaf in module.modules():
        if not list(leaf.children()):
            leaf.register_forward_hook(count)
    module(torch.zeros(batch_size, *spec.shape))
    return total


def work(model: str, num_workers: int, rounds: int) -> None:
    """What a run does, without its directory: load, start, train and evaluate."""
    federation = federation_of()
    spec = spec_of(federation, model)
    theta = initial_theta(spec, seed=0)
    with LocalEngine(federation, spec, num_workers, "cpu") as engine:
        for _ in range(rounds):
            theta = FedAvg().step(theta, engine.ask(TASK, theta, list(range(NUM_SELECTED))))
            engine.evaluate(theta)


def time_start_up(repeats: int = 3) -> dict[str, Any]:
    """Seconds from launching `feddiverse run` on digits to its first finished round."""
    found = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            command = [
                f"{Path(sys.executable).parent}/feddiverse",
                "run",
                "--federation",
                "digits-gsc",
                "--rounds",
                "1",
            ]
            subprocess.run([*command, "--out", f"{folder}/run"], check=True, capture_output=True)
            found.append(time.perf_counter() - started)
    return {"digits_one_round_s": {"min": min(found), "median": statistics.median(found), "max": max(found)}}


def run(turns: int = TURNS) -> dict[str, Any]:
    """All figures, also written to `results/engine.json`."""
    result = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "turns": turns,
        "load_before": os.getloadavg()[0],
        "mobilenet": time_rounds("mobilenet", turns),
        "cnn": time_rounds("cnn", turns),
        "flower": {model: time_flower(model, turns) for model in ("mobilenet", "cnn")},
        "memory_mobilenet_2_workers": measure_memory("mobilenet"),
        "start_up": time_start_up(),
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return result


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
