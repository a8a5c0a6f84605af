"""The figure of a federation: formats, what is written on it, and very many clients."""

import html
import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from feddiverse.data.names import counts_of
from feddiverse.errors import UserError
from feddiverse.heterogeneity import Counts, Heterogeneity, measure
from feddiverse.report.federation import STYLE, _figure, draw, shortened
from feddiverse.splits import PAPER


def measured(counts: Counts) -> tuple[Counts, Heterogeneity]:
    return counts, measure(counts)


def drawn_texts(path: Path) -> list[str]:
    """The texts of an SVG."""
    return [html.unescape(text) for text in re.findall(r"<text [^>]*>(.*?)</text>", path.read_text("utf-8"))]


def test_heat_maps_and_bars_carry_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "gai.svg"
    draw({"gai": measured(counts_of("spawrious-gai"))}, path)
    texts = drawn_texts(path)
    assert "gai: 25 clients, 4,600 samples" in texts
    assert "14 × 10, 11, … 23" in texts
    assert {"170", "208"} & set(texts) == {"170"}  # counts of groups, not of clients
    scales = ["GCI  0.005", "GAI  0.441", "GSC  0.052", "CCI  0.201", "CAI  0.497", "CSC  0.119"]
    assert [t for t in texts if re.match(r"[GC](CI|AI|SC)  ", t)] == scales
    assert {"class 0", "attribute 1", "CI", "AI", "SC"} <= set(texts)  # axes have names


def test_clients_classes_and_attributes_are_called_by_their_names(tmp_path: Path) -> None:
    counts = np.array([[[5, 1], [2, 2]], [[5, 1], [2, 2]], [[1, 1], [1, 9]], [[3, 3], [0, 1]]])
    names = ["Basel", "Bern", "$Chur$", "University Hospital of the Canton of Aarau"]
    draw({"own": measured(counts)}, tmp_path / "own.svg", names, (["well", "ill"], ["old", "new"]))
    texts = drawn_texts(tmp_path / "own.svg")
    assert {"2 × Basel, Bern", "$Chur$", "University Ho…ton of Aarau"} <= set(texts)  # signs are no formula
    assert {"well", "ill", "old", "new"} <= set(texts)
    assert [shortened("abcdefg", n) for n in (7, 6, 5)] == ["abcdefg", "abc…fg", "ab…fg"]


@pytest.mark.parametrize("num", [24, 100])
def test_no_text_meets_another_and_all_can_be_read(num: int) -> None:
    """Measured where matplotlib puts them: boxes of texts do not overlap, and none is below 8 points."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 900, (num, 2, 2))
    names = [f"Hospital number {k} of the canton" for k in range(num)]
    with mpl.rc_context(STYLE):
        figure = _figure({"own": measured(counts)}, names, (["healthy", "ill"], ["old scanner", "new scanner"]), True)
    canvas = FigureCanvasAgg(figure)
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    assert min(text.get_fontsize() for text in texts) >= 8
    boxes = np.array([text.get_window_extent(canvas.get_renderer()).extents for text in texts])
    assert boxes.min() >= 0
    assert (boxes[:, 2:] <= figure.bbox.size).all()
    low, high = boxes[:, None, :2], boxes[None, :, 2:]
    meets = ((low < high - 1) & (boxes[None, :, :2] < boxes[:, None, 2:] - 1)).all(axis=2)
    assert meets.sum() == len(texts)  # each with itself alone


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_formats(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"figure.{ending}"
    draw({"four": measured(counts_of("spawrious-4"))}, path)
    if ending == "png":
        with Image.open(path) as image:
            assert image.width > 1000
    else:
        assert path.read_bytes().startswith(b"%PDF")


def test_all_seven_in_one_figure(tmp_path: Path) -> None:
    path = tmp_path / "seven.svg"
    draw({name: measured(counts_of(name)) for name in PAPER}, path)
    texts = drawn_texts(path)
    assert [t.split(":")[0] for t in texts if " clients, " in t] == list(PAPER)


def test_many_clients_and_large_matrices_stay_readable(tmp_path: Path) -> None:
    path = tmp_path / "many.svg"
    counts = np.random.default_rng(0).integers(1, 10**6, (300, 5, 3))
    draw({"many": measured(counts)}, path)
    texts = drawn_texts(path)
    assert "The first 120 of 300 different clients." in texts
    assert not [text for text in texts if re.fullmatch(r"\d{6}", text)]  # no numbers in cells that could not hold them


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        draw({"gsc": measured(counts_of("cmnist-gsc"))}, tmp_path / "nowhere" / "figure.png")
