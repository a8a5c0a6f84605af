"""What selection costs and what estimators are worth: the paper's Table II with measured columns, and triplet quality.

Both are read from what every run records: `traffic` by kind of question, `selection_seconds`, and `triplets.json`.
"""

from collections.abc import Iterable, Mapping

from rich import filesize

from feddiverse.experiment.config import from_mapping
from feddiverse.experiment.overhead import METHODS, Cost, Method, cost
from feddiverse.report.results import Results
from feddiverse.report.runs import Run
from feddiverse.report.statistics import Spread, spread
from feddiverse.report.table import Cell, Table

DIMENSIONS = ("ci", "ai", "sc")
WAYS = ("bytes_down", "bytes_up")
QUESTIONS = ("train", "true_matrix")  # what is asked of clients besides estimating


def overhead_table(results: Results) -> Table:
    """Table II: the paper's formulas beside what goes beyond training κ clients a round, once and in every round."""
    methods = {method.name: method for method in METHODS}
    several = len(results.columns) > 1
    rows = []
    for (row, column), found in results.runs.items():
        costs = [_cost(run, methods[row]) for run in found.values()]
        method = methods[row]
        rows.append(
            (
                Cell(row if method.in_paper else f"{row} *"),
                *([Cell(column)] if several else []),
                *(Cell(text) for text in (method.frequency, method.communication, method.client, method.server)),
                *(_size([getattr(cost, when) for cost in costs], way) for when in ("first", "each") for way in WAYS),
                _seconds(spread([cost.first["client_seconds"] for cost in costs])),
                _seconds(spread([cost.each["client_seconds"] for cost in costs])),
                _seconds(spread([cost.server_seconds_each for cost in costs])),
            )
        )
    heads = (
        "Method", *(["Federation"] if several else []), "Frequency", "Communication", "Client", "Server",
        "Down, once", "Up, once", "Down, a round", "Up, a round", "Clients, once", "Clients, a round",
        "Server, a round",
    )  # fmt: skip
    notes = (
        "Frequency to Server: the paper’s formulas (with a star: ours, where it has none). The rest is measured: what "
        "goes beyond training κ clients a round, summed over clients, means over seeds. Once: up to the first choice, "
        "with the extra training of T0; a round: mean of the rounds after it.",
        *results.notes,
    )
    return Table("overhead", results.title, heads, tuple(rows), notes)


def _cost(run: Run, method: Method) -> Cost:
    return cost(method, from_mapping(run.config), run.rounds, run.federation)


def _size(costs: Iterable[Mapping[str, float]], key: str) -> Cell:
    value = spread([cost[key] for cost in costs]).mean
    return Cell(filesize.decimal(round(value)), value)


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
        costs = [_estimation(run) for run in runs]
        clients = len(runs[0].counts)
        rows.append(
            (
                Cell(row),
                Cell(column),
                *(_mean([q["r"][d] for q in quality]) for d in DIMENSIONS),
                *(_mean([q["mae"][d] for q in quality]) for d in DIMENSIONS),
                _mean([q.get("attribute_accuracy") for q in quality]),
                _seconds(spread([c["client_seconds"] / clients for c in costs])),
                _size([{"bytes_up": c["bytes_up"] / clients} for c in costs], "bytes_up"),
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


def _estimation(run: Run) -> dict[str, float]:
    """Seconds and bytes of all questions that are neither training nor the truth."""
    counted = [row for r in run.rounds for kind, row in r["traffic"].items() if kind not in QUESTIONS]
    return {key: float(sum(row[key] for row in counted)) for key in ("client_seconds", "bytes_up")}


def _mean(values: list[float | None]) -> Cell:
    """Mean and deviation over the seeds where the value is defined."""
    known = [value for value in values if value is not None]
    if not known:
        return Cell("–", numbers={"sd": None})
    found = spread(known)
    beside = "" if found.sd is None else f"± {found.sd:.3f}"
    return Cell(f"{found.mean:.3f}".replace("-", "−"), found.mean, beside=beside, numbers={"sd": found.sd})
