"""Figures as text: SVG that sits in a page, follows its light or dark colours, and is the same bytes every time."""

import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's hues, told apart by colour-blind readers, the pale ones darkened to a contrast of 3 : 1 on white; line
# styles and markers say the same without colour. The page swaps each for a brighter tone in the dark.
PALETTE = ("#0072b2", "#d55e00", "#008e68", "#b5558a", "#b57a00", "#2f8fca", "#6a4c93", "#7d6b3d")
INK = "#1b1f24"
MUTED = "#57606a"
GRID = "#d8dee4"
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), "-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

STYLE: dict[Any, Any] = {
    "figure.dpi": 72,  # a unit of the SVG is a point, so that marks are where they are drawn
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched, and takes the page's font
    "svg.hashsalt": "feddiverse",  # ids do not depend on the moment of drawing
    "text.parse_math": False,  # names from data are text, whatever signs they hold
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}

_VARIABLES = {
    **{colour: f"var(--c{i})" for i, colour in enumerate(PALETTE)},
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
}


@dataclass(frozen=True)
class Mark:
    """A value that a page shows when it is pointed at: where it is drawn, of which method, and what it says."""

    axes: "Axes"
    x: float
    y: float
    text: str
    method: int | None = None


@dataclass
class Drawing:
    """A figure with the values drawn in it."""

    figure: "Figure"
    marks: list[Mark] = field(default_factory=list)

    def points(self) -> list[list[Any]]:
        """[x, y, text, method] of each mark, in units of the SVG. The figure must have been drawn, that is laid out."""
        height = self.figure.bbox.height
        found: list[list[Any]] = []
        for mark in self.marks:
            x, y = mark.axes.transData.transform((mark.x, mark.y))
            found.append([round(float(x), 1), round(float(height - y), 1), mark.text, mark.method])
        return found


def belongs(artist: "Artist", method: int) -> None:
    """Says that an artist is of a method, by its place among the rows: the page can hide it (`data-method`)."""
    artist.set_gid(f"method{method}")


def inline(figure: "Figure", prefix: str) -> str:
    """The figure as an `<svg>` element for a page (see `adapted`)."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return adapted(out.getvalue(), prefix)


def adapted(text: str, prefix: str) -> str:
    """Matplotlib's SVG as an element of a page: ids start with `prefix`, so that those of two figures never meet;
    colours are the page's variables; screen readers pass it over (the page gives its words beside it)."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="method(\d+)"', r'data-method="\1"', text)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = re.sub(r'(?:xlink:)?href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
    opening = r'<svg viewBox="\1" aria-hidden="true" focusable="false">'
    text = re.sub(r'<svg[^>]*viewBox="([^"]+)"[^>]*>', opening, text, count=1)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return text.strip()


def save(figure: "Figure", path: Path) -> None:
    """The figure as a file for a paper or slides, in print colours on white."""
    import matplotlib as mpl

    with mpl.rc_context({**STYLE, "svg.fonttype": "path"}):
        figure.savefig(path, facecolor="white", bbox_inches="tight", dpi=200)
