"""Replies that no client of ours would send: to the door itself, and to every selector and estimator behind it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzzing.harness import Finding, Rng
from benchmarks.fuzzing.texts import SELECTORS, one_of
from feddiverse import registry
from feddiverse.errors import RunError, UserError
from feddiverse.messages import (
    EVALUATION_ONLY,
    AttributeTriplet,
    Evaluate,
    FeatureHistogram,
    FeatureMoments,
    Form,
    GroupSums,
    HeadErrors,
    LabelCounts,
    Loss,
    PaperTriplet,
    Reply,
    Sketch,
    Task,
    Train,
    TrueMatrix,
    Vector,
)
from feddiverse.server.replies import checked

NUM_EXAMPLES, NUM_WEIGHTS, NUM_CLIENTS, D = 90, 40, 12, 3
AXES: dict[str, Any] = {"directions": np.ones((D, 1), np.float32), "origin": np.zeros(1, np.float32)}
GROUPS = np.ones((2, 2), np.float32)
QUESTIONS: list[Task] = [
    Train(1, 1), Sketch(1, 1, rate=0.1), Loss(1, 1), Evaluate(1, 1, 2), LabelCounts(1, 1), TrueMatrix(1, 1, 2),
    PaperTriplet(1, 1), FeatureMoments(1, 1, D), FeatureHistogram(1, 1, D, **AXES, bins=8),
    AttributeTriplet(1, 1, D, **AXES, centres=np.zeros((2, 2, 1), np.float32), shares=GROUPS, matrix=True),
    GroupSums(1, 1, D, weights=GROUPS), HeadErrors(1, 1, D, heads=np.zeros((2, 2, D + 1), np.float32), weights=GROUPS),
]  # fmt: skip
ODD = [math.nan, math.inf, -math.inf, 1.7e308, 3e38, -3e38, 1e30, 1e15, -1.0, -3, 0, 0.5, 1, 2**40, 2**62, 10**400,
       None, "1", [1.0], True, 1j]  # fmt: skip
NAMES = ["loss", "loss_rms", "steps", "ci", "ai", "sc", f"{EVALUATION_ONLY}a.b", f"{EVALUATION_ONLY}1000000.0",
         f"{EVALUATION_ONLY}0.0", f"{EVALUATION_ONLY}-1.0", "\x1b[2J", 3, None]  # fmt: skip


def honest(task: Task, client: int, rng: Rng, num_weights: int = NUM_WEIGHTS) -> Reply:
    """An answer such as a client might give."""
    table = rng.multinomial(NUM_EXAMPLES, [0.4, 0.1, 0.1, 0.4]).astype(np.float32)
    triplet = dict(zip(("ci", "ai", "sc"), rng.random(3).tolist(), strict=True))
    vector: Vector | None = None
    metrics: Mapping[str, float] = {}
    match task:
        case Sketch():
            vector = np.sort(rng.normal(size=task.length(num_weights))).astype(np.float32)
        case Train():
            vector, metrics = rng.normal(size=num_weights).astype(np.float32), {"loss": 0.7, "steps": 4.0}
        case Loss():
            metrics = {"loss": float(rng.random()), "loss_rms": float(rng.random())}
        case Evaluate():
            vector = np.concatenate([table // 2, table])
        case LabelCounts():
            vector = table.reshape(2, 2).sum(axis=1)
        case TrueMatrix():
            vector = table
        case PaperTriplet():
            metrics = triplet
        case FeatureHistogram():
            cells = rng.integers(0, task.bins**task.origin.size, NUM_EXAMPLES)
            counts = np.zeros((2, task.bins**task.origin.size), np.float32)
            np.add.at(counts, (rng.integers(0, 2, NUM_EXAMPLES), cells), 1)
            vector = counts.ravel()
        case AttributeTriplet():
            metrics = triplet
            vector = table[: task.shares.size] if task.matrix else None
        case HeadErrors():
            vector = np.concatenate([rng.random(len(task.heads) * 4), table]).astype(np.float32)
        case _:  # sums of features: of moments or of groups
            vector = _sums(task, client, rng)
    return Reply(client, NUM_EXAMPLES, vector, metrics, seconds=0.1)


def _sums(task: Task, client: int, rng: Rng) -> Vector:
    x, y = rng.normal(size=(NUM_EXAMPLES, D)), rng.integers(0, 2, NUM_EXAMPLES)
    x[:, 0] += 4 * (rng.random(NUM_EXAMPLES) < (client % 4) / 4)
    upper = np.triu_indices(D)
    sums = np.stack([x[y == c].sum(axis=0) for c in (0, 1)])
    counts = np.bincount(y, minlength=2)
    if isinstance(task, GroupSums):
        return np.concatenate([counts, sums.ravel(), (x.T @ x)[upper]]).astype(np.float32)
    means = sums / counts[:, None]
    centred = x - means[y]
    between = (means.T * counts) @ means
    return np.concatenate([[1, 2], counts, sums.ravel(), (centred.T @ centred)[upper], between[upper]]).astype(
        np.float32
    )


def hostile(reply: Reply, rng: Rng) -> Any:
    """The reply with some of it changed, or something else."""
    if rng.random() < 0.03:
        return one_of(rng, [None, "reply", {}, 7])
    metrics: Any = dict(reply.metrics)
    for _ in range(int(rng.integers(0, 3))):
        metrics[one_of(rng, NAMES)] = one_of(rng, ODD)
    if rng.random() < 0.1:
        metrics.pop(one_of(rng, NAMES), None)
    vector: Any = reply.vector
    if vector is not None and vector.size and rng.random() < 0.6:
        vector = vector.copy()
        places = rng.integers(0, vector.size, int(rng.integers(1, 4)))
        numbers = [math.nan, math.inf, 3e38, -3e38, 1e30, 1e15, 1e14, -1.0, 0.0, 1e6]
        match int(rng.integers(6)):
            case 0 | 1:
                vector[places] = one_of(rng, numbers)
            case 2:
                vector *= one_of(rng, [-1, 0, 1e6, 1e12, 1e30])
            case 3:
                vector = vector[rng.permutation(vector.size)]
            case 4:
                vector = one_of(rng, [vector[:-1], np.append(vector, vector), vector.astype(np.float64), vector[None]])
            case 5:
                vector = rng.normal(scale=float(one_of(rng, [1, 1e5, 1e14])), size=vector.size).astype(np.float32)
    changes: dict[str, Any] = {"metrics": metrics, "vector": vector}
    for name in ("num_examples", "seconds"):
        if rng.random() < 0.15:
            changes[name] = one_of(rng, ODD)
    if rng.random() < 0.05:
        changes["client"] = one_of(rng, [99, -1, None])
    if rng.random() < 0.03:
        changes["failure"] = one_of(rng, ["", "gone\x1b[2J", "x" * 10_000])
    return replace(reply, **changes)


def to_the_door(rng: Rng, folder: Path) -> None:
    """One reply to one question: behind the door it fits the question's form, or is a failure."""
    task = one_of(rng, QUESTIONS)
    (out,) = checked(task, [hostile(honest(task, 3, rng), rng)], [3], NUM_WEIGHTS, {3: NUM_EXAMPLES})
    if out.failure is not None:
        if not (out.failure.isprintable() and len(out.failure) <= 400):
            raise Finding(f"a failure that cannot be shown: {out.failure!r}")
        return
    form: Form = task.form(out.num_examples, NUM_WEIGHTS)
    numbers = [*out.metrics.values(), out.seconds, *(out.vector if out.vector is not None else [])]
    if not np.isfinite(numbers).all() or not form.metrics.keys() <= out.metrics.keys():
        raise Finding(f"{out} came through the door")


