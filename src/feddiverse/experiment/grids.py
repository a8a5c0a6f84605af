"""The studies by name — the paper's tables as grids of runs — and a user's own grid from a TOML file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from feddiverse import registry
from feddiverse.data.names import FEDERATIONS, full_name, parse
from feddiverse.data.table import Columns, path_of, tally
from feddiverse.errors import UserError
from feddiverse.experiment import overhead as costs
from feddiverse.experiment.config import read_toml
from feddiverse.experiment.study import Planned, Study

SEEDS = (0, 1, 2)
PRESETS = ("quick", "paper")

# Quick studies use the embedded digits and few enough rounds: two minutes for the quickstart, 30 for a table (2 cores).
QUICK_DIMENSIONS = 512  # of a rebalanced head: solved in a second, where all 1,792 of the small CNN take five
QUICK_ROUNDS = {"quickstart": 50, "selection": 25, "optimizers": 25, "ablation": 40}

Settings = Mapping[str, Any]

# Rows of Table I. FedNova weighs clients instead of selecting them: everyone takes part (paper, Sec. V-C).
METHODS: dict[str, tuple[str, Settings]] = {
    "feddiverse": ("FedDiverse", {"selector": "feddiverse", "estimator": "consensus"}),
    "feddiverse-paper": ("FedDiverse (paper’s estimator)", {"selector": "feddiverse", "estimator": "paper"}),
    "uniform": ("Uniform random", {"selector": "uniform"}),
    "round_robin": ("Round robin", {"selector": "round_robin"}),
    "fednova": ("FedNova", {"selector": "everyone", "aggregator": "fednova"}),
    "pow_d": ("pow-d", {"selector": "pow_d"}),
    "fedpns": ("FedPNS", {"selector": "fedpns"}),
    "hcsfed": ("HCSFed", {"selector": "hcsfed"}),
}
OPTIMIZERS = {"fedavg": "FedAvg", "fedavgm": "FedAvgM", "fedprox": "FedProx", "fedavgm+fedprox": "FedAvgM + FedProx"}
UNIFORM = METHODS["uniform"][0]
NO_PRETRAINING = f"{UNIFORM}, no pre-training"
WITHOUT: dict[str, Settings] = {NO_PRETRAINING: {"selector": "uniform", "pretraining_rounds": 0}}

# The federations of Table I, in its order; Table III has all but the last.
TABLE_I = (
    "spawrious-gsc", "spawrious-gci", "spawrious-gai", "waterbirds-dist", "spawrious-4", "cmnist-gsc",
    "spawrious-gci-100",
)  # fmt: skip


def _pretrained(rows: Mapping[str, Settings]) -> dict[str, Settings]:
    """T0 = 1 for every method of the paper's tables, as the released code has it: no selector gets a head start."""
    return {name: {"pretraining_rounds": 1, **own} for name, own in rows.items()}


def federations(names: Iterable[str], preset: str, source: str) -> dict[str, str]:
    """The paper's federation → the one to run: on its own pictures, or its split on another source's.

    Two that become the same (GSC on digits) are run once, as the one whose pictures are nearer (CMNIST).
    """
    source = source or ("digits" if preset == "quick" else "")
    known = registry.names(registry.SOURCE)
    if source and source not in known:
        raise UserError(f"There is no source '{source}'; choose one of {', '.join(known)}.")
    by_parts = {parts: name for name, parts in FEDERATIONS.items()}
    chosen: dict[str, str] = {}
    for name in names:
        split, own = parse(name)
        parts = (split, source or own)
        chosen[by_parts.get(parts, f"{parts[0]}:{parts[1]}")] = name
    return {name: to_run for to_run, name in chosen.items()}


def stand_ins(mapping: Mapping[str, str]) -> dict[str, str]:
    """The columns that show other pictures than the paper's, and the federation of the paper each stands for."""
    return {run: paper for paper, run in mapping.items() if run != paper}


def _cross(rows: Mapping[str, Settings], columns: Mapping[str, Settings], seeds: Sequence[int]) -> tuple[Planned, ...]:
    """Seed by seed, so that an interrupted study has whole tables of few seeds rather than a few cells of all."""
    return tuple(
        Planned(row, column, seed, {**there, **here})
        for seed in seeds
        for column, there in columns.items()
        for row, here in rows.items()
    )


def _columns(study: str, preset: str, mapping: Mapping[str, str]) -> dict[str, Settings]:
    """A column for each federation to run, with the preset's settings."""
    base = {"rounds": QUICK_ROUNDS[study], "evaluate_every": 5} if preset == "quick" else {}
    return {name: {**base, "federation": name} for name in mapping.values()}


