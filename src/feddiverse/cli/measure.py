"""`feddiverse measure`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os.path import isfile  # unlike Path.is_file, it bears texts too long for a file name
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from feddiverse.cli import options
from feddiverse.errors import UserError

if TYPE_CHECKING:  # nothing heavy is needed for --help
    from rich.table import Table

    from feddiverse.heterogeneity import Counts, Heterogeneity
    from feddiverse.report.verdict import Verdict

NUM_SHOWN = 50


@dataclass(frozen=True)
class Measured:
    """A federation with its metrics, and the metrics it was designed to have (if it was)."""

    name: str
    counts: Counts
    clients: list[Any]
    metrics: Heterogeneity
    targets: dict[str, float]
    has_attributes: bool = True
    groups: tuple[Sequence[str], Sequence[str]] = ((), ())  # names of classes and attributes
    discover: str = ""  # the command that finds what clients differ in, where nobody knows

    @property
    def distance(self) -> float:
        """The largest difference from a target."""
        return max((abs(getattr(self.metrics, name) - target) for name, target in self.targets.items()), default=0.0)


def _complete(incomplete: str) -> list[str]:
    from feddiverse.data.names import FEDERATIONS

    return [name for name in FEDERATIONS if name.startswith(incomplete)]


def measure(
    target: str = typer.Argument(
        "",
        metavar="TARGET",
        help="A federation's name, split:source, or a CSV.",
        show_default=False,
        autocompletion=_complete,
    ),
    all_seven: bool = typer.Option(False, "--all", help="Measure the paper's seven federations instead."),
    client: str = options.CLIENT,
    label: str = options.LABEL,
    attribute: str = options.ATTRIBUTE,
    image: str = options.IMAGE,
    split: str = options.SPLIT,
    features: str = options.FEATURES,
    count: str = typer.Option("", metavar="COLUMN", help="Of a CSV: the column that says how many samples a row is."),
    seed: int = typer.Option(0, min=0, help="For splits made at random."),
    json: bool = options.JSON,
    plot: Path | None = typer.Option(None, metavar="FILE", help="Draw matrices and metrics (.png, .svg or .pdf)."),
) -> None:
    """Measure how skewed a federation is: six metrics, and each client's triplet. Needs no data.

    TARGET is a federation's name, split:source, or a CSV.
    """
    from feddiverse.cli.console import err
    from feddiverse.splits import PAPER

    if all_seven == bool(target):
        raise UserError(
            "Say what to measure: a federation's name, split:source, a CSV, or --all for the paper's seven."
        )
    if plot is not None:
        _check_plot(plot)
    columns = {
        "client": client, "label": label, "attribute": attribute, "image": image, "split": split,
        "features": features, "count": count,
    }  # fmt: skip
    columns = {option: name for option, name in columns.items() if name}
    with err.status("Measuring…"):
        measured = [_measure(name, columns, seed) for name in (PAPER if all_seven else [target])]
    if json:
        from json import dumps

        plain = {m.name: _plain(m) for m in measured}
        typer.echo(dumps(plain if all_seven else plain[target]))
    else:
        _print(measured)
    if plot is not None:
        with err.status("Drawing…"):
            from feddiverse.report.federation import draw

            first = measured[0]
            names = None if all_seven else [str(client) for client in first.clients]
            figures = {m.name: (m.counts, m.metrics) for m in measured}
            draw(figures, plot, names, first.groups, attributes_known=first.has_attributes)


def _measure(name: str, columns: dict[str, str], seed: int) -> Measured:
    from feddiverse.data.names import FEDERATIONS, full_name, split_of
    from feddiverse.heterogeneity import measure as six_metrics

    target = full_name(name)
    is_csv = target.startswith("table:") or (target not in FEDERATIONS and isfile(target))
    if columns and not is_csv:
        raise UserError(f"--{next(iter(columns))} names a column of a CSV, but '{target}' is not a file.")
    clients: list[Any]
    targets: Mapping[str, float] = {}
    has_attributes = True
    groups: tuple[Sequence[str], Sequence[str]] = ([], [])
    discover = ""
    if is_csv:
        from feddiverse.data.table import Columns, path_of, tally

        named = ",".join(f"{key}={column}" for key, column in columns.items() if key not in ("features", "count"))
        path = path_of(target if target.startswith("table:") else f"table:{target}")
        found = tally(path, Columns.of(named, columns.get("features", "")), columns.get("count"))
        counts, clients, has_attributes = found.counts, found.clients, bool(found.attributes)
        groups = found.classes, found.attributes
        if not has_attributes and "count" not in columns:  # which needs samples, not sums
            numbers = {} if found.has_pictures or "features" in columns else {"features": "COLUMN,…"}
            options = [word for option, given in (columns | numbers).items() for word in (f"--{option}", given)]
            discover = " ".join(["feddiverse", "discover", *(quote(word) for word in (name, *options))]).replace(
                "'COLUMN,…'", "COLUMN,…"
            )
    else:
        split = split_of(target, seed)
        counts, clients, targets = split.counts, list(range(len(split.counts))), split.targets
    return Measured(
        name, counts, clients, six_metrics(counts, clients), dict(targets), has_attributes, groups, discover
    )


def _check_plot(path: Path) -> None:
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"'{path}' must end in .png, .svg or .pdf to be drawn.")
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent} to draw into.")


def _plain(measured: Measured) -> dict[str, Any]:
    from feddiverse.heterogeneity import METRICS

    sizes, triplets = measured.metrics.sizes.astype(int).tolist(), measured.metrics.clients.tolist()
    clients = [
        {"client": name, "n": n, "ci": ci, "ai": ai, "sc": sc}
        for name, n, (ci, ai, sc) in zip(measured.clients, sizes, triplets, strict=True)
    ]
    plain: dict[str, Any] = {name: getattr(measured.metrics, name) for name in METRICS}
    if not measured.has_attributes:  # nobody knows them: there is a class part only
        plain |= {name: None for name in METRICS if not name.endswith("ci")}
        clients = [{**client, "ai": None, "sc": None} for client in clients]
    plain["clients"] = clients
    if measured.targets:
        plain["design"] = {"targets": measured.targets, "distance": measured.distance}
    return plain


def _print(measured: list[Measured]) -> None:
    from feddiverse.cli.console import out
    from feddiverse.heterogeneity import METRICS
    from feddiverse.report.verdict import judge

    if len(measured) > 1:
        rows = [(m.name, *_digits(m.metrics.six)) for m in measured]
        out.print(_table(("federation", *(name.upper() for name in METRICS)), rows))
        return
    (m,) = measured
    out.say(f"{m.name}: {len(m.counts):,} clients, {m.counts.sum():,} samples", whole=True)
    verdict = judge(m.metrics.six, attributes_known=m.has_attributes)
    out.print(_scales(verdict))
    out.say(f"Scales from 0 (even) to 1: ● this federation, │ iid and the paper’s seven. {verdict.nearest}")
    for sentence in verdict.helped:
        out.say(sentence)
    if m.discover:
        out.say(f"There are no attributes here; to find out what the clients differ in: {m.discover}", whole=True)
    if m.targets:
        out.say(f"Designed: every metric is within {m.distance:.4f} of its target.")
    runs = _alike(m)
    out.print(_table(("client", "samples", "CI", "AI", "SC"), runs[:NUM_SHOWN]))
    if len(runs) > NUM_SHOWN:
        out.say(f"… and more; --json has all {len(m.clients):,} clients.")


def _scales(verdict: Verdict) -> Table:
    """A line a metric: its value, where that lies among known federations, and what it means."""
    from rich import box
    from rich.table import Table

    table = Table("", "0   among others   1", "what it means", box=box.SIMPLE_HEAD)
    for placed in verdict.placed:
        value = "unknown" if placed.value is None else f"{placed.value:.3f}"
        table.add_row(f"{placed.label}  {value}", placed.bar(), f"{placed.name.capitalize()}. {placed.says}")
    return table


def _alike(m: Measured) -> list[tuple[str, ...]]:
    """A row a client; neighbours with the same counts share one: `10…23`."""
    import numpy as np

    changes = (m.counts[1:] != m.counts[:-1]).any(axis=(1, 2))
    starts = [0, *(np.flatnonzero(changes)[:NUM_SHOWN] + 1).tolist(), len(m.clients)]
    rows: list[tuple[str, ...]] = []
    for first, end in pairwise(starts[: NUM_SHOWN + 2]):
        name = str(m.clients[first]) + (f"…{m.clients[end - 1]}" if end - first > 1 else "")
        ci, ai, sc = _digits(m.metrics.clients[first])
        known = (ai, sc) if m.has_attributes else ("–", "–")
        rows.append((name, f"{m.metrics.sizes[first]:,.0f}", ci, *known))
    return rows


def _digits(values: Iterable[float]) -> tuple[str, ...]:
    return tuple(f"{value:.3f}" for value in values)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(headings[0], box=box.SIMPLE_HEAD)
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*map(Text, row))  # as Text, since a client may be called [red]
    return table
