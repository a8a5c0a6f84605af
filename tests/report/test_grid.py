"""The tables of a grid with both heads, against differences worked by hand."""

import json
from pathlib import Path

import pytest
from made_runs import make_study

from benchmarks import grid
from feddiverse.report.results import load

TRAINED = {
    ("Uniform random", "gsc"): [0.80, 0.82, 0.84, None],  # a fourth seed is on its way
    ("FedDiverse", "gsc"): [0.82, 0.81, 0.86, 0.99],
    ("Uniform random", "dist"): [0.40, 0.50, 0.60, 0.70],
    ("FedDiverse", "dist"): [0.39, 0.50, 0.596, 0.70],
}
SOLVED = {
    ("Uniform random", "gsc"): [0.90, 0.921, 0.939, 0.9],
    ("FedDiverse", "gsc"): [0.90, 0.90, 0.90, 0.9],
    ("Uniform random", "dist"): [0.70, 0.80, 0.90, 0.9],
    ("FedDiverse", "dist"): [0.60, 0.70, 0.80, 0.9],
}


@pytest.fixture
def lines(tmp_path: Path) -> list[list[str]]:
    results = grid.whole(load(make_study(tmp_path, TRAINED, SOLVED)))
    text = "\n".join(grid.tables(results))
    assert "means over seeds 0, 1, 2:" in text  # the seed that one method lacks is left out of all
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]


def test_levels_are_means_with_both_heads(lines: list[list[str]]) -> None:
    assert ["Uniform random", "82.0 → 92.0", "50.0 → 80.0"] in lines
    assert ["FedDiverse", "83.0 → 90.0", "49.5 → 70.0"] in lines


def test_methods_are_compared_with_the_same_head(lines: list[list[str]]) -> None:
    trained, solved = (next(x for x in lines if x[:2] == ["FedDiverse", head]) for head in grid.HEADS)
    assert trained[2].startswith("+1.0 ")  # +2, −1, +2
    assert trained[3].startswith("−0.5 ")  # −1, 0, −0.4
    assert solved[3] == r"−10.0 \[−10.0, −10.0\]\*"


def test_heads_of_the_same_runs_are_compared(lines: list[list[str]]) -> None:
    (uniform,) = [x for x in lines if x[0] == "Uniform random" and x[1].startswith("+")]
    assert uniform[1].startswith("+10.0 ")
    assert uniform[1].endswith(r"\*")
    assert uniform[2] == r"+30.0 \[+30.0, +30.0\]\*"


def test_a_recipe_is_worse_where_it_loses_over_half_a_point(lines: list[list[str]]) -> None:
    recipes = {tuple(x[:2]): x[2:] for x in lines if len(x) == 5}
    assert recipes["FedDiverse", "trained"][1:] == ["dist −0.5", "2 of 6"]  # −1 on each split; −0.4 is not more
    assert recipes["Uniform random", "solved anew"][1:] == ["gsc +10.0", "0 of 6"]
    assert recipes["Uniform random", "solved anew"][0].startswith("+20.0 ")


def test_runs_that_are_better_are_counted(lines: list[list[str]], tmp_path: Path) -> None:
    (said,) = [x[0] for x in lines if x[0].startswith("The worst group is better")]
    assert said.endswith("in 12 of 12 runs; the least change is +4.00 points."), "FedDiverse on gsc, 0.86 → 0.90"
    solved = {("a", "f"): [0.55, 0.74], ("b", "f"): [0.6, 0.5]}
    study = make_study(tmp_path / "other", {("a", "f"): [0.5, 0.75], ("b", "f"): [0.5, 0.5]}, solved)
    assert grid.run_by_run(load(study)).endswith("in 2 of 4 runs; the least change is −1.00 points.")


def test_where_no_head_was_solved_the_trained_one_stays(tmp_path: Path) -> None:
    results = grid.whole(load(make_study(tmp_path, {("a", "f"): [0.5, 0.75], ("b", "f"): [0.5, 0.5]})))
    assert "| a | 62.5 → 62.5 |" in grid.levels(results)


def test_the_figure_is_written(tmp_path: Path) -> None:
    grid.draw(grid.whole(load(make_study(tmp_path / "study", TRAINED, SOLVED))), tmp_path / "grid.svg")
    assert "dist" in (tmp_path / "grid.svg").read_text()


def test_what_a_method_was_not_run_on_is_left_open(tmp_path: Path) -> None:
    """A mean over fewer splits than others have would not compare."""
    trained = {**TRAINED, ("pow-d", "dist"): [0.41, 0.51, 0.61, 0.70]}
    solved = {**SOLVED, ("pow-d", "dist"): [0.70, 0.80, 0.90, 0.9]}
    results = grid.whole(load(make_study(tmp_path / "study", trained, solved)))
    assert "| pow-d | – | 51.0 → 80.0 |" in grid.levels(results)
    assert "| pow-d | trained | – | +1.0 " in grid.selection(results)
    assert "| pow-d | – | +29.0 " in grid.rebalancing(results)
    assert "| pow-d | trained | – | dist +1.0 | 0 of 3 |" in grid.recipes(results)
    assert "in 15 of 15 runs" in grid.run_by_run(results)
    grid.draw(results, tmp_path / "grid.svg")


def test_a_grid_without_a_whole_seed_says_so(tmp_path: Path) -> None:
    for name, second in (("apart", [None, 0.8]), ("begun", [None, None])):
        study = make_study(tmp_path / name, {("a", "f"): [0.9 if name == "apart" else None, None], ("b", "f"): second})
        with pytest.raises(SystemExit, match="No seed is done"):
            grid.whole(load(study))


def test_a_study_without_a_baseline_says_so() -> None:
    with pytest.raises(SystemExit, match="table-2 names no baseline"):
        grid.whole(load(Path(__file__).parents[2] / "results" / "table-2"))


def test_a_split_that_the_baseline_lacks_is_left_out_of_recipes(tmp_path: Path) -> None:
    trained = {**TRAINED, ("FedDiverse", "gai"): [0.5, 0.5, 0.5, 0.5]}
    solved = {**SOLVED, ("FedDiverse", "gai"): [0.5, 0.5, 0.5, 0.5]}
    results = grid.whole(load(make_study(tmp_path, trained, solved)))
    assert "| FedDiverse | trained | – | dist −0.5 | 2 of 6 |" in grid.recipes(results)


def test_heads_on_the_way_are_means_by_round(tmp_path: Path) -> None:
    """Solved in rounds 20 and 40 of every run, and with one seed of FedDiverse in round 20 alone of the two."""
    trained = {("a", "f"): [0.5, 0.7], ("b", "f"): [0.4, 0.6]}
    study = make_study(tmp_path, trained, {("a", "f"): [0.8, 0.9], ("b", "f"): [0.7, 0.9]})
    assert grid.on_the_way(grid.whole(load(study))) == [], "solved at the end only"
    worsts = {"f-a-seed0": 0.61, "f-a-seed1": 0.63, "f-b-seed0": 0.5}
    for name, worst in worsts.items():
        path = study / "runs" / name / "rounds.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert records[19]["worst_group_accuracy"] is not None
        records[19] |= {"worst_group_accuracy": worst - 0.2, "rebalanced": {"worst_group_accuracy": worst}}
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    (found,) = grid.on_the_way(grid.whole(load(study)))
    assert "| Method | Split | round 20 | round 40 |" in found
    assert "| a | f | 42.0 → 62.0 | 60.0 → 85.0 |" in found
    assert "→ – | 50.0 → 80.0 |" in found, "one of two seeds is no mean over both"
