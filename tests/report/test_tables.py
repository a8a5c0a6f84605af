"""Tables: what is bold, what stands beside, and four formats that survive hostile names."""

import csv
import io
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run, make_study
from rich.console import Console
from scipy import stats

from feddiverse.errors import UserError
from feddiverse.report import tables
from feddiverse.report.answer import answers
from feddiverse.report.published import OVERHEAD
from feddiverse.report.results import load
from feddiverse.report.table import Cell, Table, to_csv, to_latex, to_markdown, to_rich, to_stacked_rich, write_all

FACTS = {
    ("Uniform random", "digits-gsc"): [0.891, 0.896, 0.833],
    ("FedDiverse", "digits-gsc"): [0.920, 0.919, 0.891],
    ("pow-d", "digits-gsc"): [0.900, 0.880, 0.850],
}
HOSTILE = "a|b & 50% _x_ {y} <i>z</i> $q$ \\n"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    published = [{"row": "FedDiverse", "column": "digits-gsc", "mean": 94.01, "sd": 0.98}]
    return make_study(tmp_path / "study", FACTS, published=published)


def test_accuracy_table_marks_best_and_second_and_shows_the_papers_value(study: Path) -> None:
    table = tables.accuracy_table(load(study))
    shown = {row[0].text: row[1] for row in table.rows}
    assert shown["FedDiverse"].text == "91.00 ± 1.65"
    assert shown["FedDiverse"].beside == "paper 94.01 ± 0.98"
    assert [shown[row].mark for row in ("Uniform random", "FedDiverse", "pow-d")] == ["", "best", "second"]
    assert "n − 1" in table.notes[0]
    assert "3 seeds" in table.notes[0]


def test_equal_numbers_share_a_mark(tmp_path: Path) -> None:
    same = make_study(tmp_path, {("a", "f"): [0.9], ("b", "f"): [0.9], ("c", "f"): [0.8]})
    assert [row[1].mark for row in tables.accuracy_table(load(same)).rows] == ["best", "best", "second"]


def test_a_method_with_fewer_seeds_says_so(tmp_path: Path) -> None:
    """A study on its way: one lucky seed must not pass for a mean of all."""
    first, lucky = ("Uniform random", "f"), ("pow-d", "f")
    results = load(make_study(tmp_path, {first: [0.8, 0.9], lucky: [0.99]}))
    shown = {row[0].text: row[1].text for row in tables.accuracy_table(results).rows}
    assert shown == {"Uniform random": "85.00 ± 7.07", "pow-d": "99.00 (1 of 2 seeds)"}
    (answer,) = answers(results)
    assert (
        answer.headline == "f: so far only Uniform random has all its seeds, with 85.00 ± 7.07 % worst-group accuracy."
    )
    assert [s.row for s in results.ranked("f")] == ["Uniform random", "pow-d"]


def test_an_answer_is_about_the_two_methods_it_names(tmp_path: Path) -> None:
    """The best may be a baseline itself, or have another baseline than the runner-up has."""
    accuracies = {
        ("A uniform", "f"): [0.95, 0.96, 0.94], ("A diverse", "f"): [0.80, 0.81, 0.79],
        ("B uniform", "f"): [0.70, 0.71, 0.69], ("B diverse", "f"): [0.90, 0.92, 0.91],
    }  # fmt: skip
    baselines = {f"{x} {y}": f"{x} uniform" for x in "AB" for y in ("uniform", "diverse")}
    (answer,) = answers(load(make_study(tmp_path, accuracies, baselines=baselines)))
    ahead = stats.ttest_rel([95, 96, 94], [90, 92, 91]).confidence_interval()
    interval = f"+{ahead.low:.1f} to +{ahead.high:.1f}, 3 seeds"
    assert answer.headline == f"f: A uniform is best, +4.0 points ({interval}) over the next, B diverse."


def test_every_table_says_when_the_pictures_are_not_the_papers(tmp_path: Path) -> None:
    split = {("a", "digits-gsc"): [0.9], ("b", "digits-gsc"): [0.8]}
    results = load(make_study(tmp_path, split, stands_for={"digits-gsc": "cmnist-gsc"}))
    for table in (tables.accuracy_table(results), tables.comparison_table(results)):
        assert "digits-gsc has the split of cmnist-gsc" in " ".join(table.notes)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("result.json", "{}"),
        ("result.json", "null"),
        ("federation.json", "{}"),
        ("rounds.jsonl", ""),
        ("config.toml", ""),
        ("triplets.json", '{"triplets": {"99": [0, 0, 0]}, "evaluation_only": {}}'),
    ],
)
def test_a_damaged_run_is_named(tmp_path: Path, file: str, content: str) -> None:
    run = make_run(tmp_path / "run", 0.9)
    (run / file).write_text(content)
    with pytest.raises(UserError, match=r"run.*(damaged|delete that run)"):
        load(tmp_path)