class Federation:
    """An engine of clients of which a few lie."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._liars = set(rng.permutation(NUM_CLIENTS)[: int(rng.integers(1, 5))].tolist())
        self.clients = dict.fromkeys(range(NUM_CLIENTS), NUM_EXAMPLES)

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        for client in clients:
            reply = honest(task, client, self._rng, theta.size)
            yield hostile(reply, self._rng) if client in self._liars else reply

    def close(self) -> None: ...


def to_selectors(rng: Rng, folder: Path) -> None:
    """Four rounds of choosing and watching, by any selector with any estimator and aggregator."""
    from feddiverse.server.rounds import Plan, rounds

    settings: dict[str, Any] = {
        "seed": 3, "num_classes": 2, "num_attributes": 2, "rounds": 4, "consensus_dimensions": D,
        "num_clients": NUM_CLIENTS,
        "head_bias": slice(38, 40), "hcsfed_rate": 0.1, "momentum": 0.9,
    }  # fmt: skip
    estimator = one_of(rng, registry.ESTIMATOR.builtin)
    later = registry.Later(lambda: registry.make(registry.ESTIMATOR, estimator, settings))
    selector = registry.make(registry.SELECTOR, one_of(rng, SELECTORS), {**settings, "estimator": later})
    aggregator = registry.make(registry.AGGREGATOR, one_of(rng, registry.AGGREGATOR.builtin), settings)
    plan = Plan(Train(3, 1), rounds=4, num_selected=4, evaluate_every=9)
    theta = rng.normal(size=NUM_WEIGHTS).astype(np.float32)
    try:
        with np.errstate(all="ignore"):
            done = list(rounds(Federation(rng), selector, aggregator, None, plan, theta))
    except (UserError, RunError) as error:  # a sentence, but nobody's mistake: a client ended the run
        raise Finding(f"the run stopped: {error}") from error
    if len(done) != 4:
        raise Finding(f"only {len(done)} of 4 rounds were made")
