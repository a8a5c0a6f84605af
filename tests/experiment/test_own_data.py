"""Your own data from a table to the report: no attributes, clients with names, one of them with a single sample."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import feddiverse as fd
from feddiverse.cli import app
from feddiverse.errors import UserError
from feddiverse.heterogeneity import triplet

SITES = {"Aachen": 40, "Bern": 30, "Łódź": 30, "Tiny": 1}
QUICK: dict[str, Any] = {"rounds": 4, "evaluate_every": 2, "num_selected": 2, "seed": 3, "workers": 1}


def call(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three numbers a person; the third shows the scanner, which nobody wrote down. 40 test rows without a site."""
    rng = np.random.default_rng(0)
    path = tmp_path / "people.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        write = csv.writer(stream)
        write.writerow(["age", "dose", "echo", "diagnosis", "hospital", "split"])
        for place, (site, count) in enumerate([*SITES.items(), ("", 40)]):
            for i in range(count):
                ill = i % 2 if site != "Aachen" else int(i % 4 > 0)
                scanner = ill if site == "Bern" and i % 5 else place % 2 if site else i // 2 % 2
                x = rng.normal([50 + ill, 2 * ill, 6 * scanner], 0.5)
                part = "train" if site else "test"
                write.writerow([*np.round(x, 3), ["well", "ill"][ill], site, part])
    return path


COLUMNS = ("--label", "diagnosis", "--client", "hospital", "--features", "age,dose,echo")


