"""The numbers that docs/results.md gives: over several columns, and from the studies that are kept in results/."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import grid
from benchmarks.columns import compared, largest_share
from feddiverse.experiment import packed
from feddiverse.report import tables
from feddiverse.report.results import load
from feddiverse.report.table import to_csv, to_markdown

RESULTS = Path(__file__).parent.parent / "results"
KEPT = sorted(file.parent.name for file in packed.find(RESULTS))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=2, max_size=8), st.data())
def test_no_choice_of_clients_has_a_larger_share(clients, data):
    has = np.array([group for group, _ in clients])
    size = has + np.array([rest for _, rest in clients])
    m = data.draw(st.integers(1, len(clients)))
    choices = (list(choice) for choice in combinations(range(len(clients)), m))
    assert largest_share(has, size, m) == pytest.approx(max(has[c].sum() / size[c].sum() for c in choices))


def test_results_are_small() -> None:
    assert sum(file.stat().st_size for file in RESULTS.rglob("*") if file.is_file()) < 5_000_000
    assert {"table-1", "table-1-cmnist", "table-3"} <= set(KEPT)


NUMBER = re.compile(r"\d+\.\d+(?:e-?\d+)?")


def assert_same(kept: str, made: str) -> None:
    """Word by word; a mean of some hundred numbers may end in another digit on a processor that adds eight at once in
    place of sixteen, which double precision keeps below a part in 10¹²."""
    assert NUMBER.sub("#", kept) == NUMBER.sub("#", made)
    assert [float(n) for n in NUMBER.findall(kept)] == pytest.approx(
        [float(n) for n in NUMBER.findall(made)], rel=1e-12
    )


@pytest.mark.parametrize("name", KEPT)
def test_kept_runs_give_the_tables_beside_them(name: str) -> None:
    for table in tables.all_tables(load(RESULTS / name)):
        for render, suffix in ((to_markdown, "md"), (to_csv, "csv")):
            kept = RESULTS / name / f"{table.name}.{suffix}"
            if kept.exists():
                assert_same(kept.read_text(), render(table))


def test_the_summary_over_columns_is_what_the_page_says() -> None:
    cells = {}
    for name in ("table-1", "table-1-cmnist"):
        for (row, column), runs in load(RESULTS / name).runs.items():
            cells.setdefault(column, {})[row] = runs
    found = compared(cells, "FedDiverse", "Uniform random")
    ours = re.search(r": ([+-][\d.]+) \[.*\] \(.*higher in (\d+) of 15 pairs", found)
    page = " ".join((RESULTS.parent / "docs" / "results.md").read_text().split())
    said = re.search(r"by ([\d.]+) with `consensus` \(higher in (\d+) of 15 pairs", page)
    assert ours is not None, found
    assert said is not None
    assert (float(said[1]), said[2]) == (pytest.approx(float(ours[1]), abs=0.051), ours[2])


@pytest.mark.parametrize("name", [name for name in KEPT if name.startswith("grid-on-")])
def test_the_grids_on_the_page_are_what_their_studies_say(name: str) -> None:
    page = (RESULTS.parent / "docs" / "results.md").read_text()
    for table in grid.tables(grid.whole(load(RESULTS / name))):
        assert table in page
