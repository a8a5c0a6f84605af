"""A study packed in one file says what its run directories say; run directories of earlier versions are readable."""

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rows_of_numbers import people

import feddiverse as fd
from benchmarks.keep import keep
from feddiverse.cli.live import Live
from feddiverse.errors import UserError
from feddiverse.experiment import finished, packed
from feddiverse.experiment.config import from_mapping
from feddiverse.experiment.overhead import cost
from feddiverse.experiment.records import TESTED, worst_in_words
from feddiverse.experiment.study import StudyDirectory, finished_runs
from feddiverse.report import tables
from feddiverse.report.results import load
from feddiverse.report.table import to_csv

OLD = Path(__file__).parent / "old_study"  # made before aggregator and objective were two keys, cut to one run
RUN = "cmnist-gsc-fedprox-feddiverse-seed0"


@pytest.fixture
def old() -> finished.Run:
    return finished.read(OLD / "runs" / RUN)


def test_a_run_of_an_earlier_version_is_read_in_todays_words(old: finished.Run) -> None:
    assert (old.config.aggregator, old.config.prox_mu, old.config.pretraining_rounds) == ("fedavg", 0.1, 1)
    assert old.client_names[:2] == ["0", "1"]
    assert old.result["selection"]["times_chosen"] == old.selection.times_chosen.tolist()


def test_an_old_study_shows_the_papers_value_with_and_without_carrying_it(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "new")
    content = json.loads((OLD / "study.json").read_text())
    carried = {(e["row"], e["column"]): (e["mean"], e["sd"]) for e in content.pop("published")}
    (tmp_path / "new" / "study.json").write_text(json.dumps(content))
    for path in (OLD, tmp_path / "new"):
        results = load(path)
        place = ("FedProx · FedDiverse", "cmnist-gsc")
        assert results.summaries[place].published == carried[place] == (91.49, 1.86)
        assert len(results.missing) == 2


def test_kept_commands_do_not_say_where_the_study_lay(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "here")
    content = json.loads((OLD / "study.json").read_text())
    content["commands"] = [f"feddiverse study selection --out {tmp_path / 'here'} --seeds 0"]
    (tmp_path / "here" / "study.json").write_text(json.dumps(content))
    keep(tmp_path / "here", tmp_path / "kept")
    assert load(tmp_path / "kept").commands == ("feddiverse study selection --out studies/kept --seeds 0",)


def test_packing_keeps_what_reports_rest_on(old: finished.Run, tmp_path: Path) -> None:
    keep(OLD, tmp_path)
    assert (tmp_path / packed.NAME).stat().st_size < 4_000  # the directory has forty times as much
    study, (run,) = packed.unpack(tmp_path / packed.NAME)
    assert [entry["name"] for entry in study["runs"]] == [
        entry["name"] for entry in json.loads((OLD / "study.json").read_text())["runs"]
    ]
    assert run.config == old.config
    assert run.choices == old.choices
    assert [each.tolist() for each in run.curve] == [each.tolist() for each in old.curve]
    measured = ("seconds", "run_dir", "config")  # rounded, left out, in today's words
    assert run.result.pop("incomplete") == []
    worst_class = run.result.pop("worst_class_accuracy")  # which old results did not say
    correct, count = (np.array([g[key] for g in old.result["groups"]]).reshape(2, 2) for key in ("correct", "count"))
    assert worst_class == (correct.sum(axis=1) / count.sum(axis=1)).min()
    assert {k: v for k, v in run.result.items() if k not in measured} == {
        k: v for k, v in old.result.items() if k not in measured
    }
    tested = [record for record in old.rounds if record["accuracy"] is not None]
    again = [record for record in run.rounds if record["accuracy"] is not None]
    for key in ("round", "phase", "selected", "accuracy", "worst_group_accuracy", "groups"):
        assert [record[key] for record in again] == [record[key] for record in tested]
    for total in ("seconds", "bytes_up", "bytes_down", "selection_seconds"):
        assert sum(r[total] for r in run.rounds) == pytest.approx(sum(r[total] for r in old.rounds), rel=1e-5)
    assert run.estimated_triplets == pytest.approx(old.estimated_triplets, abs=1e-6)
    truth = old.triplets["evaluation_only"]["truth"]
    assert run.triplets["evaluation_only"]["truth"] == {k: pytest.approx(t) for k, t in truth.items()}
    ours, theirs = (cost(each.rounds, 24, 9) for each in (run, old))
    assert (ours.rounds, ours.first, ours.each) == (200, pytest.approx(theirs.first), pytest.approx(theirs.each))
    assert ours.each["messages"] == 0


