"""The library's contract: objects in, a result out; the command line is a layer on the same functions."""

import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import feddiverse as fd
from feddiverse.cli import app
from feddiverse.cli.model import predict as predict_command

QUICK = {"rounds": 2, "num_selected": 2, "workers": 1, "evaluate_every": 1}


@pytest.fixture(scope="module")
def digits() -> fd.Federation:
    return fd.federation("digits-gsc", seed=0)


@pytest.fixture(scope="module")
def result(digits: fd.Federation) -> fd.Result:
    return fd.train(digits, model="cnn", selector="feddiverse", aggregator="fedavgm", seed=0, out=None, **QUICK)


def test_a_result_has_what_the_contract_says(result: fd.Result, digits: fd.Federation, tmp_path: Path) -> None:
    assert 0 <= result.worst_group_accuracy <= result.accuracy <= 1
    assert {(group["class"], group["attribute"]) for group in result.groups} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert len(result.theta_sha256) == 64
    assert [record["round"] for record in result.history] == [1, 2]
    assert list(result.to_pandas()["round"]) == [1, 2]
    assert isinstance(result.model, nn.Module)
    assert not result.model.training
    test = digits.test()
    right = result.predict(test.x) == test.y
    groups = {(g["class"], g["attribute"]): g["correct"] for g in result.groups}
    assert all(abs(right[(test.y == y) & (test.a == a)].sum() - n) <= 1 for (y, a), n in groups.items())
    assert len(result.plot().axes[0].get_lines()) == 4 + 2  # the groups, all, and the worst
    assert result.plot()._repr_png_().startswith(b"\x89PNG")  # what a notebook shows, with pyplot or without
    assert "worst group" in repr(result)


def test_predictions_survive_saving(result: fd.Result, digits: fd.Federation, tmp_path: Path) -> None:
    path = result.save(tmp_path / "model.safetensors")
    x = digits.test(0, 40).x
    model = fd.load_model(path)
    pixels = (torch.from_numpy(x).float() / 255 - 0.1307) / 0.3081
    with torch.no_grad():
        assert model(pixels).argmax(1).tolist() == result.predict(x).tolist()


def test_a_run_directory_gives_the_same_result_back(digits: fd.Federation, tmp_path: Path) -> None:
    made = fd.train(digits, selector="uniform", out=str(tmp_path / "run"), seed=3, **QUICK)
    read = fd.load_run(tmp_path / "run")
    assert read.theta_sha256 == made.theta_sha256
    assert read.history == made.history
    assert read.predict(digits.test(0, 5).x).tolist() == made.predict(digits.test(0, 5).x).tolist()
    assert isinstance(fd.load_model(tmp_path / "run"), nn.Module)


def test_python_and_the_command_line_give_the_same_bits(tmp_path: Path) -> None:
    options = ["--federation", "digits-gsc", "--selector", "feddiverse", "--rounds", "2", "--clients-per-round", "2"]
    command = CliRunner().invoke(
        app, ["run", *options, "--seed", "5", "--workers", "1", "--out", str(tmp_path / "a"), "--json"]
    )
    assert command.exit_code == 0, command.output
    by_name = fd.train("digits-gsc", selector="feddiverse", rounds=2, num_selected=2, seed=5, workers=2)
    by_object = fd.train(fd.federation("digits-gsc", seed=5), selector="feddiverse", rounds=2, num_selected=2, seed=5)
    digests = {json.loads(command.stdout)["theta_sha256"], by_name.theta_sha256, by_object.theta_sha256}
    assert len(digests) == 1


def test_resuming_with_more_rounds_trains_further_to_the_same_bits(tmp_path: Path) -> None:
    settings = {"selector": "feddiverse", "num_selected": 2, "workers": 1, "evaluate_every": 2}
    fd.train("digits-gsc", rounds=2, out=tmp_path / "run", **settings)
    further = fd.train("digits-gsc", rounds=4, out=tmp_path / "run", resume=True, **settings)
    whole = fd.train("digits-gsc", rounds=4, **settings)
    assert further.theta_sha256 == whole.theta_sha256
    assert len(further.history) == 4
    with pytest.raises(fd.UserError, match="another config: rounds"):
        fd.train("digits-gsc", rounds=3, out=tmp_path / "run", resume=True, **settings)


