"""What privacy costs: fixed point and ε in the correlation of triplets, ε and noise in worst-group accuracy. On digits.

    python -m benchmarks.privacy          # about 20 processor minutes; what is there already is kept
    python -m benchmarks.privacy --table  # only the tables, in Markdown, from what was measured

Writes results/privacy.json. Seeds and values of ε were chosen before anything was measured.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

import feddiverse as fd
from feddiverse import files, registry
from feddiverse.experiment.config import Config
from feddiverse.experiment.estimating import pretrain
from feddiverse.experiment.opening import open_run
from feddiverse.experiment.truth import compare
from feddiverse.report.statistics import paired_difference
from feddiverse.server.meter import Meter
from feddiverse.server.privacy import Privacy
from feddiverse.server.secagg import SecureSums

RESULT = Path(__file__).parent.parent / "results" / "privacy.json"

FEDERATIONS = ("digits-gsc", "gai:digits")
SEEDS = (0, 1, 2)
BITS = (None, 32, 24, 16, 8, 4)  # None: plain sums
EPSILONS = (None, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25)  # None: no noise
TRAINING_EPSILONS = (None, 4.0, 1.0, 0.25)
NOISES = (0.0, 0.01, 0.1, 1.0)  # multiples of CLIP
CLIP = 1.0
ROUNDS = 40

Row = dict[str, Any]


def triplets(federation: str, seed: int) -> Iterator[Row]:
    """r of triplets after one round with every client: by binary places, then by ε (reading and T0 are the same)."""
    opened = open_run(Config(federation=federation, seed=seed, pretraining_rounds=1))
    counts = opened.federation.counts
    with closing(registry.find(registry.ENGINE, "local")(opened, 2, "cpu")) as engine:
        theta = pretrain(opened, engine, lambda what: None)
        for bits in BITS:
            privacy = Privacy(sums=None if bits is None else SecureSums(bits=bits, neighbours=4))
            found = opened.estimator("consensus").estimate(2, engine.clients, Meter(engine, privacy).with_theta(theta))
            yield {"bits": bits, **_compared(found, counts)}
        for name in ("oracle", "consensus"):
            estimator = opened.estimator(name)
            estimator.estimate(2, engine.clients, Meter(engine).with_theta(theta))  # learns how to read
            for epsilon in EPSILONS:
                privacy = Privacy(epsilon=epsilon or 0.0, sums=SecureSums())
                found = estimator.estimate(2, engine.clients, Meter(engine, privacy).with_theta(theta))
                yield {"estimator": name, "epsilon": epsilon, **_compared(found, counts)}


def _compared(found: Any, counts: Any) -> Row:
    comparison = compare(found, counts)
    return {"r": comparison["r"], "mae": comparison["mae"], "clients": len(found)}


def trained(seed: int, **settings: Any) -> Iterator[Row]:
    """Worst-group accuracy of one run."""
    result = fd.train("digits-gsc", seed=seed, rounds=ROUNDS, evaluate_every=ROUNDS, workers=2, **settings)
    yield {
        "settings": settings,
        "worst_group_accuracy": result.summary["worst_group_accuracy"],
        "accuracy": result.summary["accuracy"],
        "privacy": result.summary.get("privacy"),
    }


def parts() -> dict[str, Callable[[], Iterator[Row]]]:
    """All that is measured, by name."""
    found: dict[str, Callable[[], Iterator[Row]]] = {}
    for federation in FEDERATIONS:
        for seed in SEEDS:
            found[f"triplets {federation} {seed}"] = lambda f=federation, s=seed: triplets(f, s)
    for seed in SEEDS:
        found[f"uniform {seed}"] = lambda s=seed: trained(s, selector="uniform")
        for epsilon in TRAINING_EPSILONS:
            settings = {"selector": "feddiverse", "secure_sums": True, "privacy_epsilon": epsilon or 0.0}
            found[f"tables {epsilon} {seed}"] = lambda s=seed, k=settings: trained(s, **k)
    for seed in SEEDS:
        for noise in NOISES:
            settings = {"selector": "uniform", "privacy_clip": CLIP, "privacy_noise": noise}
            found[f"updates {noise} {seed}"] = lambda s=seed, k=settings: trained(s, **k)
    return found


def mean(values: list[Any]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3f}" if known else "–"


def tables(done: dict[str, list[Row]]) -> str:
    """What was measured, in Markdown."""
    lines: list[str] = []

    def correlations(title: str, key: str, values: tuple[Any, ...], wanted: Callable[[Row], bool]) -> None:
        lines.extend(["", f"| {title} | {' | '.join(FEDERATIONS)} |", "| --- " * (1 + len(FEDERATIONS)) + "|"])
        for value in values:
            cells = []
            for federation in FEDERATIONS:
                rows = [
                    row for seed in SEEDS for row in done.get(f"triplets {federation} {seed}", [])
                    if wanted(row) and row[key] == value
                ]  # fmt: skip
                cells.append(" / ".join(mean([row["r"][name] for row in rows]) for name in ("ci", "ai", "sc")))
            lines.append(f"| {'none' if value is None else value} | {' | '.join(cells)} |")

    correlations("binary places", "bits", BITS, lambda row: "bits" in row)
    for name in ("oracle", "consensus"):
        correlations(f"ε, {name}", "epsilon", EPSILONS, lambda row, n=name: row.get("estimator") == n)

    def accuracies(name: str, seeds: tuple[int, ...]) -> list[float]:
        return [100 * done[f"{name} {s}"][0]["worst_group_accuracy"] for s in seeds if f"{name} {s}" in done]

    lines += [
        "",
        "| tables | worst-group accuracy | against no noise, paired, 95 % | ε told |",
        "| --- | --- | --- | --- |",
    ]
    base = accuracies("tables None", SEEDS)
    for name in ("uniform", *(f"tables {epsilon}" for epsilon in TRAINING_EPSILONS)):
        lines.append(_line(name, accuracies(name, SEEDS), base, done.get(f"{name} 0")))
    lines += [
        "",
        "| updates | worst-group accuracy | against no clipping, paired, 95 % | ε told |",
        "| --- | --- | --- | --- |",
    ]
    base = accuracies("uniform", SEEDS)
    for name in ("uniform", *(f"updates {noise}" for noise in NOISES)):
        lines.append(_line(name, accuracies(name, SEEDS), base, done.get(f"{name} 0")))
    return "\n".join(lines).strip()


def _line(name: str, found: list[float], base: list[float], rows: list[Row] | None) -> str:
    values = f"{np.mean(found):.1f} ({', '.join(f'{value:.1f}' for value in found)})" if found else "–"
    gap = paired_difference(dict(enumerate(found)), dict(enumerate(base))) if found != base else None
    difference = f"{gap.mean:+.1f} ({gap.low:+.1f} … {gap.high:+.1f})" if gap and gap.low is not None else "–"
    told = rows and rows[0]["privacy"]
    part = told and (told["tables"] if name.startswith("tables") else told["updates"])
    return (
        f"| {name} | {values} | {difference} | {part['epsilon']:.4g} |"
        if part
        else f"| {name} | {values} | {difference} | ∞ |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only the tables, from what was measured")
    done: dict[str, list[Row]] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if not parser.parse_args().table:
        for name, measure in parts().items():
            if name not in done:
                print(name, flush=True)
                done[name] = list(measure())
                files.write(RESULT, (json.dumps(done, indent=1) + "\n").encode())
    print(tables(done))


if __name__ == "__main__":
    main()
