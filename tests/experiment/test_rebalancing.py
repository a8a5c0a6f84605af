"""The last layer solved anew: at the end of a run, of a finished one, between rounds; whatever clients answer."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rows_of_numbers
import torch
from numpy.typing import NDArray
from rows_of_numbers import linear
from sklearn.linear_model import Ridge
from torch import nn
from typer.testing import CliRunner

import feddiverse as fd
from feddiverse.cli import app
from feddiverse.engine.local import LocalEngine, open_engine
from feddiverse.errors import RunError, UserError
from feddiverse.estimation.balance import PENALTIES
from feddiverse.estimation.balancer import CLASSES_INSTEAD, NOT_SEEN
from feddiverse.experiment.records import TESTED
from feddiverse.messages import FeatureMoments, GroupSums, HeadErrors, Reply, Task, Train, Vector

QUICK: dict[str, Any] = {"rounds": 3, "evaluate_every": 3, "seed": 5, "workers": 1, "lr": 0.05}


@pytest.fixture(scope="module")
def federation() -> fd.Federation:
    return rows_of_numbers.federation()


def head_of(result: fd.Result) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights [2, 6] and bias [2] of the model that a result gives."""
    weight, bias = (p.detach().numpy().astype(np.float64) for p in result.model.parameters())
    return weight, bias


def samples_of(federation: fd.Federation) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    clients = [federation.client(k) for k in range(federation.num_clients)]
    x, y, a = (np.concatenate([getattr(s, name) for s in clients]) for name in ("x", "y", "a"))
    return x.astype(np.float64), y, a


