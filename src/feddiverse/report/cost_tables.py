"""What selection costs and what estimators are worth: the paper's Table II with measured columns, and triplet quality.

Both are read from what every run records: `traffic` by kind of question, `selection_seconds`, and `triplets.json`.
"""

from collections.abc import Iterable, Mapping

from feddiverse.report.results import Results
from feddiverse.report.runs import Run
from feddiverse.report.statistics import Spread, spread
from feddiverse.report.table import Cell, Table

TRAIN = "train"
DIMENSIONS = ("ci", "ai", "sc")

# The paper's Table II: frequency, communication, client and server computation. Uniform is not in it: nothing extra.
FORMULAS: Mapping[str, tuple[str, str, str, str]] = {
    "FedDiverse": ("t = 1", "3", "∀k∈K: 2·O(n_k·|θ|)", "O(K)"),
    "FedDiverse (paper’s estimator)": ("t = 1", "3", "∀k∈K: 2·O(n_k·|θ|)", "O(K)"),
    "Round robin": ("0", "0", "0", "O(1)"),
    "FedNova": ("∀t", "3 + ∀k∉K: θ_k", "O(1) + ∀k∉K: O(n_k·|θ|)", "O(K)"),
    "pow-d": ("∀t", "1 + ∀k∉K: θ_k", "∀k∉K: O(n_k·|θ|)", "O(K log K)"),
    "FedPNS": ("0", "0", "0", "O(K²·|θ|²)"),
    "HCSFed": ("t = 1", "r·θ_k", "r·|θ|²", "t = 1: O(K·r·|θ|), else O(K)"),
}


def overhead_table(results: Results) -> Table:
    """Table II: the paper's formulas beside what was counted: questions besides training, once and per round."""
    rows = []
    for (row, column), found in results.runs.items():
        runs = list(found.values())
        once = [_beyond_training(run, first=True) for run in runs]
        each = [_beyond_training(run, first=False) for run in runs]
        trained = spread([_trained(run) for run in runs]).mean
        formulas = FORMULAS.get(row, ("–",) * 4)
        rows.append(
            (
                Cell(row),
                *([Cell(column)] if len(results.columns) > 1 else []),
                *(Cell(formula) for formula in formulas),
                _size(once, "bytes_up"),
                _size(each, "bytes_down"),
                _size(each, "bytes_up"),
                _seconds(spread([cost["client_seconds"] for cost in once])),
                _seconds(spread([cost["client_seconds"] for cost in each])),
                _seconds(spread([_selection_seconds(run) for run in runs])),
                Cell(f"{trained:.1f}", trained),
            )
        )
    heads = (
        "Method", *(["Federation"] if len(results.columns) > 1 else []),
        "When", "Communication", "Client", "Server",
        "Up, once", "Down, a round", "Up, a round", "Clients, once", "Clients, a round", "Server, a round",
        "Trained a round",
    )  # fmt: skip
    notes = (
        "When to Server: the paper’s formulas. The rest is measured, means over seeds, summed over clients, and counts "
        "only questions besides training: once = up to the first selection, a round = mean of those after it.",
        "Trained a round: clients that train, mean over rounds; those beyond the selected ones are a cost too.",
        *results.notes,
    )
    return Table("overhead", results.title, heads, tuple(rows), notes)


def _records(run: Run, first: bool) -> list[dict[str, dict[str, float]]]:
    """Traffic up to and including the first selected round, or of the rounds after it."""
    start = next((i for i, r in enumerate(run.rounds) if r["phase"] == "selected"), 0)
    rounds = run.rounds[: start + 1] if first else run.rounds[start + 1 :]
    return [r["traffic"] for r in rounds]


def _beyond_training(run: Run, first: bool) -> dict[str, float]:
    records = _records(run, first)
    sums = dict.fromkeys(("messages", "bytes_down", "bytes_up", "client_seconds"), 0.0)
    for traffic in records:
        for kind, counted in traffic.items():
            if kind != TRAIN:
                for key in sums:
                    sums[key] += counted[key]
    return sums if first else {key: value / max(len(records), 1) for key, value in sums.items()}


def _selection_seconds(run: Run) -> float:
    chosen = [r["selection_seconds"] for r in run.rounds if r["phase"] == "selected" and "selection_seconds" in r]
    return float(sum(chosen[1:]) / max(len(chosen) - 1, 1))


def _trained(run: Run) -> float:
    return sum(len(r["selected"]) for r in run.rounds) / max(len(run.rounds), 1)


def _size(costs: Iterable[Mapping[str, float]], key: str) -> Cell:
    value = spread([cost[key] for cost in costs]).mean
    return Cell(readable_bytes(value), value)


def readable_bytes(value: float) -> str:
    """`512 B`, `3.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def _seconds(value: Spread) -> Cell:
    text = f"{1000 * value.mean:.1f} ms" if value.mean < 1 else f"{value.mean:.1f} s"
    return Cell(text, value.mean)


def estimators_table(results: Results) -> Table:
    """Per estimator and federation: correlation and mean error of CI, AI, SC, attributes read right, cost."""
    rows = []
    for (row, column), found in results.runs.items():
        runs = [run for run in found.values() if run.triplets is not None]
        if not runs:
            continue
        quality = [(run.triplets or {})["evaluation_only"] for run in runs]
        cost = [_beyond_training(run, first=True) for run in runs]
        clients = len(runs[0].counts)
        rows.append(
            (
                Cell(row),
                Cell(column),
                *(_mean([q["r"][d] for q in quality]) for d in DIMENSIONS),
                *(_mean([q["mae"][d] for q in quality]) for d in DIMENSIONS),
                _mean([q.get("attribute_accuracy") for q in quality]),
                _seconds(spread([c["client_seconds"] / clients for c in cost])),
                _size([{"bytes_up": c["bytes_up"] / clients} for c in cost], "bytes_up"),
            )
        )
    measures = [f"{what} {d.upper()}" for what in ("r", "error") for d in DIMENSIONS]
    heads = ("Estimator", "Federation", *measures, "attribute", "a client", "bytes up a client")
    notes = (
        "r: correlation of estimated with true values over clients (– where one side does not vary); error: mean "
        "absolute error; attribute: share of samples whose attribute was read right, where the estimator reads it. "
        "Means over seeds. The truth is for this table only and never used to select.",
        *results.notes,
    )
    return Table("estimators", results.title, heads, tuple(rows), notes)


def _mean(values: list[float | None]) -> Cell:
    """Mean and deviation over the seeds where the value is defined."""
    known = [value for value in values if value is not None]
    if not known:
        return Cell("–", numbers={"sd": None})
    found = spread(known)
    beside = "" if found.sd is None else f"± {found.sd:.3f}"
    return Cell(f"{found.mean:.3f}".replace("-", "−"), found.mean, beside=beside, numbers={"sd": found.sd})
