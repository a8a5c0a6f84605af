"""The figure of a federation: formats, what is written on it, and very many clients."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feddiverse.data.names import counts_of
from feddiverse.errors import UserError
from feddiverse.heterogeneity import Counts, Heterogeneity, measure
from feddiverse.report.federation import draw, shortened
from feddiverse.splits import PAPER


def measured(counts: Counts) -> tuple[Counts, Heterogeneity]:
    return counts, measure(counts)


def drawn_texts(path: Path) -> list[str]:
    """The texts of an SVG: matplotlib draws letters as paths and leaves each text in a comment."""
    return re.findall(r"<!-- (.*?) -->", path.read_text())


def test_heat_maps_and_bars_carry_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "gai.svg"
    draw({"gai": measured(counts_of("spawrious-gai"))}, path)
    texts = drawn_texts(path)
    assert "gai: 25 clients, 4,600 samples" in texts
    assert "14×" in texts
    assert {"170", "208"} & set(texts) == {"170"}  # counts of groups, not of clients
    assert [t for t in texts if re.fullmatch(r"0\.\d\d", t)] == ["0.01", "0.44", "0.05", "0.20", "0.50", "0.12"]


def test_clients_with_names_of_their_own_are_named(tmp_path: Path) -> None:
    counts = np.array([[[5, 1], [2, 2]], [[5, 1], [2, 2]], [[1, 1], [1, 9]], [[3, 3], [0, 1]]])
    draw({"own": measured(counts)}, tmp_path / "own.svg", ["Basel", "Bern", "$Chur$", "Hospital of Aarau"])
    texts = drawn_texts(tmp_path / "own.svg")
    assert {"2×", "$Chur$", "Hospit…Aarau"} <= set(texts)  # two share a matrix; signs are no formula; what is long fits
    for path, names in ((tmp_path / "plain.svg", None), (tmp_path / "numbers.svg", ["0", "1", "2", "3"])):
        draw({"own": measured(counts)}, path, names)
    assert drawn_texts(tmp_path / "numbers.svg") == drawn_texts(tmp_path / "plain.svg")  # numbers are no names
    assert [shortened("abcdefg", n) for n in (7, 6, 5)] == ["abcdefg", "abc…fg", "ab…fg"]


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_formats(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"figure.{ending}"
    draw({"four": measured(counts_of("spawrious-4"))}, path)
    if ending == "png":
        with Image.open(path) as image:
            assert image.width == 1620
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
    assert "The first 60 of 300 different matrices." in texts
    assert len(texts) < 40  # no numbers in cells that could not hold them


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        draw({"gsc": measured(counts_of("cmnist-gsc"))}, tmp_path / "nowhere" / "figure.png")
