"""Trained and rebalanced head of one run: in tables, and in packed studies."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import make_run

from feddiverse.experiment import finished, packed
from feddiverse.report.results import load
from feddiverse.report.tables import groups_tables, heads_tables
from feddiverse.server.groups import accuracies


def solved(worst: int) -> dict[str, Any]:
    """What a rebalanced head does on four groups of 700; the worst gets `worst` right."""
    table = np.array([[[worst, 600], [650, 690]], [[700, 700], [700, 700]]])
    return vars(accuracies(table))


def with_heads(path: Path, accuracy: float, seed: int, worst: int, between: int = 0, **settings: Any) -> Path:
    make_run(path, accuracy, seed, rebalance=True, **settings)
    records = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    if between:
        records[6]["rebalanced"] = solved(between)  # round 7, which was not evaluated otherwise
    (path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    result = json.loads((path / "result.json").read_text())
    result["rebalanced"] = {**solved(worst), "theta_sha256": "f" * 64, "seconds": 1.23456789, "settings": {"p": 0.3}}
    (path / "result.json").write_text(json.dumps({**result, "warnings": ["so"]}))
    return path


def test_the_table_has_both_heads_with_the_paired_difference(tmp_path: Path) -> None:
    for seed, worst in enumerate((490, 525, 560)):
        with_heads(tmp_path / f"run{seed}", 0.6, seed, worst)
    (table,) = heads_tables(load(tmp_path))
    (row,) = table.rows
    assert [cell.value for cell in row[1:4]] == pytest.approx([60, 75, 15])
    low, high = (row[3].numbers[key] for key in ("low", "high"))
    half = 4.302653 * 5 / np.sqrt(3)  # t(2), deviation of 70, 75, 80
    assert (low, high) == pytest.approx((15 - half, 15 + half), abs=1e-3)
    assert row[5].value == pytest.approx(100 * np.mean([(w + 600 + 650 + 690) / 2800 for w in (490, 525, 560)]))


def test_a_rebalanced_head_is_held_against_the_baseline_as_it_was_trained(tmp_path: Path) -> None:
    for seed, worst in enumerate((490, 525, 560)):
        with_heads(tmp_path / f"plain{seed}", 0.6, seed, worst)
        with_heads(tmp_path / f"pow{seed}", 0.7, seed, 595, between=590 if seed else 400, selector="pow_d")
    (table,) = heads_tables(load(tmp_path))
    (other,) = (row for row in table.rows if "pow" in row[0].text)
    found = dict(zip(table.columns, other, strict=True))
    assert found["Difference"].value == pytest.approx(15)
    assert found["Difference to uniform, trained"].value == pytest.approx(25)
    (rounds,) = (cell for head, cell in found.items() if head.startswith("Rounds to"))
    assert rounds.value == pytest.approx((7 + 7 + 40) / 3)


def test_every_group_is_told_with_both_heads(tmp_path: Path) -> None:
    for seed, worst in enumerate((490, 525, 560)):
        with_heads(tmp_path / f"run{seed}", 0.6, seed, worst)
    make_run(tmp_path / "pow-d", 0.7, 0, selector="pow_d")
    (table,) = groups_tables(load(tmp_path))
    assert table.columns == ("Method", "Head", "0–4, red", "0–4, green", "5–9, red", "5–9, green")
    assert [("pow" in row[0].text, row[1].text) for row in table.rows] == [
        (True, "trained"), (False, "trained"), (False, "rebalanced")
    ]  # fmt: skip
    _, trained, rebalanced = ([cell.value for cell in row[2:]] for row in table.rows)
    assert rebalanced == pytest.approx([75, 100 * 600 / 700, 100 * 650 / 700, 100 * 690 / 700])
    assert table.rows[2][2].numbers["sd"] == pytest.approx(5)
    run = finished.read(tmp_path / "run0")  # the three differ in their heads alone
    assert trained == pytest.approx([100 * group["accuracy"] for group in run.result["groups"]])


def test_runs_with_one_head_have_no_such_table(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 0.6)
    assert heads_tables(load(tmp_path)) == []


def test_packing_keeps_both_heads(tmp_path: Path) -> None:
    """Right answers are kept, so that accuracies come back exactly; rounds too in which only one head was tested."""
    run = finished.read(with_heads(tmp_path / "run", 0.7, 0, 500, between=400))
    assert [each.tolist() for each in run.rebalanced_curve] == [[7, 40], [400 / 700, 500 / 700]]
    (tmp_path / "study.jsonl").write_text(packed.pack({}, [run]))
    _, (again,) = packed.unpack(tmp_path / "study.jsonl")
    assert [each.tolist() for each in again.rebalanced_curve] == [each.tolist() for each in run.rebalanced_curve]
    assert again.rebalanced is not None
    about = {key: value for key, value in run.result["rebalanced"].items() if key != "seconds"}
    assert {key: again.rebalanced[key] for key in about} == about
    assert again.result["warnings"] == ["so"]
    assert len(again.choices) == len(run.choices)
