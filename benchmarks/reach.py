"""Seconds until the worst group is right to a given share, by every method of the studies that are kept, beside the
plain loop with uniform selection: `python -m benchmarks --only reach`.

How many rounds it takes is what kept runs say. How long a round takes, and all that is not a round, is measured here on
one machine: every method is run for a few rounds as its config has it, in turns with the plain loop.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.machine import describe
from benchmarks.peers import race
from benchmarks.peers.environments import ROOT
from feddiverse.experiment.config import Config, to_toml
from feddiverse.experiment.finished import Run
from feddiverse.report.results import load
from feddiverse.report.statistics import Reached, time_to_reach

RESULT = Path(__file__).parent / "results" / "reach.json"
TRAINED, SOLVED = "trained", "solved anew"
SOURCES = (  # studies, row, head
    (("table-1", "table-1-cmnist"), "Uniform random", TRAINED),
    (("table-1", "table-1-cmnist"), "FedDiverse", TRAINED),
    (("table-1", "table-1-cmnist"), "pow-d", TRAINED),
    (("recipe-on-cmnist",), "Uniform random", SOLVED),
    (("recipe-on-cmnist",), "Uniform random, balanced", SOLVED),
)
GOALS = {"cmnist-gsc": 0.95, "dist:cmnist": 0.70}
TURNS = 2
EVALUATE_EVERY = 10  # so often the kept runs looked, and so often a run is charged for looking
ROUNDS, EVALUATED, CHOOSES = 10, 5, 8  # of a launch; features are chosen when four fifths of its rounds are done


@dataclass(frozen=True)
class Method:
    """A row of a kept study with one of its heads, and the rounds it needs: at most so many where nobody looked before
    the end."""

    name: str
    head: str
    config: Config
    rounds: Reached
    at_most: bool


@dataclass(frozen=True)
class Costs:
    """Seconds of a run's parts. `once`: what is asked before the first choice; `choice`: of features, by the recipe."""

    start: float
    pretraining: float
    once: float
    round: float
    evaluation: float
    choice: float
    solving: float

    def until(self, rounds: float, *, solved: bool) -> float:
        """Pre-training is the first round. The head is solved once, at the end."""
        trained = self.start + self.pretraining + self.once + (rounds - 1) * self.round
        return trained + rounds / EVALUATE_EVERY * self.evaluation + (self.choice + self.solving if solved else 0)


def methods(federation: str) -> Iterator[Method]:
    """What kept runs on this federation say of every row of `SOURCES`."""
    for studies, row, head in SOURCES:
        found = [run for study in studies for run in _runs(study, row) if run.config.federation == federation]
        curves = [run.curve if head == TRAINED else run.rebalanced_curve for run in found]
        seldom = any(len(rounds) == 1 for rounds, _ in curves)
        yield Method(row, head, found[0].config, time_to_reach(curves, GOALS[federation]), seldom)


def _runs(study: str, row: str) -> list[Run]:
    places = load(ROOT / "results" / study).runs
    return [run for (name, _), by_seed in places.items() if name == row for run in by_seed.values()]


def run(*, quick: bool = False, say: Callable[[str], None] = print) -> dict[str, Any]:
    """All figures, also written to `results/reach.json`: of each federation the plain loop, then every method."""
    result: dict[str, Any] = {"machine": describe(), "turns": 1 if quick else TURNS, "federations": {}}
    for federation, level in GOALS.items():
        wanted = list(methods(federation))
        plain: list[tuple[float, float]] = []
        costs: list[list[Costs]] = [[] for _ in wanted]
        with tempfile.TemporaryDirectory(prefix="feddiverse-reach-") as folder:
            race.export_work(Path(folder) / "work.npz", federation)
            for _ in range(result["turns"]):
                plain.append(_plain(Path(folder)))
                say(f"{federation}, plain loop: {plain[-1][1]:.2f} s a round")
                for method, found in zip(wanted, costs, strict=True):
                    found.append(measured(method.config))
                    say(f"{federation}, {method.name}, {method.head}: {found[-1]}")
        rows = [_row(method, found) for method, found in zip(wanted, costs, strict=True)]
        result["federations"][federation] = {"level": level, "plain": _plain_row(plain, wanted[0]), "methods": rows}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return result


def measured(config: Config) -> Costs:
    """What the parts of a run of these settings take, from a short one."""
    config = replace(config, rounds=ROUNDS, evaluate_every=EVALUATED, evaluate_rebalanced_every=0)
    with tempfile.TemporaryDirectory(prefix="feddiverse-reach-") as name:
        folder = Path(name)
        (folder / "config.toml").write_text(to_toml(config))
        feddiverse = str(Path(sys.executable).parent / "feddiverse")
        command = [feddiverse, "run", "--config", f"{folder}/config.toml", "--out", f"{folder}/run"]
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr.strip())
        wall = time.perf_counter() - started
        records = [json.loads(line) for line in (folder / "run" / "rounds.jsonl").read_text().splitlines()]
        solved = json.loads((folder / "run" / "result.json").read_text()).get("rebalanced") or {}
        solving = solved.get("seconds", 0.0)
    seconds = {record["round"]: record["seconds"] for record in records}
    round = statistics.median(seconds[r] for r in seconds if r not in (1, 2, EVALUATED, CHOOSES, ROUNDS))
    return Costs(
        start=wall - sum(seconds.values()) - solving,
        pretraining=seconds[1],
        once=max(seconds[2] - round, 0.0),
        round=round,
        evaluation=max(seconds[EVALUATED] - round, 0.0),
        choice=max(seconds[CHOOSES] - round, 0.0) if config.set_aside else 0.0,
        solving=solving,
    )


def _plain(folder: Path) -> tuple[float, float]:
    """Seconds until its first round is done, and of each further one."""
    peer = next(peer for peer in race.PEERS if peer.name == race.REFERENCE)
    found = race.launched(peer, Path(sys.executable), "mobilenet", 3, folder)
    return found.first_round_s, statistics.median(found.round_s)


def _row(method: Method, costs: list[Costs]) -> dict[str, Any]:
    rounds = method.rounds
    until = [] if rounds.mean is None else [cost.until(rounds.mean, solved=method.head == SOLVED) for cost in costs]
    return {
        "method": method.name,
        "head": method.head,
        "rounds": rounds.mean,
        "at_most": method.at_most,
        "reached": rounds.reached,
        "seeds": rounds.n,
        "round_s": race.spread([cost.round for cost in costs]),
        "seconds": race.spread(until) if until else None,
    }


def _plain_row(turns: list[tuple[float, float]], uniform: Method) -> dict[str, Any]:
    """The plain loop would need the rounds of uniform selection. It is charged for training alone."""
    rounds = uniform.rounds.mean
    return {
        "rounds": rounds,
        "reached": uniform.rounds.reached,
        "seeds": uniform.rounds.n,
        "round_s": race.spread([each for _, each in turns]),
        "seconds": None if rounds is None else race.spread([first + (rounds - 1) * each for first, each in turns]),
    }


if __name__ == "__main__":
    print(tables.reach(run()))