@pytest.fixture(scope="module", params=["test set", "held out"])
def without_labels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose test samples have no attributes, or which has none at the server, though training ones are known."""
    x, y, site, scanner = people()
    test = people(300, seed=1)[:2] if request.param == "test set" else None
    federation = fd.Federation.from_arrays(x, y, site, attribute=None if test else scanner, test=test)
    path = tmp_path_factory.mktemp("study") / "run"
    options = {"holdout": 0.3, "rebalance": True, "evaluate_every": 2, "evaluate_rebalanced_every": 2}
    made = fd.train(federation, model="mlp", rounds=4, num_selected=2, seed=3, workers=1, out=path, **options)
    assert made.rebalanced is not None
    return path


def test_what_clients_hold_out_and_hidden_groups_are_kept(without_labels: Path, tmp_path: Path) -> None:
    made = finished.read(without_labels)
    lost = [{"round": 2, "clients": [1]}]
    made = replace(made, result={**made.result, "incomplete": lost, "privacy": {"epsilon": 3.0}})
    (tmp_path / "study.jsonl").write_text(packed.pack({}, [made]))
    _, (run,) = packed.unpack(tmp_path / "study.jsonl")
    assert packed.pack({}, [run]) == (tmp_path / "study.jsonl").read_text()
    told = (*TESTED, "incomplete", "privacy")
    assert {key: run.result.get(key) for key in told} == {key: made.result.get(key) for key in told}
    for key in TESTED:
        assert run.result["rebalanced"][key] == made.result["rebalanced"][key]
    tested = [record for record in made.rounds if record["accuracy"] is not None]
    again = [record for record in run.rounds if record["accuracy"] is not None]
    for key in (*TESTED, "rebalanced"):
        assert [record[key] for record in again] == [record[key] for record in tested]
    assert tested[-1]["held_out"]["estimated_groups"]


def test_a_run_without_test_samples_at_the_server_is_reported_by_class(without_labels: Path) -> None:
    """Also where the attributes of training samples are known: those of what clients hold out are not."""
    run, result = finished.read(without_labels), fd.load_run(without_labels)
    assert run.yardstick == "class"
    assert run.worst_accuracy == result.worst_class_accuracy
    assert run.group_name(1, 0) == "1"
    assert [line.get_label() for line in result.plot().axes[0].get_lines()] == ["0", "1", "all", "worst class"]
    assert {"group 0", "group 1"} <= set(result.to_pandas().columns)
    known = run.federation["attribute_names"]
    assert run.group_names == (["0, 0", "0, 1", "1, 0", "1, 1"] if known else ["0", "1"])
    live = Live(run.config, without_labels)
    live.show(run.rounds[-1])
    assert live._worst == worst_in_words(run.rounds[-1])


def test_tables_are_the_same_from_the_file(tmp_path: Path) -> None:
    keep(OLD, tmp_path / "kept")
    for path in (tmp_path / "kept", tmp_path / "kept" / packed.NAME):
        made = tables.all_tables(load(path))
        assert [to_csv(t) for t in made] == [to_csv(t) for t in tables.all_tables(load(OLD))]
    shutil.copytree(tmp_path / "kept", tmp_path / "second")
    (tmp_path / "kept" / "runs.json").touch()
    assert len(load(tmp_path).all_runs) == 1  # two studies with the same run, read as loose runs


def test_packing_what_was_packed_changes_nothing(tmp_path: Path) -> None:
    keep(OLD, tmp_path)
    kept = (tmp_path / packed.NAME).read_bytes()
    (tmp_path / "study.jsonl").write_bytes(gzip.decompress(kept))
    for name in (packed.NAME, "study.jsonl"):  # the second as it was before it was compressed
        study, runs = packed.unpack(tmp_path / name)
        assert packed.pack(study, runs).encode() == gzip.decompress(kept)
    assert packed.write(tmp_path, study, runs).read_bytes() == kept
    assert packed.find(tmp_path) == [tmp_path / packed.NAME], "and only the one that was written last is left"
    assert not (tmp_path / "study.jsonl").exists()


def test_settings_and_names_are_kept_to_the_last_digit(old: finished.Run, tmp_path: Path) -> None:
    options = {"lr": 0.0123456789, "selector": {"name": "mine:Mine", "temperature": 3.0}}
    config = from_mapping({**old.config.plain(), **options})
    federation = {**old.federation, "client_names": [f"hospital {k}" for k in range(24)]}
    runs = [old, replace(old, name="other", config=config, federation=federation)]
    (tmp_path / "study.jsonl").write_text(packed.pack({}, runs))
    study, (_, other) = packed.unpack(tmp_path / "study.jsonl")
    assert study == {}
    assert (other.config, other.name, other.client_names[3]) == (config, "other", "hospital 3")
    assert type(other.config.parameters("selector")["temperature"]) is float


def test_another_study_takes_runs_from_the_file(old: finished.Run, tmp_path: Path) -> None:
    keep(OLD, tmp_path / "kept" / "table-3")
    for path in (tmp_path / "kept" / "table-3", tmp_path / "kept", tmp_path / "kept" / "table-3" / packed.NAME):
        assert finished_runs([path]).keys() == {old.config}
    taken = finished_runs([tmp_path / "kept"])[old.config]
    taken.save(tmp_path / "runs" / "taken")
    again = finished.read(tmp_path / "runs" / "taken")
    assert again == replace(taken, name="taken")
    assert finished_runs([tmp_path])[old.config].choices == old.choices
    with pytest.raises(UserError, match="no study to take runs from"):
        finished_runs([tmp_path / "runs"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: ["{}\n"], "not a study that this version"),
        (lambda lines: [lines[0], lines[1][:500] + "\n"], "line 2, is damaged"),
        (lambda lines: [lines[0], lines[1].replace('"federation":0', '"federation":7')], "line 2, is damaged"),
        (lambda lines: ["no JSON\n"], "line 1, is damaged"),
    ],
)
def test_damage_is_told_with_its_line(tmp_path: Path, change, told) -> None:
    keep(OLD, tmp_path)
    file = tmp_path / packed.NAME
    lines = gzip.decompress(file.read_bytes()).decode().splitlines(keepends=True)
    file.write_bytes(gzip.compress("".join(change(lines)).encode()))
    with pytest.raises(UserError, match=told):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda kept: kept[:-20], "is damaged"),
        (lambda kept: kept[:200] + bytes(50) + kept[250:], "damaged"),
        (lambda kept: b"no gzip", r"cannot be read: it is damaged \(Not a gzipped file"),
        (lambda kept: b"", "not a study that this version"),
    ],
    ids=["cut off", "bytes changed", "another file", "empty"],
)
def test_a_damaged_file_is_told(tmp_path: Path, change, told) -> None:
    keep(OLD, tmp_path)
    file = tmp_path / packed.NAME
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(UserError, match=told):
        load(tmp_path)


def test_a_study_is_not_planned_over_a_packed_one(tmp_path: Path) -> None:
    from feddiverse.experiment.grids import STUDIES

    keep(OLD, tmp_path)
    with pytest.raises(UserError, match="is not empty and no study"):
        StudyDirectory(tmp_path).plan(STUDIES["optimizers"]("paper", "", [0]), "")
