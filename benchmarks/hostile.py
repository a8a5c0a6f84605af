"""The drill: liars × attacks × defences, and what the defences cost where nobody lies.

    python -m benchmarks.hostile            # what results/hostile.json lacks, the most telling first; then the tables
    python -m benchmarks.hostile --minutes 20 --render

Stop it whenever you like: every run is kept when it is done, and the same command goes on. `--minutes`: begin no run
after so many; `--render`: only put the tables into docs/trust.md. One process, one thread, 30 rounds a run.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import feddiverse as fd
from benchmarks import tables
from feddiverse import files
from feddiverse.data.federation import Samples
from feddiverse.engine.local import LocalEngine
from feddiverse.messages import (
    AttributeTriplet,
    FeatureHistogram,
    FeatureMoments,
    Loss,
    PaperTriplet,
    Reply,
    Task,
    Train,
    Vector,
)
from feddiverse.seeding import rng

RESULT = Path(__file__).parent / "results" / "hostile.json"
STRANGERS = "dirichlet(alpha=0.3):digits"  # 24 clients, 9 a round
SPLITS = ("gsc:digits", "gci:digits", "gai:digits", "dist:digits", "4:digits", "gci-100:digits", "digits-gsc")
ROUNDS, SEEDS = 30, (0, 1)
MORE_SEEDS = (2, 3, 4, 5)
"""Added for the aim alone, before they were run: two seeds tell 80 from 10, not whether a liar costs three points."""
AIM = (
    ("uniform", "−10×", "clipped_mean"),
    ("feddiverse", "half-true triplet", "robust"),
    ("pow_d", "false loss", "robust"),
)
"""Selector, attack and defence of which the aim is asked: one liar costs less than three points."""
LATER = 100
"""Rounds after which it is asked again, of all six seeds: a liar slows learning, and after 30 every run still learns.
Named before any of these was run."""

DEFENCES: dict[str, dict[str, Any]] = {
    "none": {},
    "clipped_mean": {"average": "clipped_mean"},
    "median": {"average": "median"},
    "trimmed_mean": {"average": "trimmed_mean"},
    "multi_krum": {"average": "multi_krum"},
    "robust": {"recipe": "robust"},
}

Lie = Callable[[Task, Vector, Reply, np.random.Generator], Reply]


def turned(task: Task, theta: Vector, reply: Reply, dice: np.random.Generator) -> Reply:
    """θ − 10 (θ_k − θ)."""
    if not isinstance(task, Train) or reply.vector is None:
        return reply
    return replace(reply, vector=theta - 10 * (reply.vector - theta))


def noise(task: Task, theta: Vector, reply: Reply, dice: np.random.Generator) -> Reply:
    """Noise ten times as long as the client's own update."""
    if not isinstance(task, Train) or reply.vector is None:
        return reply
    random = dice.standard_normal(theta.size)
    random *= 10 * np.linalg.norm(reply.vector - theta) / np.linalg.norm(random)
    return replace(reply, vector=(theta + random).astype(np.float32))


def huge(task: Task, theta: Vector, reply: Reply, dice: np.random.Generator) -> Reply:
    return replace(reply, vector=np.full_like(theta, 1e30)) if isinstance(task, Train) else reply


def honest(task: Task, theta: Vector, reply: Reply, dice: np.random.Generator) -> Reply:
    return reply


def false_triplet(task: Task, theta: Vector, reply: Reply, dice: np.random.Generator) -> Reply:
    """The triplet that is least aligned with every other, so as to be chosen; then −10×."""
    if isinstance(task, AttributeTriplet | PaperTriplet):
        return replace(reply, metrics={**reply.metrics, "ci": 0.0, "ai": 0.0, "sc": 0.0})
    return turned(task, theta, reply, dice)


def half_true_triplet(task: Task, theta: Vector, reply: Reply, dice: np.random.Generator) -> Reply:
    """Its own CI and no AI or SC: a corner of the triangle, so as to be chosen; then −10×. With secure sums, since its
    own histogram would give it away."""
    if isinstance(task, AttributeTriplet | PaperTriplet):
        return replace(reply, metrics={**reply.metrics, "ai": 0.0, "sc": 0.0})
    return turned(task, theta, reply, dice)


def false_loss(task: Task, theta: Vector, reply: Reply, dice: np.random.Generator) -> Reply:
    """A loss of a million, so as to be chosen; then −10×."""
    if isinstance(task, Loss):
        return replace(reply, metrics={"loss": 1e6, "loss_rms": 1e6})
    return turned(task, theta, reply, dice)


def false_moments(task: Task, theta: Vector, reply: Reply, dice: np.random.Generator) -> Reply:
    """Sums of features a hundred times too large and a histogram on one cell, to spoil everybody's triplets. It trains
    honestly."""
    if reply.vector is None:
        return reply
    if type(task) is FeatureMoments:
        return replace(reply, vector=reply.vector * np.float32(100))
    if isinstance(task, FeatureHistogram):
        cells = np.zeros_like(reply.vector)
        cells[0] = 1e6
        return replace(reply, vector=cells)
    return reply


ATTACKS: dict[str, Lie] = {
    "none": honest,
    "−10×": turned,
    "noise": noise,
    "1e30": huge,
    "label flip": honest,  # of its data: see `lying`
    "false triplet": false_triplet,
    "half-true triplet": half_true_triplet,
    "false loss": false_loss,
    "false moments": false_moments,
}


