"""The named studies are the paper's tables, and the published numbers are the paper's."""

import re
from pathlib import Path

import pytest

from feddiverse.errors import UserError
from feddiverse.experiment.grids import PRESETS, SEEDS, STUDIES, from_toml
from feddiverse.experiment.study import Study
from feddiverse.report import published


def published_by_place(study: Study) -> dict[tuple[str, str], tuple[float, float]]:
    """What the report would show beside a whole study."""
    found = {
        (run.row, run.column): published.value(
            study.name, run.row, run.config, study.stands_for.get(run.column, run.config.federation)
        )
        for run in study.runs
    }
    return {place: value for place, value in found.items() if value is not None}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", sorted(STUDIES))
@pytest.mark.parametrize("source", ["", "cmnist"])
def test_every_grid_has_valid_runs_with_different_names(name: str, preset: str, source: str) -> None:
    study = STUDIES[name](preset, source, SEEDS)
    names = [run.name for run in study.runs]
    assert len(set(names)) == len(names)
    assert {run.config.seed for run in study.runs} == set(SEEDS)
    places = {(run.row, run.column) for run in study.runs}
    assert set(study.baselines.values()) <= {row for row, _ in places}


def test_selection_is_table_one_with_both_estimators() -> None:
    study = STUDIES["selection"]("paper", "", SEEDS)
    assert len({run.row for run in study.runs}) == 9  # with uniform selection without pre-training
    assert len({run.column for run in study.runs}) == 7
    values = published_by_place(study)
    assert values["FedDiverse", "cmnist-gsc"] == (94.01, 0.98)
    assert values["FedDiverse (paper’s estimator)", "cmnist-gsc"] == (94.01, 0.98)
    assert ("FedPNS", "spawrious-gci-100") not in values
    ours = [value for (row, _), value in values.items() if "estimator" not in row]
    assert sorted(ours) == sorted(published.SELECTION.values())  # every number has its place, and only one
    nova = next(run.config for run in study.runs if run.row == "FedNova")
    assert (nova.selector, nova.aggregator, nova.rounds) == ("everyone", "fednova", 200)


def test_quick_uses_digits_and_says_so() -> None:
    study = STUDIES["selection"]("quick", "", SEEDS)
    assert {run.config.federation for run in study.runs} == {
        "digits-gsc", "gci:digits", "gai:digits", "dist:digits", "4:digits", "gci-100:digits",
    }  # fmt: skip
    assert study.stands_for["digits-gsc"] == "cmnist-gsc"
    assert study.stands_for["gai:digits"] == "spawrious-gai"


def test_source_replaces_pictures_and_keeps_the_papers_own_names() -> None:
    study = STUDIES["selection"]("paper", "cmnist", SEEDS)
    columns = {run.column for run in study.runs}
    assert columns == {"cmnist-gsc", "gci:cmnist", "gai:cmnist", "dist:cmnist", "4:cmnist", "gci-100:cmnist"}
    assert "cmnist-gsc" not in study.stands_for
    with pytest.raises(UserError, match="no source 'nosuch'"):
        STUDIES["selection"]("paper", "nosuch", SEEDS)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", ["quickstart", "selection", "optimizers", "overhead", "ablation"])
def test_no_method_of_the_papers_tables_has_a_head_start(name: str, preset: str) -> None:
    """Released gives T0 = 1 to every selector. Rows that say otherwise say so in their name."""
    study = STUDIES[name](preset, "", [0])
    t0 = {run.row: run.config.pretraining_rounds for run in study.runs}
    without = {row for row in t0 if row.endswith("no pre-training")}
    assert len(without) == (0 if name in ("quickstart", "overhead") else 1)
    assert {t0[row] for row in without} <= {0}
    assert {t0[row] for row in t0 if row not in without and not row.startswith("T0=20")} == {1}


def test_the_rivals_are_compared_on_equal_terms() -> None:
    """Every rival of the paper's related work that is here, with the round of pre-training that FedDiverse has."""
    study = from_toml(Path(__file__).parents[2] / "benchmarks/studies/rivals_on_digits.toml", [0])
    parts = {value for run in study.runs for value in (run.config.selector, run.config.objective)}
    assert {"hics_fl", "haccs", "feddyn", "moon", "oort", "fed_cbs", "feddiverse", "uniform"} <= parts
    assert {run.row for run in study.runs if run.config.pretraining_rounds != 1} == {"Uniform random, no pre-training"}


def test_ablation_has_the_papers_six_rows_and_estimated_matrices() -> None:
    study = STUDIES["ablation"]("paper", "", [0])
    known = next(run.config for run in study.runs if run.row == "T0=20, known, N^k" and run.column == "FedAvg")
    assert (known.selector, known.estimator, known.pretraining_rounds) == ("group_balance", "oracle", 20)
    values = published_by_place(study)
    assert values["T0=20, known, N^k", "FedAvg"] == (49.74, 2.30)
    assert values["Uniform random", "FedAvgM"] == (42.42, 0.59)
    assert ("T0=1, predicted (consensus), N^k", "FedAvg") not in values
    shown = [value for (row, _), value in values.items() if "estimator" not in row and row != "Uniform random"]
    assert sorted(shown) == sorted(published.ABLATION.values())
    ours = next(run.config for run in study.runs if run.row == "T0=1, predicted (consensus), N^k")
    assert (ours.selector, ours.estimator) == ("group_balance", "consensus")


