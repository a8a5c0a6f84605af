"""A study: what is planned is made once, failures do not spread, and a directory never mixes two studies."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feddiverse.errors import UserError
from feddiverse.experiment import finished
from feddiverse.experiment.expectation import COST, correction, wall_seconds
from feddiverse.experiment.grids import METHODS, STUDIES
from feddiverse.experiment.side_by_side import Watch
from feddiverse.experiment.study import Planned, Study, StudyDirectory, carry_out, finished_runs


def grid(rows: tuple[str, ...] = ("Uniform random", "FedDiverse"), seeds: int = 2, **settings: Any) -> Study:
    known = dict(METHODS.values())
    runs = [Planned(row, "digits-gsc", seed, {**known[row], **settings}) for seed in range(seeds) for row in rows]
    return Study("made-up", "Made up", tuple(runs), dict.fromkeys(rows, rows[0]))


def unwatched(_: Planned) -> Watch:
    return lambda record: None


def finish(run: Planned, path: Path) -> None:
    """The least that a finished run is: one round, one group tested."""
    group = {"class": 0, "attribute": 0, "correct": 1, "count": 2, "accuracy": 0.5}
    tested = {"accuracy": 0.5, "worst_group_accuracy": 0.5, "groups": [group]}
    traffic = {"train": {"messages": 1, "bytes_down": 8, "bytes_up": 8, "client_seconds": 0.1}}
    record = {"round": 1, "phase": "selected", "selected": [0], "traffic": traffic, "train_loss": 0.7, "seconds": 1.0}
    seconds = 2 * wall_seconds(run.config, 2)
    finished.Run(
        name=path.name,
        config=run.config,
        result={**tested, "rounds": 1, "seconds": seconds, "theta_sha256": "f"},
        federation={"counts": [[[2, 1]]], "class_names": ["y"], "attribute_names": ["a", "b"]},
        rounds=[{**record, **tested, "selection_seconds": 0.0, "bytes_down": 8, "bytes_up": 8}],
        triplets={},
        environment={},
    ).save(path)


def test_names_are_readable_and_differ() -> None:
    names = [run.name for run in grid().runs]
    assert names[0] == "digits-gsc-uniform-random-seed0"
    assert len(set(names)) == len(names)


def test_what_is_done_is_skipped_and_failures_do_not_spread(tmp_path: Path) -> None:
    study, directory = grid(), StudyDirectory(tmp_path / "s")
    directory.plan(study, "feddiverse study x")
    made: list[str] = []

    def perform(run: Planned, path: Path, _: Watch) -> None:
        made.append(run.name)
        if run.row == "FedDiverse":
            raise ValueError("no luck")
        finish(run, path)

    outcomes = {run.name: why for run, why in carry_out(study, directory, perform, unwatched)}
    assert list(outcomes.values()) == [None, "ValueError: no luck"] * 2
    assert json.loads((tmp_path / "s" / "failures.json").read_text()).keys() == {
        name for name in outcomes if outcomes[name]
    }
    made.clear()
    assert [why for _, why in carry_out(study, directory, lambda run, path, _: finish(run, path), unwatched)] == [
        None,
        None,
    ]
    assert not (tmp_path / "s" / "failures.json").exists()
    assert list(carry_out(study, directory, perform, unwatched)) == []
    assert made == []


def test_interrupted_study_keeps_what_is_done(tmp_path: Path) -> None:
    study, directory = grid(), StudyDirectory(tmp_path / "s")
    directory.plan(study, "")

    def perform(run: Planned, path: Path, _: Watch) -> None:
        if run.seed == 1:
            raise KeyboardInterrupt
        finish(run, path)

    with pytest.raises(KeyboardInterrupt):
        list(carry_out(study, directory, perform, unwatched))
    assert [directory.is_done(run) for run in study.runs] == [True, True, False, False]


def test_a_study_may_grow_but_not_change(tmp_path: Path) -> None:
    directory = StudyDirectory(tmp_path / "s")
    directory.plan(grid(seeds=1), "first")
    directory.plan(grid(("Uniform random", "FedDiverse", "pow-d"), seeds=2), "second")
    planned = json.loads((tmp_path / "s" / "study.json").read_text())
    assert len(planned["runs"]) == 6
    assert planned["commands"] == ["first", "second"]
    directory.plan(grid(seeds=1), "third")
    assert len(json.loads((tmp_path / "s" / "study.json").read_text())["runs"]) == 6
    directory.plan(grid(seeds=1, rounds=7), "")  # nothing was made yet: a mistake may be corrected
    assert _planned_rounds(tmp_path / "s")[0] == 7
    made = grid(seeds=1, rounds=7).runs[0]
    finish(made, directory.run_path(made))
    with pytest.raises(UserError, match="other settings"):
        directory.plan(grid(seeds=1, rounds=8), "")
    with pytest.raises(UserError, match="holds the study 'made-up'"):
        directory.plan(replace(grid(), name="another"), "")


def _planned_rounds(path: Path) -> list[int]:
    return [run["settings"]["rounds"] for run in json.loads((path / "study.json").read_text())["runs"]
            if "rounds" in run["settings"]]  # fmt: skip


def test_two_methods_never_share_a_folder() -> None:
    """Else one's result would stand in the table under the other's name."""
    runs = [Planned(row, "digits-gsc", 0, {"selector": row}) for row in ("pow_d", "pow-d")]
    with pytest.raises(UserError, match="'pow_d' on 'digits-gsc' and 'pow-d' on 'digits-gsc' would share the folder"):
        Study("made-up", "Made up", tuple(runs))
    names = {Planned(row, "digits-gsc", 0, {}).name for row in ("равномерно", "по кругу")}
    assert len(names) == 2


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(UserError, match="not empty"):
        StudyDirectory(tmp_path).plan(grid(), "")


def test_equal_runs_of_another_study_are_taken_over(tmp_path: Path) -> None:
    there = StudyDirectory(tmp_path / "there")
    same, other = grid().runs[0], grid(rounds=7).runs[0]
    finish(same, there.run_path(same))
    (there.run_path(same) / "checkpoint.safetensors").write_text("large")
    found = finished_runs([there.path])
    assert other.config not in found
    renamed = replace(same, row="Another name")
    found[renamed.config].save(tmp_path / "here")
    assert finished.read(tmp_path / "here") == replace(found[same.config], name="here")
    assert not (tmp_path / "here" / "checkpoint.safetensors").exists()
    (there.run_path(same) / "result.json").write_text("")  # a full disk's
    assert finished_runs([there.path]) == {}


def test_how_to_rebalance_does_not_count_where_nothing_is_rebalanced(tmp_path: Path) -> None:
    """Or runs from before a default of rebalancing changed would be made again, to the same bits."""
    before, now = (grid(rebalance_weights=weights).runs[0] for weights in ("groups", "auto"))
    there = StudyDirectory(tmp_path / "there")
    finish(before, there.run_path(before))
    assert now.config.effective in finished_runs([there.path])
    for matters in ({"rebalance": True}, {"draw": "balanced"}):
        first, second = (grid(rebalance_weights=weights, **matters).runs[0] for weights in ("groups", "auto"))
        assert first.config.effective != second.config.effective


def test_only_keeps_named_rows_and_columns() -> None:
    kept = grid().only("feddiverse", "Digits GSC")
    assert {run.row for run in kept.runs} == {"FedDiverse"}
    with pytest.raises(UserError, match="no method 'nosuch'; it has: 'Uniform random', 'FedDiverse'"):
        grid().only("nosuch")


@pytest.mark.parametrize("study", STUDIES)
def test_every_row_can_be_named_whatever_commas_it_has(study: str) -> None:
    whole = STUDIES[study]("quick", "", [0])
    for row in {run.row for run in whole.runs}:
        assert {run.row for run in whole.only(row).runs} == {row}


@pytest.mark.parametrize(("model", "side"), [("mobilenet", 28), ("mobilenet", 96), ("mobilenet", 224), ("cnn", 28)])
def test_a_trained_sample_is_expected_to_cost_what_was_measured_within_a_factor_of_two(model: str, side: int) -> None:
    measured = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "step.json").read_text())
    step = measured[model if side == 28 else f"{model}, {side} px"]["train"]["our_step_ms"] / 28 / 1000  # 28 pictures
    sample, pixel = COST[model]
    assert step / 2 < sample + pixel * side**2 < 2 * step


def test_expected_time_is_corrected_by_what_was_measured(tmp_path: Path) -> None:
    study, directory = grid(), StudyDirectory(tmp_path)
    assert correction(study.runs, directory, 2) == 1
    finish(study.runs[0], directory.run_path(study.runs[0]))
    assert correction(study.runs, directory, 2) == pytest.approx(2)
    everyone = replace(study.runs[0], settings={"selector": "everyone", "aggregator": "fednova"})
    assert wall_seconds(everyone.config, 2) > wall_seconds(study.runs[0].config, 2)
