"""Names of methods stay within a figure, however long they are."""

from pathlib import Path

import pytest
from made_runs import make_study

from feddiverse.report.figures import accuracy_curves
from feddiverse.report.results import load

LONG = "FedDiverse (paper’s estimator)"


@pytest.mark.parametrize(
    "names", [("Uniform random", "pow-d", "Oort", "FedPNS"), (LONG, "FedDiverse", "Uniform random", "pow-d")]
)
def test_the_legend_is_as_wide_as_the_figure_at_most(names: tuple[str, ...], tmp_path: Path) -> None:
    results = load(make_study(tmp_path, {(name, "f"): [0.8, 0.9] for name in names}))
    figure = accuracy_curves(results, "f").figure
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    assert len(legend.get_texts()) == 4
