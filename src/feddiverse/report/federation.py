"""A federation at a glance: clients' matrices as small heat maps beside the six metrics (the paper's data figure), and
the same in tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from feddiverse.errors import UserError
from feddiverse.experiment.finished import Run
from feddiverse.heterogeneity import METRICS, Counts, Heterogeneity, measure, triplet
from feddiverse.report.table import Cell, Table

# Okabe and Ito's blue and orange, and one hue from light to dark: told apart with any colour vision, and in grey.
GLOBAL, CLIENT, SHADES = "#0072B2", "#E69F00", "Blues"
NUM_SHOWN = 60
MOST_KINDS = 40  # of clients, in the table
UNKNOWN = "AI and SC are unknown: training samples have no attributes."
MAPS_WIDTH, BARS_WIDTH = 7.4, 3.4  # inches


@dataclass(frozen=True)
class Tiles:
    """The different matrices of a federation in order of appearance, who has each, and their grid."""

    matrices: Counts
    clients: list[NDArray[np.int64]]
    names: Sequence[str] = ()  # of clients that have names of their own

    @property
    def num_shown(self) -> int:
        return min(len(self.matrices), NUM_SHOWN)

    @property
    def across(self) -> int:
        return min(max(self.num_shown, 8), 12)

    @property
    def down(self) -> int:
        return -(-self.num_shown // self.across)

    @property
    def pitch(self) -> tuple[float, float]:
        """Width and height of a heat map with the gap to the next, where a cell measures 1."""
        _, num_classes, num_attributes = self.matrices.shape
        return num_attributes + 0.7, num_classes + 1.0

    @property
    def inches(self) -> float:
        """Height of the grid when it fills the width."""
        return MAPS_WIDTH * (self.down * self.pitch[1]) / (self.across * self.pitch[0])

    def title(self, i: int) -> str:
        """`2×` where two clients have the matrix; of a single one its name, if it has one."""
        several = len(self.clients[i])
        return f"{several}×" if several > 1 else shortened(self.names[self.clients[i][0]], 12) if self.names else ""


def draw(
    federations: Mapping[str, tuple[Counts, Heterogeneity]],
    path: Path,
    names: Sequence[str] | None = None,
    *,
    attributes_known: bool = True,
) -> None:
    """Write the figure, one row a federation; the ending of `path` says the format (png, svg, pdf).

    `names`: of the clients of the only federation, where they are called more than 0, 1, …
    `attributes_known`: without attributes there is class imbalance only.
    """
    with mpl.rc_context({"text.parse_math": False}):  # a $ in a name is a $
        _draw(federations, path, names, attributes_known)


def _draw(
    federations: Mapping[str, tuple[Counts, Heterogeneity]],
    path: Path,
    names: Sequence[str] | None,
    attributes_known: bool,
) -> None:
    tiles = {name: _distinct(counts, names) for name, (counts, _) in federations.items()}
    heights = [max(1.6, t.inches + 0.5) for t in tiles.values()]
    figure = Figure(figsize=(MAPS_WIDTH + BARS_WIDTH, sum(heights) + 0.5), layout="constrained")
    widths = [MAPS_WIDTH, BARS_WIDTH]
    axes = figure.subplots(len(tiles), 2, squeeze=False, width_ratios=widths, height_ratios=heights)
    for (maps, bars), (name, (counts, metrics)) in zip(axes, federations.items(), strict=True):
        maps.set_title(f"{name}: {len(counts):,} clients, {counts.sum():,} samples", loc="left", fontsize=10)
        _draw_maps(maps, tiles[name])
        _draw_bars(bars, metrics, attributes_known)
    axes[0, 1].legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False, fontsize=8)
    figure.supxlabel(
        "Samples of each class (row) and attribute (column); 2×: two clients have this matrix. "
        "CI, AI: class and attribute imbalance. SC: spurious correlation."
        if attributes_known
        else "Samples of each class (row), attributes being unknown; 2×: two clients have this. CI: class imbalance.",
        fontsize=8,
    )
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UserError(f"The figure cannot be written to {path}: {error.strerror}.") from None


def _distinct(counts: Counts, names: Sequence[str] | None = None) -> Tiles:
    matrices, first, kind = np.unique(counts, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    own = names if names is not None and list(names) != [str(k) for k in range(len(counts))] else ()
    return Tiles(matrices[order], [np.flatnonzero(kind.ravel() == i) for i in order], own)


def shortened(name: str, most: int) -> str:
    """A name that fits: its beginning and its end, which often is what differs."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[most // 2 + 1 - most :]}"