def test_comparison_has_difference_interval_and_rounds(study: Path) -> None:
    table = tables.comparison_table(load(study))
    row = next(row for row in table.rows if row[0].text == "FedDiverse")
    difference = row[table.columns.index("Difference to Uniform random")]
    assert difference.text == "+3.67 [−0.98, +8.32]"
    assert difference.numbers["low"] == pytest.approx(-0.98, abs=0.01)
    assert row[table.columns.index("Rounds to 80 %")].value == pytest.approx(35 / 3, abs=0.1)
    assert row[table.columns.index("Rounds to 95 %")].text == "–"


def test_what_stays_sure_among_many_comparisons_has_a_star(tmp_path: Path) -> None:
    """All three intervals leave out zero: p is 0.037 twice, where the second of three may have 0.025, and 0.0001."""
    found = {
        ("Uniform random", "f"): [0.80, 0.81, 0.82],
        ("by luck", "f"): [0.85, 0.88, 0.92],
        ("by luck too", "f"): [0.86, 0.89, 0.93],
        ("surely", "f"): [0.90, 0.911, 0.924],
    }
    table = tables.comparison_table(load(make_study(tmp_path, found)))
    texts = {row[0].text: row[table.columns.index("Difference to Uniform random")].text for row in table.rows}
    assert [row for row, text in texts.items() if "[+" in text] == ["by luck", "by luck too", "surely"]
    assert [row for row, text in texts.items() if text.endswith("*")] == ["surely"]
    assert "corrected for the 3 comparisons there are (Holm)" in table.notes[0]


def test_usage_counts_only_rounds_that_were_selected(study: Path) -> None:
    run = next(iter(load(study).at("FedDiverse", "digits-gsc").values()))
    assert run.selection.times_chosen.sum() == 9 * 39
    shares = run.selection.times_chosen / run.selection.times_chosen.sum()
    assert run.selection.effective_clients == pytest.approx(np.exp(stats.entropy(shares)))
    assert run.pooled_shares.sum(axis=(1, 2)) == pytest.approx(1)
    first = run.choices[0]
    assert run.pooled_shares[0].ravel() == pytest.approx(
        run.counts[first].sum(axis=0).ravel() / run.counts[first].sum()
    )


def test_csv_holds_numbers_in_columns_of_their_own(study: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(tables.comparison_table(load(study))))))
    diverse = next(row for row in rows if row["Method"] == "FedDiverse")
    assert float(diverse["Worst-group accuracy"]) == pytest.approx(91.0)
    assert float(diverse["Worst-group accuracy sd"]) == pytest.approx(1.646, abs=0.001)
    assert float(diverse["Difference to Uniform random high"]) == pytest.approx(8.32, abs=0.01)
    assert diverse["Rounds to 95 %"] == ""


def test_hostile_names_stay_text_in_every_format() -> None:
    table = Table(
        "t", HOSTILE, (HOSTILE, "n"), ((Cell(HOSTILE, mark="best"), Cell("=1+1")), (Cell("[red]x"), Cell("2", 2.0)))
    )
    assert next(csv.reader(io.StringIO(to_csv(table)))) == [HOSTILE, "n"]
    formulas = Table("t", "", ("=A1", "-1"), ((Cell("-2+3"), Cell("\t=1")),))
    assert list(csv.reader(io.StringIO(to_csv(formulas)))) == [["'=A1", "'-1"], ["'-2+3", "'\t=1"]]
    assert "'=1+1" in to_csv(table)
    body = to_markdown(table).splitlines()[4]
    assert body.replace(r"\|", "").count("|") == 3
    assert "<i>" not in to_markdown(table)
    for render in (to_rich, to_stacked_rich):
        console = Console(width=200, file=io.StringIO(), color_system=None)
        console.print(render(table))
        assert "[red]x" in console.file.getvalue()