def test_a_callback_ends_the_run_with_a_result(tmp_path: Path) -> None:
    stopped = fd.train(
        "digits-gsc", rounds=9, num_selected=2, workers=1, evaluate_every=9, out=tmp_path / "run",
        on_round=lambda record: record["round"] < 2,
    )  # fmt: skip
    assert len(stopped.history) == 2
    assert stopped.accuracy is not None  # though round 2 was not to be evaluated
    assert stopped.summary["stopped"]
    assert fd.load_run(tmp_path / "run").history == stopped.history


def test_rounds_are_logged_and_nothing_is_printed(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "feddiverse"):
        fd.train("digits-gsc", **QUICK)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["round 1 of 2", "round 2 of 2"]
    assert capsys.readouterr() == ("", "")


class Rotating(fd.Selector):
    """Everyone in turn, from `first` on; ids as NumPy gives them."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def choose(self, round, k, clients, ask, rng):
        ids = np.array(sorted(clients))
        return ids[(np.arange(k) + self.first + k * round) % len(ids)]


class Shrinking(fd.Aggregator):
    def __init__(self, factor: float = 0.5) -> None:
        self.factor = factor

    def move(self, update):
        return self.factor * update


@pytest.mark.parametrize("selector", [Rotating, Rotating(0), f"{__name__}:Rotating"])
def test_own_parts_are_names_classes_or_objects(selector: object) -> None:
    assert fd.train("digits-gsc", selector=selector, **QUICK).history[0]["selected"] == [2, 3]


def test_own_parameters_reach_own_parts_and_are_checked(tmp_path: Path) -> None:
    name = f"{__name__}:Rotating"
    made = fd.train("digits-gsc", selector={"name": name, "first": 5}, out=tmp_path / "run", **QUICK)
    assert made.history[0]["selected"] == [7, 8]
    again = fd.train("digits-gsc", selector=name, **{"selector.first": 5}, **QUICK)
    assert again.theta_sha256 == made.theta_sha256
    assert made.config["selector"] == {"name": name, "first": 5}
    with pytest.raises(fd.UserError, match=r"no parameter 'frist' \(did you mean 'first'"):
        fd.train("digits-gsc", selector=name, **{"selector.frist": 5}, **QUICK)
    halved = fd.train("digits-gsc", aggregator=Shrinking, **QUICK)
    assert halved.theta_sha256 != fd.train("digits-gsc", aggregator="fedavg", **QUICK).theta_sha256
    same = fd.train("digits-gsc", aggregator=Shrinking(1.0), **QUICK)
    assert same.theta_sha256 == fd.train("digits-gsc", aggregator="fedavg", **QUICK).theta_sha256


class Alike(fd.Estimator):
    """The same triplet for everybody."""

    def __init__(self, value: float = 0.5) -> None:
        self.value = value

    def estimate(self, round, clients, ask):
        return {client: np.full(3, self.value) for client in clients}


def test_the_constructor_of_an_own_estimator_need_not_call_ours(tmp_path: Path) -> None:
    made = fd.train("digits-gsc", selector="feddiverse", estimator=Alike(0.25), out=tmp_path / "run", **QUICK)
    assert set(map(tuple, made.triplets["triplets"].values())) == {(0.25, 0.25, 0.25)}


def test_an_object_is_not_changed_by_a_run() -> None:
    class Counting(fd.Selector):
        calls = 0

        def choose(self, round, k, clients, ask, rng):
            self.calls += 1
            return sorted(clients)[:k]

    selector = Counting()
    first, second = (fd.train("digits-gsc", selector=selector, **QUICK).theta_sha256 for _ in range(2))
    assert first == second
    assert selector.calls == 0


def blobs(num: int = 240) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two classes on a line, at six clients."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, num)
    return (rng.normal(size=(num, 4)) + 3 * (2 * y - 1)[:, None]).astype(np.float32), y, rng.integers(0, 6, num)


def seeded_module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize(
    "model",
    [
        "mlp",
        seeded_module(),
        lambda num_classes, shape: nn.Sequential(nn.Flatten(), nn.Linear(shape[0], num_classes)),
    ],
)
def test_arrays_and_any_model_go_in(model: object) -> None:
    x, y, client = blobs()
    labels = np.array(["no", "yes"])[y]
    fed = fd.Federation.from_arrays(x, labels, client, test=(x[:60], labels[:60]))
    made = fd.train(fed, model=model, selector="feddiverse", rounds=6, num_selected=3, lr=0.1, aggregator="fedavg")
    assert made.accuracy > 0.9
    assert set(made.predict(x[:60])) == {"no", "yes"}
    assert (made.predict(x[:60]) == labels[:60]).mean() == pytest.approx(made.accuracy)


def test_grey_and_channels_last_pictures_go_in() -> None:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 80)
    grey = (rng.integers(0, 60, (80, 12, 12)) + 120 * y[:, None, None]).astype(np.uint8)
    for x in (grey, grey[..., None], np.repeat(grey[..., None], 3, axis=3)):
        fed = fd.Federation.from_arrays(x, y, rng.integers(0, 4, 80), test=(x, y))
        made = fd.train(fed, model="cnn", rounds=4, num_selected=2, aggregator="fedavg")
        assert made.accuracy > 0.9
        assert made.predict(x[:3]).shape == (3,)


def test_without_a_test_set_nothing_is_evaluated() -> None:
    x, y, client = blobs()
    made = fd.train(fd.Federation.from_arrays(x, y, client), model="mlp", **QUICK)
    assert made.accuracy is None
    assert made.worst_group_accuracy is None
    assert made.groups == []


def test_a_run_of_arrays_goes_on_in_python_only(tmp_path: Path) -> None:
    x, y, client = blobs()
    fed = fd.Federation.from_arrays(x, y, client, test=(x, y))
    whole = fd.train(fed, model="mlp", rounds=3, num_selected=2, out=tmp_path / "whole")
    fd.train(fed, model="mlp", rounds=2, num_selected=2, out=tmp_path / "run")
    assert fd.train(fed, model="mlp", rounds=3, num_selected=2, out=tmp_path / "run", resume=True).theta_sha256 == (
        whole.theta_sha256
    )
    other = fd.Federation.from_arrays(x + 1, y, client, test=(x, y))
    with pytest.raises(fd.UserError, match="data changed"):
        fd.train(other, model="mlp", rounds=4, num_selected=2, out=tmp_path / "run", resume=True)
    command = CliRunner().invoke(app, ["run", "--resume", str(tmp_path / "run"), "--rounds", "4"])
    assert "arrays in memory" in str(command.exception)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"x": np.zeros(3)}, r"x must have the shape \[n"),
        ({"x": np.full((3, 2), np.nan)}, "not finite in row 0"),
        ({"y": [0, 1]}, "y must have one value a sample"),
        ({"client": [[0], [1], [2]]}, "client must have one value a sample"),
        ({"test": (np.zeros((1, 2)), [7])}, "class '7', which no training sample has"),
        ({"test": (np.zeros((1, 3)), [0])}, r"the shape \(3,\)"),
        ({"attribute": [0, 1, 0], "test": (np.zeros((1, 2)), [0])}, "test samples have none"),
    ],
)
def test_wrong_arrays_are_told_in_a_sentence(arguments: dict[str, object], says: str) -> None:
    right = {"x": np.zeros((3, 2)), "y": [0, 1, 0], "client": [0, 0, 1]}
    with pytest.raises(fd.UserError, match=says):
        fd.Federation.from_arrays(**{**right, **arguments})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"learning_rate": 0.1}, "did you mean 'lr'"),
        ({"num_selected": 25}, "digits-gsc has 24 clients"),
        ({"selector": "fedivrse"}, "did you mean 'feddiverse'"),
        ({"model": "mobilnet"}, "did you mean 'mobilenet'"),
        ({"engine": "lokal"}, "did you mean 'local'"),
        ({"selector": "json:loads"}, "no subclass of feddiverse.Selector"),
        ({"aggregator": "nowhere:X"}, "cannot be imported"),
        ({"resume": True}, "Only a run in a directory"),
    ],
)
def test_wrong_settings_are_told_before_anything_starts(settings: dict[str, object], says: str) -> None:
    with pytest.raises(fd.UserError, match=says):
        fd.train("digits-gsc", **{"rounds": 1, **settings})


def test_the_current_folder_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_file_of_mine.py").write_text(
        "import feddiverse\n\n\nclass First(feddiverse.Selector):\n"
        "    def choose(self, round, k, clients, ask, rng):\n        return sorted(clients)[:k]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    made = fd.train("digits-gsc", selector="a_file_of_mine:First", **QUICK)
    assert made.history[0]["selected"] == [0, 1]


def test_predict_command_gives_what_the_result_predicts(
    result: fd.Result, digits: fd.Federation, tmp_path: Path
) -> None:
    x = digits.test(0, 6).x
    pictures = []
    for number, picture in enumerate(x):
        pictures.append(tmp_path / f"{number}.png")
        Image.fromarray(picture.transpose(1, 2, 0)).save(pictures[-1])
    path = result.save(tmp_path / "model.safetensors")
    command = CliRunner().invoke(app, ["predict", str(path), *map(str, pictures), "--json"])
    assert command.exit_code == 0, command.output
    names = [result.about["class_names"][y] for y in result.predict(x)]
    assert [row["class"] for row in json.loads(command.stdout)] == names
    text = CliRunner().invoke(app, ["predict", str(path), str(pictures[0]), "--csv"])
    assert text.stdout.splitlines()[0] == "picture,class,probability"
    with pytest.raises(fd.UserError, match="There is no picture"):
        predict_command(path, [tmp_path / "nosuch.png"], head="", csv_=False, json_=False)


def test_an_exported_model_and_a_run_are_checkpoints_to_start_from(tmp_path: Path) -> None:
    fd.train("digits-gsc", out=tmp_path / "run", **QUICK)
    command = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--out", str(tmp_path / "m.safetensors")])
    assert command.exit_code == 0, command.output
    starts = [tmp_path / "run", tmp_path / "m.safetensors", tmp_path / "run" / "checkpoint.safetensors"]
    further = [fd.train("digits-gsc", checkpoint=start, seed=9, **QUICK).theta_sha256 for start in starts]
    assert further == further[:1] * 3
    assert further[0] != fd.train("digits-gsc", seed=9, **QUICK).theta_sha256


THEIRS = """
import numpy as np
from torch import nn
import feddiverse as fd
from feddiverse.data.digits import open_digits
from feddiverse.splits import Split

