"""All peers on the same work, in turns: `python -m benchmarks --only peers`.

Turns 1, 2, … are for time; turn 0, the last, is for memory. In each turn every peer is launched
once, runs a few rounds and is ended; ratios are taken within a turn, to the plain loop in two processes. Launches are
kept as they come: `--resume` goes on where an interrupted race stopped.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.peers.environments import ROOT, CannotInstall, python_of
from benchmarks.peers.launch import Failed, Launch, Paused, launch

RESULT = Path(__file__).parents[1] / "results" / "peers.json"
REFERENCE = "plain loop, 2 processes"
ROUNDS = {"cnn": 15, "mobilenet": 3}  # a launch in two processes; the first round counts as start-up
ROUNDS_ALONE = {"cnn": 8, "mobilenet": 2}  # in one process, where rounds are slow
TURNS = 3


@dataclass(frozen=True)
class Peer:
    """How to start a peer. `module` is in this folder and takes the arguments of `work.py`; ours is a command."""

    name: str
    module: str
    processes: int
    environment: str | None = None  # None: our own
    note: str = ""


PEERS = (
    Peer(REFERENCE, "plain", 2),
    Peer("plain loop, 1 process", "plain", 1),
    Peer("feddiverse, 2 workers", "ours", 2),
    Peer("feddiverse, 1 worker", "ours", 1),
    Peer("feddiverse on Flower, 2 actors", "ours_on_flower", 2),
    Peer("Flower 1.41, 2 actors", "flower_app", 2, "flower"),
    Peer("pfl 0.6.0, torchrun × 2", "pfl_app", 2, "pfl"),
    Peer("pfl 0.6.0, 1 process", "pfl_app", 1, "pfl"),
    Peer("FLGo 0.4.4, 1 process", "flgo_app", 1, "flgo"),
    Peer("fluke 0.8.1, 1 process", "fluke_app", 1, "fluke"),
)


def run(*, quick: bool = False, resume: bool = False, say: Callable[[str], None] = print) -> dict[str, Any]:
    """The race; its result is also written to `results/peers.json`, after every launch."""
    rounds, turns = ({"cnn": 3, "mobilenet": 2}, 1) if quick else (ROUNDS, TURNS)
    result = json.loads(RESULT.read_text()) if resume and RESULT.exists() else {"launches": [], "absent": {}}
    result |= {"machine": describe(), "rounds": rounds, "turns": turns}
    pythons = _environments(result["absent"], say)
    with tempfile.TemporaryDirectory(prefix="feddiverse-peers-") as name:
        folder = Path(name)
        export_work(folder / "work.npz")
        for turn in (*range(1, turns + 1), 0):
            for model in rounds:
                order = [peer for peer in PEERS if peer.name in pythons]
                for peer in order if turn % 2 else reversed(order):
                    if _is_done(result, turn, model, peer):
                        continue
                    result["launches"] = [e for e in result["launches"] if _key(e) != (turn, model, peer.name)]
                    most = ROUNDS_ALONE[model] if peer.processes == 1 else rounds[model]
                    num_rounds = min(most, rounds[model]) if turn else 2
                    entry = _run_one(peer, pythons[peer.name], model, num_rounds, turn, folder)
                    result["launches"].append(entry)
                    say(f"turn {turn} {model} {peer.name}: {_in_short(entry)}")
                    result["table"] = summarise(result)
                    RESULT.parent.mkdir(exist_ok=True)
                    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return result


def export_work(path: Path, name: str = "cmnist-gsc") -> None:
    """A federation's pictures as every peer reads them: clients one after another, and how many pictures each has."""
    from feddiverse.data import open_federation

    federation = open_federation(name, seed=0)
    clients = [federation.client(k) for k in range(federation.num_clients)]
    images, labels = (np.concatenate([getattr(c, kind) for c in clients]) for kind in ("x", "y"))
    np.savez(path, images=images, labels=labels, sizes=[len(c.y) for c in clients])


def _environments(absent: dict[str, str], say: Callable[[str], None]) -> dict[str, Path]:
    """Interpreter of every peer that can be installed; the others go into `absent` with the reason."""
    pythons = {}
    for peer in PEERS:
        try:
            pythons[peer.name] = python_of(peer.environment)
            absent.pop(peer.name, None)
        except CannotInstall as error:
            absent[peer.name] = f"cannot be installed here: {error}"
            say(f"{peer.name} {absent[peer.name]}")
    return pythons