def test_best_and_second_show_in_a_narrow_terminal_too(study: Path) -> None:
    console = Console(width=60, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(to_stacked_rich(tables.accuracy_table(load(study))))
    shown = console.file.getvalue()
    assert "\x1b[1m91.00 ± 1.65" in shown
    assert "\x1b[4m" in shown


def test_latex_knows_every_sign_of_the_papers_formulas() -> None:
    texts = [t for name, f in OVERHEAD.items() for t in (name, f.frequency, f.communication, f.client, f.server)]
    table = Table("t", "x", ("Name",), tuple((Cell(text),) for text in [*texts, "[a]", "*b", "a|b<c>d"]))
    latex = to_latex(table)
    assert {c for c in latex if ord(c) > 127} <= set("éèàáß§")
    assert "{}[a]" in latex
    assert "{}*b" in latex


def test_latex_is_booktabs_and_escapes(study: Path, tmp_path: Path) -> None:
    text = to_latex(tables.accuracy_table(load(study)))
    assert r"\toprule" in text
    assert r"\textbf{91.00 $\pm$ 1.65}" in text
    escaped = to_latex(Table("t", "x", ("Name",), ((Cell("50% & a_b #1 {x}"),),)))
    assert r"50\% \& a\_b \#1 \{x\}" in escaped
    if shutil.which("pdflatex"):
        source = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + text + r"\end{document}"
        (tmp_path / "t.tex").write_text(source)
        subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True, capture_output=True)


def test_all_formats_are_written(study: Path, tmp_path: Path) -> None:
    written = [path.name for table in tables.all_tables(load(study)) for path in write_all(table, tmp_path / "out")]
    assert {"accuracy.md", "comparison.csv", "usage.tex"} <= set(written)


def test_loose_runs_are_arranged_by_what_differs(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path / f"a{seed}", 0.8, seed, selector="uniform")
        make_run(tmp_path / f"b{seed}", 0.9, seed, selector="feddiverse", lr=0.05)
    results = load(tmp_path)
    assert results.rows == ("uniform · lr 0.02", "feddiverse · lr 0.05")
    difference = results.summaries["feddiverse · lr 0.05", "digits-gsc"].difference
    assert difference is not None
    assert (difference.mean, difference.n) == (pytest.approx(0.1), 2)


def test_a_study_of_costs_shows_formulas_beside_means_over_seeds(tmp_path: Path) -> None:
    """Made-up runs train 24 clients in round 1, then 9 of 9: 15 messages too many, once; each of 40 / 375 bytes."""
    study = make_study(
        tmp_path, {("Uniform", "digits-gsc"): [0.8, 0.9], ("Fed-CBS", "digits-gsc"): [0.7, 0.8]}, view="overhead"
    )
    communication, computation, messages = tables.all_tables(load(study))
    shown = {row[0].text: [cell.text for cell in row[1:]] for row in communication.rows}
    assert shown["Uniform"] == ["0", "0", "2 bytes", "2 bytes", "0 bytes", "0 bytes"]
    assert shown["Fed-CBS *"][:2] == ["t = 1", "|Y|"]
    assert "digits-gsc: K = 24 clients, κ = 9" in communication.notes[0]
    assert computation.rows[0][-1].text == "10.0 ms"
    assert [cell.text for cell in messages.rows[0]][:3] == ["Uniform", "train", str(24 + 39 * 9)]
    (answer,) = answers(load(study))
    assert "as multiples of it" in answer.headline


def test_a_study_of_estimators_shows_means_over_seeds(tmp_path: Path) -> None:
    places = {("FedDiverse", "digits-gsc"): [0.8, 0.9], ("Uniform", "digits-gsc"): [0.8, 0.7]}
    results = load(make_study(tmp_path, places, view="estimators"))
    (table,) = tables.all_tables(results)
    (row,) = table.rows  # uniform selection estimates nothing
    found = [run.triplets["evaluation_only"]["mae"]["sc"] for run in results.at("FedDiverse", "digits-gsc").values()]
    error = row[table.columns.index("error SC")]
    assert (error.value, error.numbers["sd"]) == (pytest.approx(np.mean(found)), pytest.approx(np.std(found, ddof=1)))
    (answer,) = answers(results)
    assert "FedDiverse comes nearest to the true triplets" in answer.headline


def test_what_cannot_be_read_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a directory"):
        load(tmp_path / "nothing")
    with pytest.raises(UserError, match="no finished run"):
        load(tmp_path)
    run = make_run(tmp_path / "r", 0.9)
    (run / "rounds.jsonl").write_text("{broken\n")
    with pytest.raises(UserError, match=r"run in .* is damaged"):
        load(tmp_path)