def test_a_table_of_numbers_without_attributes_goes_through(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ("--rounds", 4, "--clients-per-round", 2, "--seed", 3, "--workers", 1, "--set", "evaluate_every=2")
    said = json.loads(
        call("run", "--federation", table, *COLUMNS, *options, "--selector", "feddiverse", "--out", out, "--json")
    )
    made = fd.load_run(out)
    assert made.config["model"] == "mlp"

    # The worst class is what predictions say; about groups nobody knows anything.
    federation = fd.federation(str(table), 3, columns="label=diagnosis,client=hospital", features="age,dose,echo")
    test = federation.test()
    right = made.predict(test.x) == np.array(federation.classes)[test.y]
    assert said["worst_class_accuracy"] == made.worst_class_accuracy == min(right[test.y == y].mean() for y in (0, 1))
    assert said["worst_group_accuracy"] is made.worst_group_accuracy is None
    assert [r["worst_group_accuracy"] for r in made.history] == [None] * 4
    assert made.history[-1]["worst_class_accuracy"] == made.worst_class_accuracy
    assert made.history[0]["worst_class_accuracy"] is None
    assert "worst class" in repr(made)

    # What is assumed is said, once; what is unknown is absent.
    warnings = [warning for record in made.history for warning in record["warnings"]]
    assert sum("are unknown: estimators assume 2 values" in warning for warning in warnings) == 1
    assert "evaluation_only" not in made.triplets
    assert "unknown" in made.triplets["not_compared"]
    described = json.loads((out / "federation.json").read_text("utf-8"))
    assert (described["attributes_known"], described["attribute_names"]) == (False, [])

    # Names go all the way; a client of one sample takes part.
    names = sorted(SITES)
    assert described["client_names"] == names
    assert described["class_names"] == ["ill", "well"]
    assert made.triplets["client_names"] == {str(k): name for k, name in enumerate(names)}
    chosen = [k for record in made.history[1:] for k in record["selected"]]
    assert said["selection"]["by_name"] == {name: chosen.count(k) for k, name in enumerate(names)}
    assert sum(said["selection"]["by_name"].values()) == 6


def test_the_tiny_client_alone_is_trained_on(table: Path) -> None:
    settings = {"columns": "label=diagnosis,client=hospital", "features": "age,dose,echo"}
    made = fd.train(str(table), selector="everyone", **{**QUICK, "num_selected": 0}, **settings)
    assert all(record["selected"] == [0, 1, 2, 3] and not record["failed"] for record in made.history)
    for estimator in ("paper", "consensus"):
        made = fd.train(str(table), selector="feddiverse", estimator=estimator, **QUICK, **settings)
        ci, _, _ = made.triplets["triplets"]["2"]  # Tiny: one class alone
        assert ci == pytest.approx(1)
        assert np.isfinite(list(made.triplets["triplets"].values())).all()


def test_nothing_is_compared_with_a_truth_that_nobody_knows(table: Path) -> None:
    found = json.loads(call("estimate", "--federation", table, *COLUMNS, "--workers", 1, "--json"))
    assert [each["estimator"] for each in found] == ["paper", "consensus"]  # no oracle
    federation = fd.federation(str(table), columns="label=diagnosis,client=hospital", features="age,dose,echo")
    for each in found:
        assert each["attribute_accuracy"] is None
        assert each["r"]["ai"] is each["r"]["sc"] is each["mae"]["ai"] is None
        assert each["undefined"]["sc"] == "the true attributes are unknown"
        ci = np.array([each["truth"][str(k)][0] for k in range(4)])
        assert ci == pytest.approx(triplet(federation.counts)[:, 0])  # labels tell this
        assert each["truth"]["0"][1:] == [None, None]
        assert "estimators assume 2 values" in each["warnings"][0]
    for command in ("estimate", "run"):
        with pytest.raises(UserError, match="'oracle' tells true attributes, but nobody knows those of"):
            call(command, "--federation", table, *COLUMNS, "--estimator", "oracle")


def test_the_report_speaks_of_classes_and_of_sites_by_name(table: Path, tmp_path: Path) -> None:
    grid = tmp_path / "mine.toml"
    grid.write_text(
        f'[base]\nfederation = "{table}"\ncolumns = "class=diagnosis,client=hospital"\nfeatures = "age,dose,echo"\n'
        "rounds = 3\nnum_selected = 1\n"
        '[rows.plain]\nselector = "uniform"\n[rows.diverse]\nselector = "feddiverse"\n'
    )
    out = tmp_path / "study"
    said = json.loads(call("study", grid, "--out", out, "--seeds", "1", "--workers", 1, "--json"))
    assert {cell["method"] for cell in said["cells"]} == {"plain", "diverse"}
    assert all("worst_class_accuracy" in cell and "worst_group_accuracy" not in cell for cell in said["cells"])
    page = Path(said["report"]).read_text("utf-8")
    assert "Worst-class accuracy" in page
    assert "orst-group" not in page
    assert "AI and SC are unknown" in page
    with (out / "tables" / "asked.csv").open(encoding="utf-8") as stream:
        asked = {row["Client"]: (float(row["plain"]), float(row["diverse"])) for row in csv.DictReader(stream)}
    assert set(asked) == set(SITES)
    assert np.sum(list(asked.values()), axis=0).tolist() == [3, 2]  # diverse begins with a round of pre-training
    assert ">never<" in page


def test_where_test_rows_have_attributes_the_worst_group_is_real(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lines = ["x,y,class,client,attribute,split"]
    for i in range(120):
        label, scanner, held_out = i % 2, i // 2 % 2, i >= 80
        x, y = rng.normal([2 * label - scanner, scanner], 1.0)
        lines.append(
            f"{x:.3f},{y:.3f},{'ab'[label]},{'' if held_out else i % 3},{'uv'[scanner] if held_out else ''},"
            f"{'test' if held_out else 'train'}"
        )
    path = tmp_path / "numbers.csv"
    path.write_text("\n".join(lines))
    made = fd.train(str(path), selector="feddiverse", features="x,y", **QUICK)
    test = fd.federation(str(path), 3, features="x,y").test()
    assert test.a is not None
    right = made.predict(test.x) == np.array(["a", "b"])[test.y]
    groups = [right[(test.y == y) & (test.a == a)].mean() for y in (0, 1) for a in (0, 1)]
    assert made.worst_group_accuracy == min(groups)
    assert made.worst_class_accuracy == min(right[test.y == y].mean() for y in (0, 1))
    assert "evaluation_only" not in made.triplets