@dataclass(frozen=True)
class Case:
    """One run."""

    federation: str
    selector: str
    attack: str
    liars: int
    defence: str
    seed: int
    rounds: int = ROUNDS

    @property
    def key(self) -> str:
        parts = asdict(self)
        if self.rounds == ROUNDS:
            del parts["rounds"]
        return " | ".join(map(str, parts.values()))


def cases() -> Iterator[Case]:
    """The most telling first: one liar, then more; then what the averages cost where nobody lies."""
    robust = [name for name in DEFENCES if name not in ("none", "robust")]
    fooled = {"feddiverse": ("false triplet", "half-true triplet", "false moments"), "pow_d": ("false loss",)}
    for seed in SEEDS:
        for selector, attacks in fooled.items():
            for defence in ("none", "robust"):
                yield Case(STRANGERS, selector, "none", 0, defence, seed)
                for attack in attacks:
                    yield Case(STRANGERS, selector, attack, 1, defence, seed)
        for defence in ("none", *robust):
            yield Case(STRANGERS, "uniform", "none", 0, defence, seed)
            yield Case(STRANGERS, "uniform", "−10×", 1, defence, seed)
    for seed in SEEDS:
        for federation in SPLITS:
            for defence in ("none", "clipped_mean"):
                yield Case(federation, "uniform", "none", 0, defence, seed)
    for liars in (3, 6):
        for seed in SEEDS:
            for defence in ("none", *robust):
                yield Case(STRANGERS, "uniform", "−10×", liars, defence, seed)
    for liars in (1, 3, 6):
        for seed in SEEDS:
            for attack in ("noise", "1e30", "label flip"):
                for defence in ("none", "clipped_mean"):
                    yield Case(STRANGERS, "uniform", attack, liars, defence, seed)
        if liars == 1:
            for selector, attack, defence in AIM:
                for seed in MORE_SEEDS:
                    yield Case(STRANGERS, selector, "none", 0, defence, seed)
                    yield Case(STRANGERS, selector, attack, 1, defence, seed)
    for liars in (3, 6):
        for seed in SEEDS:
            for selector, attacks in fooled.items():
                for defence in ("none", "robust"):
                    for attack in attacks:
                        yield Case(STRANGERS, selector, attack, liars, defence, seed)

    for seed in (*SEEDS, *MORE_SEEDS):
        for selector, attack, defence in AIM:
            yield Case(STRANGERS, selector, "none", 0, defence, seed, LATER)
            yield Case(STRANGERS, selector, attack, 1, defence, seed, LATER)


def lying(attack: str, liars: frozenset[int], seed: int) -> Callable[..., Reply]:
    """What clients answer: `client.tasks.answer`, but for the liars."""
    from feddiverse.client import tasks

    def answer(task: Task, theta: Vector, client: int, samples: Samples, model: Any) -> Reply:
        if client not in liars:
            return tasks.answer(task, theta, client, samples, model)
        if attack == "label flip":
            samples = replace(samples, y=model.spec.num_classes - 1 - samples.y)
        reply = tasks.answer(task, theta, client, samples, model)
        return ATTACKS[attack](task, theta, reply, rng(seed, "lie", task.round, client))

    return answer


def carry_out(case: Case) -> dict[str, Any]:
    """The run's figures. Liars are drawn by the seed, the same for every defence."""
    started = time.process_time()
    num_clients = fd.federation(case.federation, case.seed).num_clients
    drawn = rng(case.seed, "liars").permutation(num_clients)[: case.liars]
    liars = frozenset(drawn.tolist())

    def engine(run: Any, workers: int, device: str) -> LocalEngine:
        answer = lying(case.attack, liars, case.seed)
        return LocalEngine(run.federation, run.spec, device="cpu", in_process=True, answer=answer)

    hidden = {"secure_sums": True} if case.attack == "half-true triplet" else {}
    result = fd.train(
        case.federation, selector=case.selector, seed=case.seed, rounds=case.rounds, evaluate_every=case.rounds,
        engine=engine,
        **DEFENCES[case.defence], **hidden,
    )  # fmt: skip
    chosen = [record["selected"] for record in result.history if record["phase"] == "selected"]
    often = [sum(liar in round_ for round_ in chosen) / len(chosen) for liar in sorted(liars)]
    told = [warning for record in result.history for warning in record["warnings"]]
    return {
        **asdict(case),
        "worst_group_accuracy": result.worst_group_accuracy,
        "accuracy": result.accuracy,
        "liars_chosen": float(np.mean(often)) if often else None,
        "uniform_share": len(chosen[0]) / num_clients,
        "who": sorted(liars),
        "liars_named": sum(any(f"lient {liar} " in sentence for sentence in told) for liar in sorted(liars)),
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def read() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    return found


def run(minutes: float) -> None:
    until = time.monotonic() + 60 * minutes
    for case in cases():
        if time.monotonic() > until:
            return
        if case.key not in read():
            figures = carry_out(case)
            text = json.dumps(read() | {case.key: figures}, indent=1, ensure_ascii=False) + "\n"
            files.write(RESULT, text.encode())
            print(case.key, f"{figures['worst_group_accuracy']:.3f}", figures["liars_chosen"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so many")
    parser.add_argument("--render", action="store_true", help="only write the tables")
    given = parser.parse_args()
    if not given.render:
        run(given.minutes)
    tables.write(tables.TRUST)


if __name__ == "__main__":
    main()
