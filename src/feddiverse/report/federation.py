"""A federation at a glance: what every client has of each class and attribute, beside where the six metrics lie among
those of known federations; and the same in a table."""

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
from feddiverse.heterogeneity import Counts, Heterogeneity, triplet
from feddiverse.report.table import Cell, Table
from feddiverse.report.verdict import IID, judge

# Okabe and Ito's orange and green, and one hue from light to dark: told apart with any colour vision, and in grey.
HERE, EVEN, SHADES, TRIPLET_SHADES = "#D55E00", "#008E68", "Blues", "Oranges"
MOST_KINDS = 120  # of clients
UNKNOWN = "AI and SC are unknown: training samples have no attributes."

# Inches. Everything is placed by hand, so that text never meets text, whatever the number of clients.
ROW, CELL, NARROW_CELL, TRIPLET_CELL, LETTER, GAP, TRACKS = 0.21, 0.52, 0.3, 0.45, 0.075, 0.4, 3.6
TRACK_ROW, TITLE, LEGEND = 0.3, 0.4, 0.55
TEXT = 8.5  # points
STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # names from data are text, whatever signs they hold
    "font.size": TEXT,
    "svg.hashsalt": "feddiverse",
    "svg.fonttype": "none",  # text stays text: a third of the size, and it can be searched
}

Names = tuple[Sequence[str], Sequence[str]]  # of classes, of attributes


@dataclass(frozen=True)
class Tiles:
    """The different matrices of a federation in order of appearance, and who has each."""

    matrices: Counts
    clients: list[NDArray[np.int64]]
    names: Sequence[str]

    @property
    def num_shown(self) -> int:
        return min(len(self.matrices), MOST_KINDS)

    @property
    def num_blocks(self) -> int:
        """Columns of the figure: up to 40 kinds of clients below each other, else two."""
        return 1 if self.num_shown <= 40 else 2

    @property
    def down(self) -> int:
        return -(-self.num_shown // self.num_blocks)

    @property
    def cell(self) -> float:
        """Width of a group's cell: narrow where there are very many groups, whose numbers would not fit then."""
        return CELL if self.matrices[0].size <= 16 else NARROW_CELL

    @property
    def label(self) -> float:
        """Width of the clients' names."""
        return 0.15 + LETTER * max(8, *(len(self.who(i)) for i in range(self.num_shown)))

    @property
    def width(self) -> float:
        return float(self.label + self.matrices[0].size * self.cell + 0.15 + 3 * TRIPLET_CELL)

    def who(self, i: int) -> str:
        """`15 × 8, 9, … 22`; of a single client its name."""
        members = [self.names[k] for k in self.clients[i]]
        if len(members) == 1:
            return shortened(members[0], 26)
        return f"{len(members)} × {shortened(_who(members), 22)}"


def draw(
    federations: Mapping[str, tuple[Counts, Heterogeneity]],
    path: Path,
    names: Sequence[str] | None = None,
    groups: Names = ((), ()),
    *,
    attributes_known: bool = True,
) -> None:
    """Write the figure, one federation below the other; the ending of `path` says the format (png, svg, pdf).

    `names` and `groups`: of the clients, classes and attributes of the only federation, where they are called more
    than 0, 1, …
    `attributes_known`: without attributes there is class imbalance only.
    """
    with mpl.rc_context(STYLE):
        figure = _figure(federations, names, groups, attributes_known)
        try:
            figure.savefig(path, dpi=150, facecolor="white")
        except OSError as error:
            raise UserError(f"The figure cannot be written to {path}: {error.strerror}.") from None


def _figure(
    federations: Mapping[str, tuple[Counts, Heterogeneity]],
    names: Sequence[str] | None,
    groups: Names,
    attributes_known: bool,
) -> Figure:
    plans = [_Plan(name, *measured, names, groups, attributes_known) for name, measured in federations.items()]
    for plan in plans:  # below each other
        plan.scales_at = max(other.scales_at for other in plans)
    width, height = max(plan.width for plan in plans) + 0.4, sum(plan.height for plan in plans) + LEGEND
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.2, width - 0.2), ylim=(height, 0))  # inches from the upper left corner
    axes.set_axis_off()
    top = 0.0
    for plan in plans:
        plan.draw(axes, top)
        top += plan.height
    told = "Cells: samples of a client, darker the larger a share of its own. "
    told += "CI, AI: class and attribute imbalance; SC: spurious correlation.\n" if attributes_known else f"{UNKNOWN}\n"
    told += "Scales: orange this federation, green iid, grey the paper’s seven; 0 is even, 1 as skewed as can be."
    axes.text(0, height - 0.1, told, va="bottom", color="0.35", fontsize=TEXT)
    return figure