def test_optimizers_is_table_three_whatever_the_pictures() -> None:
    values = published_by_place(STUDIES["optimizers"]("paper", "", [0]))
    shown = [value for (row, _), value in values.items() if "estimator" not in row]
    assert sorted(shown) == sorted(published.OPTIMIZERS.values())
    elsewhere = published_by_place(STUDIES["optimizers"]("quick", "", [0]))
    assert elsewhere["FedAvgM + FedProx · FedDiverse", "dist:digits"] == (53.84, 0.90)
    assert published_by_place(STUDIES["quickstart"]("quick", "", [0])) == {}


def test_published_numbers_agree_with_what_the_paper_says_of_them() -> None:
    # Table I and Table III share their FedAvgM columns.
    for federation in ("cmnist-gsc", "waterbirds-dist", "spawrious-4"):
        for selector in ("uniform", "feddiverse"):
            assert published.OPTIMIZERS["fedavgm", selector, federation] == published.SELECTION[selector, federation]
    # "FedDiverse is the only method that is the best or second best on all datasets."
    always = []
    for method in {row for row, _ in published.SELECTION}:
        ranks = []
        for federation in {column for _, column in published.SELECTION}:
            means = [value[0] for (_, column), value in published.SELECTION.items() if column == federation]
            own = published.SELECTION.get((method, federation))
            ranks.append(99 if own is None else sorted(means, reverse=True).index(own[0]))
        always += [method] if max(ranks) <= 1 else []
    assert always == ["feddiverse"]
    # The gains its ablation names: 5.71 and 3.74 points, 4.15 and 4.78 points (text below Table IV).
    table = published.ABLATION
    gains = [
        table[20, "known", "matrix", "fedavg"][0] - table[20, "predicted", "triplet", "fedavg"][0],
        table[1, "known", "matrix", "fedavgm"][0] - table[1, "predicted", "triplet", "fedavgm"][0],
        table[1, "known", "triplet", "fedavg"][0] - table[1, "predicted", "triplet", "fedavg"][0],
        table[1, "known", "triplet", "fedavgm"][0] - table[1, "predicted", "triplet", "fedavgm"][0],
    ]
    assert gains == pytest.approx([5.71, 3.74, 4.15, 4.78])


def test_published_numbers_are_in_the_paper_where_it_is_at_hand() -> None:
    paper = Path(__file__).parents[3] / "shared" / "paper.tex"
    if not paper.exists():
        pytest.skip("the paper's source is not on this machine")
    tables = re.findall(r"\\[nbu]um\{([\d.]+)\}\{([\d.]+)\}", paper.read_text())
    printed = [(float(mean), float(sd)) for mean, sd in tables]
    ours = [*published.SELECTION.values(), *published.OPTIMIZERS.values(), *published.ABLATION.values()]
    assert sorted(ours) == sorted(printed)


def test_a_users_grid(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'title = "Mine"\nseeds = [3, 4]\nbaseline = "plain"\n[base]\nrounds = 5\n'
        '[rows.plain]\nselector = "uniform"\n[rows."d & c"]\nselector = "feddiverse"\ncoverage = 1.5\n'
        '[columns.gsc]\nfederation = "digits-gsc"\n[columns.gai]\nfederation = "gai:digits"\n'
    )
    study = from_toml(file, None)
    assert (study.name, study.title, len(study.runs)) == ("mine", "Mine", 8)
    assert study.runs[-1].config.coverage == 1.5
    assert study.runs[-1].config.federation == "gai:digits"
    assert {run.config.rounds for run in study.runs} == {5}
    assert {run.seed for run in from_toml(file, [9]).runs} == {9}


def test_each_seed_may_have_pictures_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[rows.a]\n[columns.photos]\nfederation = "gsc:table:s{seed}.csv"\n'
        '[columns.birds]\nfederation = "waterbirds-dist"\ndata_dir = "birds/w{seed}"\n'
    )
    photos, birds, others, _ = (run.config for run in from_toml(file, [31, 32]).runs)
    assert (photos.federation, others.federation) == ("gsc:table:s31.csv", "gsc:table:s32.csv")
    assert (birds.federation, birds.data_dir) == ("waterbirds-dist", "birds/w31")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no rows"),
        ("[rows.a]\n[bas]\n", "Unknown key 'bas'"),
        ("rows = 3\n", "'rows' .* must be a TOML table"),
        ('seeds = ["x"]\n[rows.a]\n', "'seeds' .* whole numbers"),
        ('baseline = "b"\n[rows.a]\n', "names no row"),
    ],
)
def test_mistakes_in_a_grid_are_told(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "g.toml").write_text(text)
    with pytest.raises(UserError, match=complaint):
        from_toml(tmp_path / "g.toml", None)


def test_a_wrong_setting_names_the_run_and_the_nearest_key(tmp_path: Path) -> None:
    (tmp_path / "g.toml").write_text("[rows.a]\nselektor = 'uniform'\n")
    with pytest.raises(UserError, match=r"'selektor' in the study's run 'digits-gsc-a-seed0'.*did you mean 'selector'"):
        from_toml(tmp_path / "g.toml", [0]).runs[0].config  # noqa: B018