class Largest(fd.Selector):
    def __init__(self, skip=0):
        self.skip = skip
    def choose(self, round, k, clients, ask, rng):
        return sorted(clients, key=lambda client: -clients[client])[self.skip:][:k]

class Half(fd.Aggregator):
    def move(self, update):
        return update / 2

class Equal(fd.Estimator):
    def estimate(self, round, clients, ask):
        return {client: [0.2, 0.3, 0.5] for client in clients}

def flat(num_classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), num_classes))

def alike(rng, clients=4):
    return Split(np.full((clients, 2, 2), 5))

def noise(num_classes, num_attributes, seed):
    return open_digits(num_classes, num_attributes, seed)
"""
ANNOUNCED = {
    "selector": "largest = theirs:Largest", "aggregator": "half = theirs:Half", "estimator": "equal = theirs:Equal",
    "model": "flat = theirs:flat", "split": "alike = theirs:alike", "source": "noise = theirs:noise",
}  # fmt: skip


def test_a_package_announces_its_parts_by_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs.py").write_text(THEIRS)
    about = tmp_path / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "".join(f"[feddiverse.{kind}s]\n{line}\n" for kind, line in ANNOUNCED.items())
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = fd.train(
        "alike(clients=6):noise", "flat", {"name": "largest", "skip": 2}, "half",
        rounds=1, num_selected=2, pretraining_rounds=0, workers=1,
    )  # fmt: skip
    assert made.history[0]["selected"] == [2, 3]
    assert isinstance(made.model[1], nn.Linear)
    estimated = fd.train("alike:noise", "flat", "feddiverse", estimator="equal", rounds=2, num_selected=2, workers=1)
    assert estimated.triplets["triplets"]["3"] == [0.2, 0.3, 0.5]
    with pytest.raises(fd.UserError, match="There is no selector 'largets' \\(did you mean 'largest'"):
        fd.train("digits-gsc", selector="largets")
    with pytest.raises(fd.UserError, match="has no parameter 'skips' \\(did you mean 'skip'"):
        fd.train("digits-gsc", selector={"name": "largest", "skips": 2})