class _Plan:
    """Where one federation's parts go."""

    def __init__(
        self, name: str, counts: Counts, metrics: Heterogeneity, names: Sequence[str] | None, groups: Names, known: bool
    ):
        self.name, self.counts, self.known = name, counts, known
        self.tiles = _distinct(counts, names)
        self.placed = [
            placed for placed in judge(metrics.six, attributes_known=known).placed if placed.value is not None
        ]
        _, num_classes, num_attributes = counts.shape
        self.classes = [shortened(str(c), 16) for c in groups[0]] or [f"class {y}" for y in range(num_classes)]
        self.attributes = [shortened(str(a), 16) for a in groups[1]] or [
            f"attribute {a}" for a in range(num_attributes)
        ]
        if num_attributes == 1 and not known:
            self.attributes = []
        self.heads = 0.33 + LETTER * max(map(len, self.attributes), default=0)  # attributes' names stand upright
        self.scales_at = self.tiles.width + GAP
        self.beside = self.tiles.num_blocks == 1  # the scales are beside the clients, not above them
        self.left_out = len(self.tiles.matrices) > self.tiles.num_shown

    @property
    def _tracks_height(self) -> float:
        return TRACK_ROW * (len(self.placed) if self.beside else -(-len(self.placed) // 2)) + 0.1

    @property
    def width(self) -> float:
        blocks = self.tiles.num_blocks * (self.tiles.width + GAP) - GAP
        return self.scales_at + TRACKS if self.beside else max(blocks, 2 * TRACKS + GAP)

    @property
    def height(self) -> float:
        clients = self.heads + self.tiles.down * ROW + (0.25 if self.left_out else 0.1)
        both = max(clients, self._tracks_height) if self.beside else clients + self._tracks_height
        return TITLE + both + 0.15

    def draw(self, axes: Any, top: float) -> None:
        title = f"{self.name}: {len(self.counts):,} clients, {self.counts.sum():,} samples"
        axes.text(0, top + 0.28, title, fontsize=TEXT + 2.5, fontweight="bold")
        top += TITLE
        if self.beside:
            self._draw_tracks(axes, self.scales_at, top, across=1)
        else:
            self._draw_tracks(axes, 0, top, across=2)
            top += self._tracks_height
        for block in range(self.tiles.num_blocks):
            first = block * self.tiles.down
            left = block * (self.tiles.width + GAP)
            self._draw_block(axes, left, top, range(first, min(first + self.tiles.down, self.tiles.num_shown)))
        if self.left_out:
            note = f"The first {self.tiles.num_shown} of {len(self.tiles.matrices):,} different clients."
            axes.text(0, top + self.heads + self.tiles.down * ROW + 0.05, note, va="top")

    def _draw_tracks(self, axes: Any, left: float, top: float, across: int) -> None:
        in_column = -(-len(self.placed) // across)
        for i, placed in enumerate(self.placed):
            assert placed.value is not None
            x, y = left + (i // in_column) * (TRACKS + GAP), top + (i % in_column + 0.6) * TRACK_ROW
            start, length = x + 0.95, TRACKS - 1.1
            axes.text(x, y, f"{placed.label}  {placed.value:.3f}", va="center", fontsize=TEXT + 0.5)
            axes.plot([start, start + length], [y, y], color="0.8", linewidth=1.5, zorder=1)
            for name, value in placed.known.items():
                colour = EVEN if name == IID else "0.45"
                axes.plot([start + value * length] * 2, [y - 0.07, y + 0.07], color=colour, linewidth=1.5, zorder=2)
            axes.plot(start + placed.value * length, y, "o", color=HERE, markersize=7, zorder=3)

    def _draw_block(self, axes: Any, left: float, top: float, kinds: range) -> None:
        """Heads, then a line a kind of client: who, samples of each group, triplet."""
        matrices = self.tiles.matrices[kinds.start : kinds.stop]
        num_attributes = matrices.shape[2]
        cell, x = self.tiles.cell, left + self.tiles.label
        below = top + self.heads
        for y, name in enumerate(self.classes):
            middle = x + (y + 0.5) * num_attributes * cell
            axes.text(middle, top + 0.16, name, ha="center", fontweight="bold", clip_on=True)
            for a, value in enumerate(self.attributes):
                place = x + (y * num_attributes + a + 0.5) * cell
                axes.text(place, below - 0.05, value, ha="center", va="bottom", rotation=90)
        shares = (matrices / matrices.sum(axis=(1, 2), keepdims=True)).reshape(len(matrices), -1)
        lines = below + ROW * np.arange(len(matrices) + 1)
        edges = x + cell * np.arange(shares.shape[1] + 1)
        axes.pcolormesh(edges, lines, shares, cmap=SHADES, vmin=0, vmax=1, edgecolors="white", linewidth=0.8)
        if cell == CELL and matrices.max() < 100_000:  # else numbers would not fit
            self._numbers(axes, edges, lines, matrices.reshape(shares.shape), shares)
        right = float(edges[-1]) + 0.15 + TRIPLET_CELL * np.arange(4)
        triplets = np.asarray(triplet(matrices))[:, : 3 if self.known else 1]
        for i, name in enumerate(("CI", "AI", "SC")[: triplets.shape[1]]):
            axes.text(right[i] + TRIPLET_CELL / 2, below - 0.05, name, ha="center", va="bottom", fontweight="bold")
        axes.pcolormesh(right[: triplets.shape[1] + 1], lines, triplets, cmap=TRIPLET_SHADES, vmin=0, vmax=1,
                        edgecolors="white", linewidth=0.8)  # fmt: skip
        self._numbers(axes, right, lines, [[f"{t:.2f}" for t in row] for row in triplets], triplets)
        for line, i in enumerate(kinds):
            axes.text(x - 0.08, lines[line] + ROW / 2, self.tiles.who(i), ha="right", va="center")

    @staticmethod
    def _numbers(axes: Any, edges: Any, lines: Any, texts: Any, shades: Any) -> None:
        for (row, column), shade in np.ndenumerate(shades):
            place = (edges[column] + edges[column + 1]) / 2, lines[row] + ROW / 2
            colour = "white" if shade > 0.6 else "black"
            axes.text(*place, str(texts[row][column]), ha="center", va="center", color=colour)


def _distinct(counts: Counts, names: Sequence[str] | None = None) -> Tiles:
    matrices, first, kind = np.unique(counts, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    called = [str(k) for k in range(len(counts))] if names is None else names
    return Tiles(matrices[order], [np.flatnonzero(kind.ravel() == i) for i in order], called)


def shortened(name: str, most: int) -> str:
    """A name that fits: its beginning and its end, which often is what differs."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[most // 2 + 1 - most :]}"


def clients_table(run: Run, name: str, *, varies: bool) -> Table:
    """Kinds of clients: how many there are and who, their matrix, their triplet. `varies`: from seed to seed."""
    tiles, num_known = _distinct(run.counts), 3 if run.attributes_known else 1
    order = sorted(range(len(tiles.clients)), key=lambda i: -len(tiles.clients[i]))
    rows = tuple(
        (
            Cell(f"{len(tiles.clients[i])}", len(tiles.clients[i])),
            Cell(_who([run.client_names[k] for k in tiles.clients[i]])),
            *(Cell(f"{n}", int(n), shade=float(n / tiles.matrices[i].sum())) for n in tiles.matrices[i].ravel()),
            *(Cell(f"{t:.3f}", float(t), bar=float(t)) for t in triplet(tiles.matrices[i])[:num_known]),
        )
        for i in order[:MOST_KINDS]
    )
    heads = ("Clients", "Who", *run.group_names, *("CI", "AI", "SC")[:num_known])
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