def quickstart(preset: str, source: str, seeds: Sequence[int]) -> Study:
    """Uniform against FedDiverse on one federation, each with its trained and a rebalanced head: `make run`."""
    mapping = federations(["cmnist-gsc"], preset, source)
    rows = _pretrained(dict(METHODS[name] for name in ("uniform", "feddiverse")))
    solved = {"rebalance": True, **({"rebalance_dimensions": QUICK_DIMENSIONS} if preset == "quick" else {})}
    rows = {name: {**own, **solved} for name, own in rows.items()}
    return Study(
        name="quickstart",
        title="Uniform selection against FedDiverse",
        runs=_cross(rows, _columns("quickstart", preset, mapping), seeds),
        baselines=dict.fromkeys(rows, UNIFORM),
    )


REBALANCED = "FedDiverse, balanced"
QUICK_PHOTOS: Settings = {"rounds": 30, "image_size": 64, "evaluate_every": 5}


def _few_enough(name: str, settings: Settings) -> Settings:
    """Of few clients three eighths a round, as the paper's 9 of 24: where all are asked, selectors do not differ."""
    columns = Columns.of(str(settings.get("columns", "")), str(settings.get("features", "")))
    num_clients = len(tally(path_of(name), columns).clients)
    return {"num_selected": max(1, round(num_clients * 3 / 8))} if num_clients < 24 else {}


def comparison(federation: str, settings: Settings, seeds: Sequence[int]) -> Study:
    """Uniform, pow-d, FedDiverse, and FedDiverse with balanced groups on one federation: `feddiverse compare`.

    Quick unless `settings` say otherwise: few rounds, and pictures of a table at 64 pixels.
    """
    name = full_name(federation)
    is_table = name.startswith("table:") or ":table:" in name
    quick = QUICK_PHOTOS if is_table and not settings.get("features") else {"rounds": 50, "evaluate_every": 5}
    rows = dict(METHODS[method] for method in ("uniform", "pow_d", "feddiverse"))
    rows[REBALANCED] = {**METHODS["feddiverse"][1], "recipe": "balanced"}
    shown = name.removeprefix("table:")
    if name.startswith("table:") and not settings.get("num_selected"):
        quick = {**quick, **_few_enough(name, settings)}
    columns = {shown: {**quick, **settings, "federation": name}}
    return Study(
        name="compare",
        title=f"Which method suits {Path(shown).name if is_table else shown}?",
        runs=_cross(_pretrained(rows), columns, list(dict.fromkeys(seeds))),
        baselines=dict.fromkeys(rows, UNIFORM),
    )


def selection(preset: str, source: str, seeds: Sequence[int]) -> Study:
    """Table I: every selector on the seven federations."""
    mapping = federations(TABLE_I, preset, source)
    rows = _pretrained(dict(METHODS.values())) | WITHOUT
    return Study(
        name="selection",
        title="Client selection (the paper’s Table I)",
        runs=_cross(rows, _columns("selection", preset, mapping), seeds),
        baselines=dict.fromkeys(rows, UNIFORM),
        stands_for=stand_ins(mapping),
    )


def optimizers(preset: str, source: str, seeds: Sequence[int]) -> Study:
    """Table III: four optimisers, each with uniform selection and with FedDiverse."""
    mapping = federations(TABLE_I[:6], preset, source)
    rows: dict[str, Settings] = {}
    baselines: dict[str, str] = {}
    for optimizer, label in OPTIMIZERS.items():
        for method in ("uniform", "feddiverse", "feddiverse-paper"):
            row = f"{label} · {METHODS[method][0]}"
            rows[row] = {**METHODS[method][1], "aggregator": optimizer}
            baselines[row] = f"{label} · {UNIFORM}"
    rows = _pretrained(rows) | WITHOUT  # that one with the default, FedAvgM
    baselines[NO_PRETRAINING] = f"{OPTIMIZERS['fedavgm']} · {UNIFORM}"
    return Study(
        name="optimizers",
        title="Optimisers with and without FedDiverse (the paper’s Table III)",
        runs=_cross(rows, _columns("optimizers", preset, mapping), seeds),
        baselines=baselines,
        stands_for=stand_ins(mapping),
    )