def _run_one(peer: Peer, python: Path, model: str, rounds: int, turn: int, folder: Path) -> dict[str, Any]:
    here = {"turn": turn, "model": model, "peer": peer.name}
    while True:
        try:
            return here | asdict(launched(peer, python, model, rounds, folder, with_memory=turn == 0))
        except Failed as error:
            return {**here, "failure": str(error)}
        except Paused:
            continue


def launched(peer: Peer, python: Path, model: str, rounds: int, folder: Path, *, with_memory: bool = False) -> Launch:
    """One launch of a peer; its work lies in `folder`."""
    if peer.module.startswith("ours"):
        out = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
        command, progress = ours(python, model, rounds, peer.processes, out, peer.module), out / "run" / "rounds.jsonl"
    else:
        progress = folder / "progress"
        torchrun = peer.module == "pfl_app" and peer.processes > 1
        start = ["-m", "torch.distributed.run", f"--nproc-per-node={peer.processes}"] if torchrun else []
        command = [
            str(python), *start, "-m", f"benchmarks.peers.{peer.module}", f"--model={model}", f"--rounds={rounds}",
            f"--processes={peer.processes}", f"--data={folder / 'work.npz'}", f"--progress={progress}",
        ]  # fmt: skip
    env = {"PYTHONPATH": str(ROOT), "PATH": f"{python.parent}:/usr/bin:/bin", "RAY_USAGE_STATS_ENABLED": "0",
           "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "WANDB_MODE": "disabled"}  # fmt: skip
    return launch(command, progress, rounds, log=folder / "log.txt", env=env, with_memory=with_memory)


def ours(python: Path, model: str, rounds: int, processes: int, folder: Path, module: str) -> list[str]:
    """`feddiverse run` itself, as a user starts it. One round more than is timed: the last is always evaluated."""
    settings = {"lr": 0.001, "evaluate_every": 1_000_000, "checkpoint": "none", "model": model}
    return [
        str(python.parent / "feddiverse"), "run", "--federation", "cmnist-gsc", "--aggregator", "fedavg",
        "--rounds", str(rounds + 1), "--workers", str(processes), "--out", str(folder / "run"),
        *(["--engine", "flower"] if module == "ours_on_flower" else ["--device", "cpu"]),
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
    ]  # fmt: skip


def _is_done(result: dict[str, Any], turn: int, model: str, peer: Peer) -> bool:
    return any(_key(e) == (turn, model, peer.name) and "failure" not in e for e in result["launches"])


def _key(entry: dict[str, Any]) -> tuple[int, str, str]:
    return entry["turn"], entry["model"], entry["peer"]


def _in_short(entry: dict[str, Any]) -> str:
    if "failure" in entry:
        return str(entry["failure"])
    memory = "" if entry["peak_mb"] is None else f", {entry['peak_mb']:.0f} MB"
    rounds = f"{_median(entry):.3f} s a round, " if entry["round_s"] else ""
    return f"{rounds}first after {entry['first_round_s']:.1f} s{memory}"


def summarise(result: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """model → peer → figures: medians over turns, each with its smallest and largest."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for model in result["rounds"]:
        launches = [e for e in result["launches"] if e["model"] == model and "failure" not in e]
        timed: dict[str, dict[int, dict[str, Any]]] = {}
        for e in launches:
            if e["turn"]:
                timed.setdefault(e["peer"], {})[e["turn"]] = e
        reference = timed.get(REFERENCE, {})
        for peer in (p.name for p in PEERS):
            turns = timed.get(peer, {})
            both = [t for t in turns if t in reference]
            if not both:
                continue
            memory = [e["peak_mb"] for e in launches if e["peer"] == peer and e["peak_mb"] is not None]
            table.setdefault(model, {})[peer] = {
                "round_s": spread([statistics.median(turns[t]["round_s"]) for t in turns]),
                "ratio": spread([_median(turns[t]) / _median(reference[t]) for t in both]),
                "cpu_s_per_round": spread([turns[t]["cpu_s_per_round"] for t in turns]),
                "cpu_ratio": spread([turns[t]["cpu_s_per_round"] / reference[t]["cpu_s_per_round"] for t in both]),
                "first_round_s": spread([turns[t]["first_round_s"] for t in turns]),
                "peak_mb": max(memory, default=None),
            }
    return table


def _median(entry: dict[str, Any]) -> float:
    return statistics.median(entry["round_s"])


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


if __name__ == "__main__":
    run(quick="--quick" in sys.argv, resume="--resume" in sys.argv)
