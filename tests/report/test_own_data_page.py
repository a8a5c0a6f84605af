"""The report where nobody knows the attributes: what was read off the samples is told as such, and nothing is empty."""

from pathlib import Path

import pytest
from made_runs import hide_attributes, make_study

from feddiverse.experiment.config import from_mapping
from feddiverse.report import page
from feddiverse.report.advice import _discover
from feddiverse.report.answer import answers
from feddiverse.report.results import load
from feddiverse.report.tables import all_tables

UNIFORM, DIVERSE = ("Uniform random", "digits-gsc"), ("FedDiverse", "digits-gsc")
TRAINED = {UNIFORM: [0.05, 0.06, 0.04], DIVERSE: [0.14, 0.15, 0.16]}
SOLVED = {UNIFORM: [0.05, 0.06, 0.04], DIVERSE: [0.50, 0.52, 0.54]}


def own(folder: Path, seeds: int = 3) -> Path:
    """A study of a table of one's own."""
    few = {place: values[:seeds] for place, values in TRAINED.items()}
    return hide_attributes(make_study(folder, few, rebalanced=SOLVED))


def test_the_answer_has_the_worst_estimated_group_of_the_model_that_predicts(tmp_path: Path) -> None:
    (answer,) = answers(load(own(tmp_path / "study")))
    assert answer.hidden.startswith(
        "Worst estimated group (nobody labelled them): FedDiverse (rebalanced) 52.0 %, Uniform random 5.0 %."
    )
    assert "FedDiverse (rebalanced) against Uniform random: +47.0 points (" in answer.hidden
    assert answer.hidden in answer.sentence
    assert answer.head.startswith("Rebalancing the last layer, worst class: ")
    assert answer.hidden.replace(" %", "\u00a0%") in page.render(load(tmp_path / "study"))


def test_known_groups_are_not_told_as_estimated(tmp_path: Path) -> None:
    (answer,) = answers(load(make_study(tmp_path / "study", {("a", "digits-gsc"): [0.5], ("b", "digits-gsc"): [0.6]})))
    assert answer.hidden == ""


def test_both_heads_are_drawn_for_the_estimated_groups(tmp_path: Path) -> None:
    shown = {each.name: each for each in page.illustrations(load(own(tmp_path / "study")), "digits-gsc", "s")}
    marks = [mark.text for mark in shown["s-heads"].panels[1].drawing.marks]
    assert "0–4, a0, trained: 15.0 %" in marks
    assert "0–4, a0, rebalanced: 52.0 %" in marks
    assert shown["s-heads"].caption.endswith("Nobody labelled these groups.")
    diamonds = [mark.text for mark in shown["s-estimated-groups"].panels[1].drawing.marks]
    assert "worst group, rebalanced, round 40: 52.0 %" in diamonds


def test_tables_have_no_column_of_unknowns(tmp_path: Path) -> None:
    results = load(own(tmp_path / "study"))
    tables = {table.name: table for table in all_tables(results)}
    heads = tables["estimated"].columns
    assert heads == ("Method", "Worst estimated group", "The same, rebalanced", "Difference (worst estimated group)")
    assert [row[2].value for row in tables["estimated"].rows] == pytest.approx([5, 52])
    assert tables["usage"].columns[-1] == "Rarest class"
    (section,) = page.sections(results, {})
    assert section.federation.columns == ("Clients", "Who", "0–4", "5–9", "CI")
    variants = next(table for table in page.reproduce.settings_tables(results) if table.name == "variants")
    assert "digits-gsc" not in [cell.text for row in variants.rows for cell in row]


def test_two_seeds_have_no_interval_here_either(tmp_path: Path) -> None:
    tables = {table.name: table for table in all_tables(load(own(tmp_path / "study", seeds=2)))}
    assert tables["estimated"].rows[1][3].text == "+9.00 (2 seeds)"


def test_lines_are_drawn_at_the_levels_that_the_table_counts_to(tmp_path: Path) -> None:
    results = load(own(tmp_path / "study"))
    assert max(results.levels) < 0.8
    (panel,) = next(each for each in page.illustrations(results, "digits-gsc", "s") if each.name == "s-curves").panels
    (axes,) = panel.drawing.figure.axes
    levels = [line.get_ydata()[0] / 100 for line in axes.lines if line.get_linewidth() < 1]
    assert levels == pytest.approx(results.levels)


def test_the_command_to_discover_reads_the_table_as_the_runs_did() -> None:
    read = {"columns": "class=diagnosis,client=hospital", "features": "age,weight"}
    numbers = from_mapping({"federation": "table:patients.csv", "model": "mlp", **read})
    assert _discover(numbers) == (
        "feddiverse discover patients.csv --set columns=class=diagnosis,client=hospital --set features=age,weight"
    )
    pictures = from_mapping({"federation": "table:my birds.csv", "image_size": 64})
    assert _discover(pictures) == "feddiverse discover 'my birds.csv' --set image_size=64"