def ablation(preset: str, source: str, seeds: Sequence[int]) -> Study:
    """Table IV: pre-training of 1 or 20 rounds, predicted or known matrices, triplets or whole matrices.

    Beyond the paper: `group_balance` on estimated matrices, which the consensus estimator makes possible.
    """
    mapping = federations(["waterbirds-dist"], preset, source)
    ((federation, base),) = _columns("ablation", preset, mapping).items()
    kinds = {
        "predicted (consensus), triplet": ("feddiverse", "consensus"),
        "predicted (paper’s estimator), triplet": ("feddiverse", "paper"),
        "known, triplet": ("feddiverse", "oracle"),
        "known, N^k": ("group_balance", "oracle"),
        "predicted (consensus), N^k": ("group_balance", "consensus"),
    }
    rows: dict[str, Settings] = {UNIFORM: {"selector": "uniform"}} | {
        f"T0={t0}, {label}": {"selector": selector, "estimator": estimator, "pretraining_rounds": t0}
        for label, (selector, estimator) in kinds.items()
        for t0 in (20, 1)
    }
    rows = _pretrained(rows) | WITHOUT
    columns = {OPTIMIZERS[o]: {**base, "aggregator": o} for o in ("fedavg", "fedavgm")}
    return Study(
        name="ablation",
        title=f"Ablation on {federation} (the paper’s Table IV)",
        runs=_cross(rows, columns, seeds),
        baselines=dict.fromkeys(rows, UNIFORM),
        stands_for=dict.fromkeys(columns, "waterbirds-dist") if stand_ins(mapping) else {},
    )


def overhead(preset: str, source: str, seeds: Sequence[int]) -> Study:
    """Table II: what each selector costs in messages, bytes and seconds, beside the paper's formulas."""
    mapping = federations(["cmnist-gsc"], preset, source)
    columns = {run: {"federation": run, "rounds": 4, "evaluate_every": 4} for run in mapping.values()}
    return Study(
        name="overhead",
        title=f"What selection costs on {', '.join(columns)} (the paper’s Table II)",
        runs=_cross(_pretrained(costs.METHODS), columns, seeds),
        stands_for=stand_ins(mapping),
        view="overhead",
    )


def estimators(preset: str, source: str, seeds: Sequence[int]) -> Study:
    """How near estimated triplets come to the true ones, and what that costs, per estimator and federation."""
    mapping = federations(TABLE_I, preset, source)
    rows = {name: {"selector": "feddiverse", "estimator": name} for name in ("consensus", "paper")}
    # One round of pre-training, then triplets, then one round that uses them: all an estimator needs.
    columns = {run: {"federation": run, "rounds": 2, "evaluate_every": 2} for run in mapping.values()}
    return Study(
        name="estimators",
        title="How good estimated triplets are",
        runs=_cross(rows, columns, seeds),
        stands_for=stand_ins(mapping),
        view="estimators",
    )


STUDIES: dict[str, Callable[[str, str, Sequence[int]], Study]] = {
    "quickstart": quickstart,
    "selection": selection,
    "optimizers": optimizers,
    "ablation": ablation,
    "overhead": overhead,
    "estimators": estimators,
}


def from_toml(path: Path, seeds: Sequence[int] | None) -> Study:
    """A user's grid: `[rows]` and `[columns]` of settings, `[base]` for all, `seeds`, `baseline`, `title`."""
    content = read_toml(path)
    for key in content:
        if key not in {"title", "seeds", "baseline", "base", "rows", "columns"}:
            raise UserError(f"Unknown key '{key}' in {path}; a grid has title, seeds, baseline, base, rows, columns.")
    base, rows = _tables(content, "base", path, nested=False), _tables(content, "rows", path)
    columns = _tables(content, "columns", path) or {str(base.get("federation", "digits-gsc")): {}}
    if not rows:
        raise UserError(f"{path} has no rows; add [rows.NAME] tables, each with the settings of one method.")
    seeds = content.get("seeds", SEEDS) if seeds is None else seeds
    if not isinstance(seeds, Sequence) or not seeds or not all(type(seed) is int for seed in seeds):
        raise UserError(f"'seeds' in {path} must be a list of whole numbers, such as [0, 1, 2].")
    if any("seed" in settings for settings in (base, *rows.values(), *columns.values())):
        raise UserError(f"A run's 'seed' in {path} comes from 'seeds', a list at the top of the file or --seeds.")
    baseline = content.get("baseline")
    if baseline is not None and baseline not in list(rows):
        raise UserError(f"'baseline' in {path} names no row: it is '{baseline}', the rows are {', '.join(rows)}.")
    return Study(
        name=path.stem,
        title=str(content.get("title", path.stem)),
        runs=_cross(rows, {name: {**base, **own} for name, own in columns.items()}, list(dict.fromkeys(seeds))),
        baselines={} if baseline is None else dict.fromkeys(rows, str(baseline)),
    )


def _tables(content: Mapping[str, Any], key: str, path: Path, nested: bool = True) -> dict[str, Any]:
    found = content.get(key, {})
    if not isinstance(found, dict) or (nested and not all(isinstance(value, dict) for value in found.values())):
        raise UserError(f"'{key}' in {path} must be a TOML table{' of tables' if nested else ''} of config keys.")
    return found
