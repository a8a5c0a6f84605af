"""What selection costs and what estimators are worth: the paper's Table II with what was measured; triplet quality."""

from collections.abc import Mapping, Sequence

from rich.filesize import decimal

from feddiverse.experiment.estimating import Comparison
from feddiverse.experiment.overhead import Cost
from feddiverse.experiment.truth import DIMENSIONS
from feddiverse.report.published import OVERHEAD, Formulas
from feddiverse.report.statistics import spread
from feddiverse.report.table import Cell, Table

Place = tuple[str, str]  # (row, column)


def overhead_tables(
    costs: Mapping[Place, Sequence[Cost]], title: str = "What selection costs", notes: Sequence[str] = ()
) -> list[Table]:
    """Table II: its formulas beside what goes beyond training κ clients a round, in bytes and in seconds; then all
    messages by kind."""
    ways = ("bytes_down", "bytes_up")
    communication, computation, messages = [], [], []
    for (row, column), found in costs.items():
        f = OVERHEAD.get(row, Formulas("", "", "", "", in_paper=False))
        starred = row if f.in_paper else f"{row} *"
        cells = [Cell(f.frequency), Cell(f.communication)]
        cells += [_size([cost.first[way] for cost in found]) for way in ways]
        cells += [_size([cost.each[way] for cost in found]) for way in ways]
        communication.append((starred, column, cells))
        cells = [Cell(f.client), _seconds([cost.first["client_seconds"] for cost in found])]
        cells += [_seconds([cost.each["client_seconds"] for cost in found]), Cell(f.server)]
        computation.append((starred, column, [*cells, _seconds([cost.server_seconds_each for cost in found])]))
        for kind in found[0].kinds:
            of_kind = [cost.kinds[kind] for cost in found if kind in cost.kinds]
            times = spread([each["messages"] for each in of_kind]).mean
            cells = [Cell(kind), Cell(f"{times:.0f}", times)]
            cells += [_size([each[way] for each in of_kind]) for way in ways]
            messages.append((row, column, [*cells, _seconds([each["client_seconds"] for each in of_kind])]))

    sizes = {(column, found[0].num_clients, found[0].num_selected) for (_, column), found in costs.items()}
    words = ", ".join(f"{column}: K = {clients} clients, κ = {chosen}" for column, clients, chosen in sorted(sizes))
    rules = (
        f"{words}. Formulas are those of the paper’s Table II (with a star: ours, where it has none). The rest is "
        "measured: what goes beyond training κ clients a round, summed over clients, means over seeds. Once: up to the "
        "first choice, with the extra training of T0; a round: mean of the rounds after it.",
        *notes,
    )
    bytes_ = ("Frequency", "Communication", "Down, once", "Up, once", "Down, a round", "Up, a round")
    seconds = ("Client", "Clients, once", "Clients, a round", "Server", "Server, a round")
    rounds = " or ".join(sorted({str(cost.rounds) for found in costs.values() for cost in found}))
    return [
        _table("communication", title, bytes_, communication, rules),
        _table("computation", "Computation", seconds, computation),
        _table("messages", f"All messages of {rounds} rounds", ("Kind", "Messages", "Down", "Up", "Clients"), messages),
    ]


def _table(
    name: str, title: str, heads: Sequence[str], rows: Sequence[tuple[str, str, Sequence[Cell]]],
    notes: tuple[str, ...] = (),
) -> Table:  # fmt: skip
    """Rows begin with the method and, where there are several, the federation."""
    first = ("Method", "Federation") if len({column for _, column, _ in rows}) > 1 else ("Method",)
    lines = [(*[Cell(row), Cell(column)][: len(first)], *cells) for row, column, cells in rows]
    return Table(name, title, (*first, *heads), tuple(lines), notes)


def estimators_table(comparisons: Mapping[Place, Sequence[Comparison]], title: str, notes: Sequence[str] = ()) -> Table:
    """Per estimator and federation: correlation and mean error of CI, AI, SC, attributes read right, cost."""
    rows = tuple(
        (
            Cell(row),
            Cell(column),
            *(_mean([each["r"][d] for each in found]) for d in DIMENSIONS),
            *(_mean([each["mae"][d] for each in found]) for d in DIMENSIONS),
            _mean([each.get("attribute_accuracy") for each in found]),
            _seconds([each["seconds"] for each in found]),
            _size([each["bytes_up"] for each in found]),
        )
        for (row, column), found in comparisons.items()
    )
    measures = [f"{what} {d.upper()}" for what in ("r", "error") for d in DIMENSIONS]
    heads = ("Estimator", "Federation", *measures, "attribute", "a client", "bytes up a client")
    rules = (
        "r: correlation of estimated with true values over clients (– where one side does not vary); error: mean "
        "absolute error; attribute: share of samples whose attribute was read right, where the estimator reads it. "
        "Means over seeds. The truth is for this table only and never used to select.",
    )
    return Table("estimators", title, heads, rows, (*rules, *notes))


def _size(values: Sequence[float]) -> Cell:
    value = spread(values).mean
    return Cell(decimal(round(value)), value)


def _seconds(values: Sequence[float]) -> Cell:
    value = spread(values).mean
    return Cell(f"{1000 * value:.1f} ms" if value < 1 else f"{value:.1f} s", value)


def _mean(values: Sequence[float | None]) -> Cell:
    """Mean and deviation over the seeds where the value is defined."""
    known = [value for value in values if value is not None]
    if not known:
        return Cell("–", numbers={"sd": None})
    found = spread(known)
    beside = "" if found.sd is None else f"± {found.sd:.3f}"
    return Cell(f"{found.mean:.3f}".replace("-", "−"), found.mean, beside=beside, numbers={"sd": found.sd})