def test_the_head_is_scikit_learn_s_ridge_with_every_true_group_of_equal_weight(federation: fd.Federation) -> None:
    result = fd.train(federation, linear, rebalance=True, rebalance_weights="true_groups", **QUICK)
    x, y, a = samples_of(federation)
    w = 1 / np.array([((y == c) & (a == b)).sum() for c, b in zip(y, a, strict=True)])
    w /= w.sum()
    mean = w @ x
    deviation = np.sqrt(w @ (x - mean) ** 2)
    penalty = result.rebalanced["settings"]["penalty"]
    assert penalty in PENALTIES
    expected = Ridge(alpha=penalty).fit((x - mean) / deviation, 2.0 * np.eye(2)[y] - 1, sample_weight=w)
    weight, bias = head_of(result)
    np.testing.assert_allclose(weight, expected.coef_ / deviation, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(bias, expected.intercept_ - expected.coef_ / deviation @ mean, rtol=1e-3, atol=1e-4)
    assert result.rebalanced["settings"]["groups"] == federation.counts.sum(axis=0).tolist()


def test_without_labels_the_hidden_groups_are_found_and_the_worst_gains(federation: fd.Federation) -> None:
    hidden = rows_of_numbers.federation(attributes=False)
    result = fd.train(hidden, linear, rebalance=True, **QUICK)
    truth = fd.train(federation, linear, rebalance=True, rebalance_weights="true_groups", **QUICK)
    assert result.rebalanced["worst_group_accuracy"] > result.worst_group_accuracy + 0.1
    np.testing.assert_allclose(head_of(result)[0], head_of(truth)[0], atol=0.02)


@pytest.mark.parametrize("weights", ["samples", "classes"])
def test_fed3r_is_its_authors_ridge_regression(federation: fd.Federation, weights: str) -> None:
    """(Σ φφᵀ + 0.01 I) W = Σ φ onehot(y)ᵀ over all samples at once, φ = (x, 1), columns over their norm."""
    result = fd.train(federation, linear, rebalance=True, rebalance_head="fed3r", rebalance_weights=weights, **QUICK)
    x, y, _ = samples_of(federation)
    w = np.ones(len(y)) if weights == "samples" else len(y) / 2 / np.bincount(y)[y]
    phi = np.column_stack([x, np.ones(len(x))])
    solved = np.linalg.solve((phi.T * w) @ phi + 0.01 * np.eye(7), (phi.T * w) @ np.eye(2)[y]).T
    solved /= np.linalg.norm(solved[:, :6], axis=1, keepdims=True)
    weight, bias = head_of(result)
    np.testing.assert_allclose(weight, solved[:, :6], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(bias, solved[:, 6], rtol=1e-3, atol=1e-3)
    assert "group_sums" in result.rebalanced["traffic"]
    assert "attribute_triplet" not in result.rebalanced["traffic"]  # nobody need read an attribute


def test_ccvr_learns_gaussian_classes_as_well_as_samples_would_teach_it(federation: fd.Federation) -> None:
    """The head lies along Σ⁻¹(µ₁ − µ₀) where the classes' covariances are alike, as linear discriminants do."""
    made = rows_of_numbers.rows(gap=0.0, n=400)
    own = made["client"] >= 0
    plain = fd.Federation.from_arrays(made["x"][own], made["y"][own], made["client"][own], num_selected=4)
    result = fd.train(plain, linear, rebalance=True, rebalance_head="ccvr", rebalance_weights="classes", **QUICK)
    x, y = made["x"][own].astype(np.float64), made["y"][own]
    within = sum(np.cov(x[y == c].T) for c in (0, 1)) / 2
    fisher = np.linalg.solve(within, x[y == 1].mean(axis=0) - x[y == 0].mean(axis=0))
    weight = head_of(result)[0]
    along = weight[1] - weight[0]
    cosine = along @ fisher / np.linalg.norm(along) / np.linalg.norm(fisher)
    assert cosine > 0.99


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained without rebalancing, on a table that can be opened again."""
    folder = tmp_path_factory.mktemp("rebalancing")
    csv = rows_of_numbers.table(folder / "rows.csv")
    features = ",".join(f"f{i}" for i in range(6))
    fd.train(str(csv), selector="feddiverse", features=features, out=folder / "run", **QUICK)
    return folder / "run"


def copy_of(run: Path, to: Path) -> Path:
    to.mkdir()
    for file in run.iterdir():
        if not file.name.startswith("."):
            (to / file.name).write_bytes(file.read_bytes())
    return to


@pytest.mark.parametrize("reading", ["start", "final"])
def test_a_finished_run_gets_the_head_it_would_have_got_while_training(
    finished: Path, tmp_path: Path, reading: str
) -> None:
    run = copy_of(finished, tmp_path / "run")
    before = fd.load_run(run)
    result = fd.rebalance(run, rebalance_reading=reading, workers=2)
    settings = {key: value for key, value in before.config.items() if key not in ("rebalance", "rebalance_reading")}
    at_once = fd.train(**settings, rebalance=True, rebalance_reading=reading, workers=1)
    assert result.rebalanced["theta_sha256"] == at_once.rebalanced["theta_sha256"]
    assert result.rebalanced["worst_group_accuracy"] > result.worst_group_accuracy
    assert result.rebalanced["settings"]["reading"] == reading

    again = fd.load_run(run)
    assert again.rebalanced == result.rebalanced
    assert again.theta_sha256 == before.theta_sha256  # the trained head is still there
    assert (again.theta == before.theta).all()
    assert (again.rebalanced_theta != before.theta).any()
    assert json.loads((run / "result.json").read_text())["config"] == before.config
    assert "rebalanced worst group" in repr(again)
    x = rows_of_numbers.rows()["x"]
    assert (again.trained.predict(x) == before.predict(x)).all()
    assert (again.predict(x) != before.predict(x)).any()
    for head, expected in (("trained", before), ("rebalanced", result), ("", result)):
        model = fd.load_model(run, head=head)
        assert all((p == q).all() for p, q in zip(model.parameters(), expected.model.parameters(), strict=True))


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_the_command_says_both_and_models_are_exported_with_the_head_asked_for(finished: Path, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path / "run")
    failed = call("export", run, "--head", "rebalanced", "--out", tmp_path / "none.safetensors")
    assert isinstance(failed.exception, UserError)
    assert "has no rebalanced head: make one with 'feddiverse rebalance" in str(failed.exception)
    said = call("rebalance", run, "--workers", 1)
    assert said.exit_code == 0, said.output
    assert "Trained:" in said.stdout
    assert "Rebalanced: Worst-group accuracy" in said.stdout
    as_json = json.loads(call("rebalance", run, "--workers", 1, "--weights", "classes", "--json").stdout)
    assert as_json["rebalanced"]["settings"]["weights"] == "classes"
    assert as_json["rebalanced"]["bytes_up"] > 0
    for head in ("trained", "rebalanced"):
        assert call("export", run, "--head", head, "--out", tmp_path / f"{head}.safetensors").exit_code == 0
    trained, rebalanced = (fd.load_model(tmp_path / f"{head}.safetensors") for head in ("trained", "rebalanced"))
    differing = [n for n, p in trained.named_parameters() if (p != rebalanced.get_parameter(n)).any()]
    assert len(differing) == 2  # the last layer's weights and bias
    assert "one model" in str(call("predict", tmp_path / "trained.safetensors", "a.png", "--head", "trained").exception)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rounds": 9}, "has no setting 'rounds'"),
        ({"rebalance_weights": "all"}, "must be one of groups, classes, samples, auto, true_groups"),
        ({"engine": "nowhere"}, "nowhere"),
    ],
)
def test_mistakes_are_told_in_one_sentence(finished: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        fd.rebalance(finished, **change)


def test_what_cannot_be_rebalanced_is_told_and_nothing_is_lost(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no run in"):
        fd.rebalance(tmp_path / "nothing")
    run = copy_of(finished, tmp_path / "run")
    table = finished.parent / "rows.csv"
    text = table.read_text()
    table.write_text(text.replace("c0,train", "c1,train"))
    try:
        with pytest.raises(UserError, match="The data changed since this run began"):
            fd.rebalance(run, workers=1)
    finally:
        table.write_text(text)
    alike = "iid(clients=6,samples=300):digits"
    fd.train(alike, out=tmp_path / "alike", **{**QUICK, "rounds": 1, "num_selected": 2})
    with pytest.raises(RunError, match="No hidden attribute is seen"):
        fd.rebalance(tmp_path / "alike", workers=1, rebalance_weights="groups")
    for each in (run, tmp_path / "alike"):
        assert fd.load_run(each).rebalanced is None
        assert not (each / "rebalanced.safetensors").exists()


def test_training_further_leaves_no_stale_head_behind(finished: Path, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path / "run")
    fd.rebalance(run, workers=1)
    settings = {**fd.load_run(run).config, "rounds": 4}
    further = fd.train(**settings, out=run, resume=True, workers=1)
    assert further.rebalanced is None
    assert not (run / "rebalanced.safetensors").exists()


def test_a_result_never_speaks_of_weights_that_are_not_there(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, or the process killed, at each of the steps in which a second head replaces a first."""
    from feddiverse import files

    write, first = files.write, copy_of(finished, tmp_path / "first")
    fd.rebalance(first, workers=1)
    for number in range(1, 4):
        run = copy_of(first, tmp_path / f"run{number}")
        left = [number]

        def breaking(path: Path, content: bytes, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise OSError("killed")
            write(path, content)

        monkeypatch.setattr(files, "write", breaking)
        with pytest.raises(OSError, match="killed"):
            fd.rebalance(run, rebalance_head="fed3r", workers=1)
        monkeypatch.setattr(files, "write", write)
        again = fd.load_run(run)
        assert (again.rebalanced is None) == (again.rebalanced_theta is None)
        if number == 1:
            assert again.rebalanced["settings"]["head"] == "ridge"


def test_rounds_are_evaluated_with_a_rebalanced_head_too_and_training_is_none_the_wiser(
    federation: fd.Federation,
) -> None:
    plain = fd.train(federation, linear, **{**QUICK, "rounds": 4})
    both = fd.train(federation, linear, **{**QUICK, "rounds": 4}, evaluate_rebalanced_every=2)
    assert both.theta_sha256 == plain.theta_sha256
    assert both.config["rebalance"] is True
    assert [record["rebalanced"] is not None for record in both.history] == [False, True, False, False]
    found = both.history[1]["rebalanced"]
    assert set(found) == set(TESTED)
    assert "group_sums" in both.history[1]["traffic"]
    assert both.history[1]["bytes_up"] > both.history[2]["bytes_up"]
    short = fd.train(federation, linear, **{**QUICK, "rounds": 2}, rebalance=True)
    assert {key: short.rebalanced[key] for key in found} == found
    with pytest.raises(UserError, match="set rebalance to true"):
        fd.train(federation, linear, **QUICK, evaluate_rebalanced_every=2, rebalance=False)


def test_the_same_bits_for_any_number_of_workers_and_after_a_kill_between_reading_and_solving(
    tmp_path: Path, federation: fd.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**QUICK, "draw": "balanced", "rebalance": True, "selector": "feddiverse"}
    whole = fd.train(federation, linear, **{**settings, "workers": 2})

    class Killed(LocalEngine):
        def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
            if isinstance(task, GroupSums):
                raise KeyboardInterrupt
            return super().ask(task, theta, clients)

    def killed(run: Any, workers: int, device: str) -> LocalEngine:
        return Killed(run.federation, run.spec, workers=workers, device=device)

    with pytest.raises(KeyboardInterrupt):
        fd.train(federation, linear, out=tmp_path / "run", engine=killed, **settings)
    again = fd.train(federation, linear, out=tmp_path / "run", **settings)
    assert again.theta_sha256 == whole.theta_sha256
    assert again.rebalanced["theta_sha256"] == whole.rebalanced["theta_sha256"]


class Liars(LocalEngine):
    """Clients whose answers to questions of one kind are changed."""

    kind: type[Task] = GroupSums
    lies: dict[int, Any] = {}  # noqa: RUF012

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        for reply in super().ask(task, theta, clients):
            lie = self.lies.get(reply.client) if type(task) is self.kind else None
            yield reply if lie is None else lie(reply)


def with_lies(kind: type[Task], lies: dict[int, Any]) -> Any:
    made = type("Made", (Liars,), {"kind": kind, "lies": lies})

    def opener(run: Any, workers: int, device: str) -> LocalEngine:
        return made(run.federation, run.spec, workers=workers, device=device)

    return opener


def changed(change: Any) -> Any:
    return lambda reply: replace(reply, vector=change(reply.vector.copy()).astype(np.float32))


def not_semidefinite(vector: Vector) -> Vector:
    vector[2 + 2 * 6] -= 1000 * abs(vector[2 + 2 * 6])  # Σ w x₀², which is no less than zero
    return vector


LIES = {
    "gone": lambda reply: Reply(reply.client, failure="it is gone"),
    "not finite": changed(lambda v: v * np.nan),
    "other length": changed(lambda v: v[:-1]),
    "not positive semi-definite": changed(not_semidefinite),
    "other weights": changed(lambda v: v * 7),
}
SAID = {"gone": "it is gone", "not finite": "not all finite", "other length": "numbers where"}


@pytest.mark.parametrize("lie", LIES)
def test_a_client_whose_sums_are_of_no_use_is_left_out_by_name_and_groups_stay_equal(
    federation: fd.Federation, lie: str
) -> None:
    """As if it had never had samples: the others' weights do not count on it."""
    settings = {**QUICK, "rebalance": True, "rebalance_weights": "true_groups"}
    result = fd.train(federation, linear, engine=with_lies(GroupSums, {3: LIES[lie]}), **settings)
    counts = federation.counts.sum(axis=0) - federation.counts[3]
    assert result.rebalanced["settings"]["clients"] == 11
    assert result.rebalanced["settings"]["groups"] == counts.tolist()
    [warning] = [w for w in result.summary["warnings"] if "group_sums" in w]
    assert "client 3: " in warning
    assert SAID.get(lie, lie) in warning
    x, y, a = samples_of(federation)
    theirs = np.repeat(np.arange(12), federation.counts.sum(axis=(1, 2))) != 3
    x, y, a = x[theirs], y[theirs], a[theirs]
    w = 1 / counts[y, a]
    w /= w.sum()
    mean = w @ x
    deviation = np.sqrt(w @ (x - mean) ** 2)
    penalty = result.rebalanced["settings"]["penalty"]
    expected = Ridge(alpha=penalty).fit((x - mean) / deviation, 2.0 * np.eye(2)[y] - 1, sample_weight=w)
    np.testing.assert_allclose(head_of(result)[0], expected.coef_ / deviation, rtol=1e-3, atol=1e-5)


def test_errors_of_no_use_leave_the_choice_of_the_penalty_to_others(federation: fd.Federation) -> None:
    lies = {3: changed(lambda v: -1 - v), 4: LIES["gone"]}
    result = fd.train(federation, linear, engine=with_lies(HeadErrors, lies), rebalance=True, **QUICK)
    assert result.rebalanced["settings"]["clients"] == 12
    [warning] = [w for w in result.summary["warnings"] if "head_errors" in w]
    assert "(3, 4)" in warning


def test_where_nobody_answers_the_trained_head_stays_and_it_is_said(federation: fd.Federation) -> None:
    everyone = dict.fromkeys(range(12), LIES["gone"])
    result = fd.train(federation, linear, engine=with_lies(GroupSums, everyone), rebalance=True, **QUICK)
    assert result.rebalanced is None
    assert "No client sent usable sums: the head stays as it was trained." in result.summary["warnings"]
    silent = with_lies(FeatureMoments, everyone)
    result = fd.train(federation, linear, engine=silent, rebalance=True, **QUICK)
    assert result.rebalanced is None
    assert "No client could be asked for its groups: the head stays as it was trained." in result.summary["warnings"]


def test_a_client_that_comes_late_is_read_and_counts(federation: fd.Federation) -> None:
    class Late(LocalEngine):
        rounds_seen = 0

        @property
        def clients(self) -> dict[int, int]:
            there = dict(super().clients)
            if self.rounds_seen < 3:
                there.pop(0)
            return there

        def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
            self.rounds_seen = max(self.rounds_seen, task.round)
            return super().ask(task, theta, clients)

    def late(run: Any, workers: int, device: str) -> LocalEngine:
        return Late(run.federation, run.spec, workers=workers, device=device)

    settings = {**QUICK, "rebalance": True, "draw": "balanced", "rounds": 4}
    result = fd.train(federation, linear, engine=late, **settings)
    assert result.rebalanced["settings"]["clients"] == 12
    assert np.sum(result.rebalanced["settings"]["groups"]) > 0.95 * federation.counts.sum()


def test_more_than_two_classes_and_values() -> None:
    made = rows_of_numbers.federation("three", num_classes=3)
    result = fd.train(made, linear, rebalance=True, **QUICK)
    assert np.shape(result.rebalanced["settings"]["groups"]) == (3, 2)
    rng = np.random.default_rng(0)
    n, k = 1600, 16
    y, a, client = rng.integers(0, 2, n), rng.integers(0, 3, n), np.repeat(np.arange(k), n // k)
    favourite = client % 3
    a = np.where(rng.random(n) < 0.7, favourite, a)
    x = rng.normal(size=(n, 6))
    x[:, 0] += 2 * y
    x[np.arange(n), 1 + a] += 10
    values = fd.Federation.from_arrays(x, y, client, attribute=a, test=(x, y, a), name="values")
    result = fd.train(values, linear, rebalance=True, **QUICK)
    found = np.sort(np.array(result.rebalanced["settings"]["groups"]).sum(axis=0))
    np.testing.assert_allclose(found, np.sort(np.bincount(a)), rtol=0.05)


def test_where_no_attribute_is_seen_it_is_said_and_a_run_between_rounds_goes_on() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(600, 6)), rng.integers(0, 2, 600)
    alike = fd.Federation.from_arrays(x, y, np.arange(600) % 10, test=(x, y), name="alike")
    settings = {**QUICK, "rounds": 4, "rebalance_weights": "groups"}
    result = fd.train(alike, linear, **settings, evaluate_rebalanced_every=2)
    assert result.rebalanced is None
    assert sum(NOT_SEEN in record["warnings"] for record in result.history) == 1
    assert [record["rebalanced"] for record in result.history] == [None] * 4


def test_auto_balances_hidden_groups_where_they_are_seen(federation: fd.Federation) -> None:
    settings = {**QUICK, "draw": "balanced", "rebalance": True}
    groups = fd.train(federation, linear, rebalance_weights="groups", **settings)
    auto = fd.train(federation, linear, **settings)
    assert auto.theta_sha256 == groups.theta_sha256
    assert auto.rebalanced["theta_sha256"] == groups.rebalanced["theta_sha256"]


def test_auto_balances_classes_where_no_attribute_is_seen() -> None:
    rng = np.random.default_rng(0)
    y = (rng.random(600) < 0.2).astype(int)
    x = rng.normal(size=(600, 6)) + y[:, None]
    uneven = fd.Federation.from_arrays(x, y, np.arange(600) % 10, test=(x, y), name="uneven")
    classes = fd.train(uneven, linear, rebalance=True, rebalance_weights="classes", **QUICK)
    auto = fd.train(uneven, linear, rebalance=True, **QUICK)
    assert auto.rebalanced["theta_sha256"] == classes.rebalanced["theta_sha256"]
    assert auto.rebalanced["settings"]["groups"] == [[float((y == 0).sum())], [float((y == 1).sum())]]
    assert CLASSES_INSTEAD in auto.history[0]["warnings"]
    assert NOT_SEEN not in auto.history[0]["warnings"]
    drawn = fd.train(uneven, linear, recipe="auto", **QUICK)
    assert drawn.rebalanced["settings"]["weights"] == "auto"
    assert drawn.theta_sha256 != auto.theta_sha256


def test_selectors_that_read_attributes_too_do_not_change_what_clients_remember(federation: fd.Federation) -> None:
    """FedDiverse's own reading, of a trained model, may call the values otherwise."""
    seen: list[tuple[bool, bool]] = []

    def watching(run: Any, workers: int, device: str) -> LocalEngine:
        engine = open_engine(run, workers, device)
        ask = engine.ask

        def watched(task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
            if type(task).__name__ == "AttributeTriplet":
                seen.append((task.remember, bool((theta == run.initial_theta()).all())))
            return ask(task, theta, clients)

        engine.ask = watched
        return engine

    fd.train(federation, linear, "feddiverse", draw="balanced", engine=watching, **QUICK)
    assert sorted(seen) == [(False, False), (True, True)]


@pytest.mark.parametrize("gone", [False, True])
def test_secure_sums_give_the_same_head_though_nobody_sees_a_client_s_part(
    federation: fd.Federation, gone: bool
) -> None:
    class Gone(LocalEngine):
        def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
            for reply in super().ask(task, theta, clients):
                assert reply.vector is None or not isinstance(task, GroupSums)  # masked words only
                away = gone and isinstance(task, GroupSums) and reply.client == 3
                yield Reply(3, failure="it is gone") if away else reply

    def opener(run: Any, workers: int, device: str) -> LocalEngine:
        return Gone(run.federation, run.spec, workers=workers, device=device)

    settings = {**QUICK, "rebalance": True, "rebalance_weights": "true_groups"}
    plain = fd.train(federation, linear, engine=with_lies(GroupSums, {3: LIES["gone"]} if gone else {}), **settings)
    secure = fd.train(federation, linear, engine=opener, secure_sums=True, **settings)
    assert secure.rebalanced["settings"] == plain.rebalanced["settings"]
    assert secure.rebalanced["settings"]["clients"] == 12 - gone
    np.testing.assert_allclose(head_of(secure)[0], head_of(plain)[0], rtol=1e-4, atol=1e-6)


def features_first(class_feature: float) -> nn.Module:
    """Six features, of which the first tells the class, scaled by `class_feature`; then the head."""
    module = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 2))
    weight = torch.eye(6)
    weight[0, 0] = class_feature
    module[0].weight.data = weight
    return module


def set_class_feature(value: float) -> Any:
    def change(theta: Vector) -> Vector:
        theta[0] = value
        return theta

    return with_lies(Train, dict.fromkeys(range(12), changed(change)))


@pytest.mark.parametrize(("before", "after", "better"), [(1.0, 0.0, "start"), (0.0, 1.0, "trained")])
def test_samples_set_aside_tell_whether_training_made_the_features_better(
    federation: fd.Federation, before: float, after: float, better: str, tmp_path: Path
) -> None:
    module, settings = features_first(before), {**QUICK, "aggregator": "fedavg", "recipe": "balanced"}
    result = fd.train(federation, module, engine=set_class_feature(after), out=tmp_path / "run", **settings)
    how = result.rebalanced["settings"]
    assert how["body"] == better
    errors = how["body_errors"]
    assert (errors["start"] < errors["trained"]) == (better == "start")
    assert result.rebalanced_theta is not None
    assert result.theta[0] == after  # the trained model stays what it was
    assert result.rebalanced_theta[0] == max(before, after)  # its features are the better ones
    assert result.rebalanced["worst_group_accuracy"] > 0.5  # chance without the class feature
    again = fd.rebalance(tmp_path / "run", federation=federation, model=module, workers=1)
    assert again.rebalanced["theta_sha256"] == result.rebalanced["theta_sha256"]


def test_samples_set_aside_are_trained_on_once_it_is_decided(federation: fd.Federation) -> None:
    asked: list[float] = []

    class Watched(LocalEngine):
        def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
            if type(task) is Train:
                asked.append(task.set_aside)
            return super().ask(task, theta, clients)

    def watched(run: Any, workers: int, device: str) -> LocalEngine:
        return Watched(run.federation, run.spec, workers=workers, device=device)

    settings = {**QUICK, "recipe": "balanced", "rounds": 5, "evaluate_every": 5}
    fd.train(federation, linear, engine=watched, **settings)
    assert asked == [0.2] * 4 + [0.0]