def _draw_maps(axes: Any, tiles: Tiles) -> None:
    """Heat maps of the share of its client's samples that a group has, all on one pair of axes."""
    matrices = tiles.matrices[: tiles.num_shown]
    _, num_classes, num_attributes = matrices.shape
    shares = matrices / matrices.sum(axis=(1, 2), keepdims=True)
    wide, high = tiles.pitch
    for i, matrix in enumerate(matrices):
        left, top = (i % tiles.across) * wide, (i // tiles.across) * high
        x, y = left + np.arange(num_attributes + 1), top + np.arange(num_classes + 1)
        axes.pcolormesh(x, y, shares[i], cmap=SHADES, vmin=0, vmax=shares.max(), edgecolors="0.6", linewidth=0.5)
        if title := tiles.title(i):
            middle, size = left + num_attributes / 2, 8 if title.endswith("×") else 6
            axes.text(middle, top - 0.1, title, ha="center", va="bottom", fontsize=size)
        if matrix.size <= 8 and matrix.max() < 10_000:  # else numbers would not fit
            for (row, column), count in np.ndenumerate(matrix):
                colour = "white" if shares[i, row, column] > 0.55 * shares.max() else "black"
                place = x[column] + 0.5, y[row] + 0.5
                axes.text(*place, str(count), ha="center", va="center", fontsize=6, color=colour)
    if len(tiles.matrices) > tiles.num_shown:
        note = f"The first {tiles.num_shown} of {len(tiles.matrices):,} different matrices."
        axes.text(0, tiles.down * high - 0.9, note, fontsize=7, va="top")
    axes.set(xlim=(-0.1, tiles.across * wide), ylim=(tiles.down * high - 0.4, -0.8))
    axes.set_aspect("equal", anchor="NW")
    axes.set_axis_off()


def _draw_bars(axes: Any, metrics: Heterogeneity, attributes_known: bool) -> None:
    shown = ["CI", "AI", "SC"][: None if attributes_known else 1]
    positions = np.arange(len(shown))
    for values, shift, colour, label in (
        (metrics.six[: len(shown)], -0.2, GLOBAL, "global"),
        (metrics.six[3 : 3 + len(shown)], 0.2, CLIENT, "mean of clients"),
    ):
        bars = axes.bar(positions + shift, values, width=0.38, color=colour, label=label)
        axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=1)
    axes.set_xticks(positions, shown)
    axes.set_ylim(0, 1.15)
    axes.set_yticks([0, 0.5, 1])
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def clients_table(run: Run, name: str, *, varies: bool) -> Table:
    """Kinds of clients: how many there are and who, their matrix, their triplet. `varies`: from seed to seed."""
    tiles, num_known = _distinct(run.counts), 3 if run.attributes_known else 1
    order = sorted(range(len(tiles.clients)), key=lambda i: -len(tiles.clients[i]))
    rows = tuple(
        (
            Cell(f"{len(tiles.clients[i])}", len(tiles.clients[i])),
            Cell(_who([run.client_names[k] for k in tiles.clients[i]])),
            *(Cell(f"{n}", int(n)) for n in tiles.matrices[i].ravel()),
            *(Cell(f"{t:.3f}", float(t)) for t in triplet(tiles.matrices[i])[:num_known]),
            *[Cell("–")] * (3 - num_known),
        )
        for i in order[:MOST_KINDS]
    )
    heads = ("Clients", "Who", *run.group_names, "CI", "AI", "SC")
    left_out = f" The {MOST_KINDS} most frequent of {len(order)} kinds." if len(order) > MOST_KINDS else ""
    which = f" The split differs from seed to seed; this is that of seed {run.seed}." if varies else ""
    what = "(class, attribute) that such a client has, and its triplet."
    if not run.attributes_known:
        what = f"class that such a client has. {UNKNOWN}"
    notes = (f"Samples of each {what}{left_out}{which}",)
    return Table(name, "Kinds of clients", heads, rows, notes)


def _who(names: Sequence[str]) -> str:
    """`a, b, c`; of many the first and the last."""
    short = [shortened(name, 40) for name in names]
    return ", ".join(short) if len(short) <= 4 else f"{short[0]}, {short[1]}, … {short[-1]}"


def metrics_table(run: Run, name: str) -> Table:
    """The six metrics in one row."""
    measured, samples = measure(run.counts), int(run.counts.sum())
    row = [Cell(f"{len(run.counts)}", len(run.counts)), Cell(f"{samples}", samples)]
    row += [
        Cell(f"{value:.3f}", float(value)) if run.attributes_known or metric.endswith("ci") else Cell("–")
        for metric, value in zip(METRICS, measured.six, strict=True)
    ]
    heads = ("Clients", "Samples", *(metric.upper() for metric in METRICS))
    notes = (
        "G…: of the pooled data. C…: mean over clients. CI class, AI attribute imbalance, SC spurious correlation.",
        *([] if run.attributes_known else [UNKNOWN]),
    )
    return Table(name, "How skewed it is", heads, (tuple(row),), notes)
