"""A federation at a glance: clients' matrices as small heat maps beside the six metrics (the paper's data figure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from feddiverse.errors import UserError
from feddiverse.heterogeneity import Counts, Heterogeneity

# Okabe and Ito's blue and orange, and one hue from light to dark: told apart with any colour vision, and in grey.
GLOBAL, CLIENT, SHADES = "#0072B2", "#E69F00", "Blues"
NUM_SHOWN = 60
MAPS_WIDTH, BARS_WIDTH = 7.4, 3.4  # inches


@dataclass(frozen=True)
class Tiles:
    """The different matrices of a federation in order of appearance, how many clients have each, and their grid."""

    matrices: Counts
    times: NDArray[np.int64]

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


def draw(federations: Mapping[str, tuple[Counts, Heterogeneity]], path: Path) -> None:
    """Write the figure, one row a federation; the ending of `path` says the format (png, svg, pdf)."""
    tiles = {name: _distinct(counts) for name, (counts, _) in federations.items()}
    heights = [max(1.6, t.inches + 0.5) for t in tiles.values()]
    figure = Figure(figsize=(MAPS_WIDTH + BARS_WIDTH, sum(heights) + 0.5), layout="constrained")
    widths = [MAPS_WIDTH, BARS_WIDTH]
    axes = figure.subplots(len(tiles), 2, squeeze=False, width_ratios=widths, height_ratios=heights)
    for (maps, bars), (name, (counts, metrics)) in zip(axes, federations.items(), strict=True):
        maps.set_title(f"{name}: {len(counts):,} clients, {counts.sum():,} samples", loc="left", fontsize=10)
        _draw_maps(maps, tiles[name])
        _draw_bars(bars, metrics)
    axes[0, 1].legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False, fontsize=8)
    figure.supxlabel(
        "Samples of each class (row) and attribute (column); 2×: two clients have this matrix. "
        "CI, AI: class and attribute imbalance. SC: spurious correlation.",
        fontsize=8,
    )
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UserError(f"The figure cannot be written to {path}: {error.strerror}.") from None


def _distinct(counts: Counts) -> Tiles:
    matrices, first, times = np.unique(counts, axis=0, return_index=True, return_counts=True)
    order = np.argsort(first)
    return Tiles(matrices[order], times[order])


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
        if tiles.times[i] > 1:
            middle = left + num_attributes / 2
            axes.text(middle, top - 0.1, f"{tiles.times[i]}×", ha="center", va="bottom", fontsize=8)
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


def _draw_bars(axes: Any, metrics: Heterogeneity) -> None:
    positions = np.arange(3)
    for values, shift, colour, label in (
        (metrics.six[:3], -0.2, GLOBAL, "global"),
        (metrics.six[3:], 0.2, CLIENT, "mean of clients"),
    ):
        bars = axes.bar(positions + shift, values, width=0.38, color=colour, label=label)
        axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=1)
    axes.set_xticks(positions, ["CI", "AI", "SC"])
    axes.set_ylim(0, 1.15)
    axes.set_yticks([0, 0.5, 1])
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
