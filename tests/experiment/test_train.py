"""`fd.train`: names, classes or objects; in memory or in a directory; trained further, stopped, read again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_engine import NoiseEngine
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn

import feddiverse as fd
from feddiverse.errors import RunError, UserError
from feddiverse.estimation.base import Oracle
from feddiverse.experiment.config import Config
from feddiverse.experiment.opening import from_arguments, open_run
from feddiverse.experiment.run_directory import read_config
from feddiverse.experiment.train import carry_out
from feddiverse.models import ModelSpec, build
from feddiverse.selection.group_balance import GroupBalance
from feddiverse.server.aggregation import FedAdam, FedAvg, FedNova

QUICK: dict[str, Any] = {"rounds": 3, "evaluate_every": 1, "num_selected": 2, "engine": NoiseEngine}


class Own(fd.Selector):
    """Takes the first clients, from the `skip`-th on."""

    def __init__(self, skip: int = 0) -> None:
        self.skip = skip

    def choose(self, round, k, clients, ask, rng):
        return sorted(clients)[self.skip : self.skip + k]


class Undecided(fd.Selector):
    """Lacks `choose`."""


class Half(FedAvg):
    def move(self, update):
        return 0.5 * update


def wide(num_classes: int, shape: tuple[int, ...], width: int = 2) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), width), nn.Linear(width, num_classes))


def made_here(num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), num_classes))


def test_a_name_a_class_and_an_object_are_the_same() -> None:
    by_class, by_object = (fd.train(selector=part, **QUICK) for part in (Own, Own()))
    by_name = fd.train(selector=f"{__name__}:Own", **QUICK)
    assert by_class.theta_sha256 == by_object.theta_sha256 == by_name.theta_sha256
    assert by_name.history[0]["selected"] == [0, 1]
    skipping = fd.train(selector={"name": f"{__name__}:Own", "skip": 5}, **QUICK)
    assert skipping.history[0]["selected"] == fd.train(selector=Own(5), **QUICK).history[0]["selected"] == [5, 6]
    assert skipping.config["selector"] == {"name": f"{__name__}:Own", "skip": 5}


def test_our_classes_and_objects_have_the_defaults_of_their_names() -> None:
    """Several defaults depend on names: FedAdam's step, FedNova's weights, FedDiverse's pre-training."""
    for parts, names in (
        ({"aggregator": FedAdam}, {"aggregator": "fedadam"}),
        ({"aggregator": FedNova()}, {"aggregator": "fednova"}),
        ({"selector": GroupBalance, "estimator": Oracle}, {"selector": "group_balance", "estimator": "oracle"}),
    ):
        ours, named = (from_arguments("digits-gsc", given, {}, "")[0].plain() for given in (parts, names))
        assert {key: str(value).removesuffix(" (object)") for key, value in ours.items()} == {
            key: str(value) for key, value in named.items()
        }


def test_a_run_of_objects_goes_on_with_objects_only(tmp_path: Path) -> None:
    """A config can name an object's class, but not what was given to its constructor."""
    run = tmp_path / "run"
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 2))
    settings = {**QUICK, "selector": Own(5), "model": module}
    first = fd.train(out=run, **settings)
    assert first.config["selector"] == f"{__name__}:Own (object)"
    (run / "result.json").unlink()  # as if it had not ended
    with pytest.raises(UserError, match=f"The selector {__name__}:Own was an object made in Python"):
        carry_out(read_config(run), out=run, engine=NoiseEngine)
    assert fd.train(out=run, **settings).theta_sha256 == first.theta_sha256

    x = fd.federation("digits-gsc").test(0, 5).x
    with pytest.raises(UserError, match="give it again there, with model="):
        fd.load_run(run).predict(x)
    again = fd.load_run(run, module)
    assert again.predict(x).tolist() == first.predict(x).tolist()
    assert list(again.model.state_dict()) == list(module.state_dict()), "its own names, in files too"
    assert again.model.state_dict()["1.weight"].numpy().tobytes() in again.save(tmp_path / "m.safetensors").read_bytes()


def test_an_open_federation_says_how_it_was_opened() -> None:
    federation = fd.federation("digits-gsc", seed=np.int64(3))
    by_object = fd.train(federation, **QUICK)
    assert by_object.theta_sha256 == fd.train("digits-gsc", seed=3, **QUICK).theta_sha256
    assert by_object.config["seed"] == 3
    assert fd.train(federation, seed=4, **QUICK).config["seed"] == 4
    assert repr(federation) == "Federation(digits-gsc: 24 clients, 3,360 samples, 2 classes, 2,800 test samples)"


def test_a_models_own_parameter_reaches_it_and_is_kept(tmp_path: Path) -> None:
    model = {"name": f"{__name__}:wide", "width": 6}
    trained = fd.train(model=model, out=tmp_path / "run", **QUICK)
    assert trained.config["model"] == model
    assert fd.load_model(tmp_path / "run")[1].out_features == 6
    assert fd.load_model(trained.save(tmp_path / "m.safetensors"))[1].out_features == 6
    with pytest.raises(UserError, match=r"has no parameter 'widht' .did you mean 'width'"):
        fd.train(model={**model, "widht": 3}, **QUICK)


def test_any_module_trains_where_nobody_asks_for_its_features() -> None:
    convolution = nn.Sequential(nn.Conv2d(3, 2, 28), nn.Flatten())
    assert type(fd.train(model=convolution, **QUICK).model) is nn.Sequential
    spec = ModelSpec("mine", 2, (3, 28, 28), (0.5,) * 3, (0.5,) * 3, factory=convolution)
    with pytest.raises(UserError, match=r"mine has no Linear layer, whose input estimators look at"):
        build(spec).module.features(torch.zeros(1, 3, 28, 28))


@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_pretraining_weighs_clients_as_the_run_does(weighting: str) -> None:
    assert open_run(Config(weighting=weighting)).plan.pretraining.weighting == weighting


def test_ones_own_aggregator_moves_half_as_far() -> None:
    start = open_run(Config()).initial_theta()
    whole, half = (fd.train(aggregator=part, **{**QUICK, "rounds": 1}).theta - start for part in ("fedavg", Half))
    assert np.abs(whole).max() > 1e-4
    np.testing.assert_allclose(half, whole / 2, atol=1e-6)


def test_in_memory_and_in_a_directory_are_the_same_and_can_be_read(tmp_path: Path) -> None:
    memory, kept = fd.train(**QUICK), fd.train(out=tmp_path / "run", **QUICK)
    read = fd.load_run(tmp_path / "run")
    assert memory.theta_sha256 == kept.theta_sha256 == read.theta_sha256
    assert memory.run_dir is None
    assert [r["selected"] for r in memory.history] == [r["selected"] for r in read.history]
    x = fd.federation("digits-gsc").test(0, 20).x
    assert memory.predict(x).tolist() == read.predict(x).tolist()
    assert len(set(memory.to_pandas().columns) & {"round", "accuracy", "train_loss"}) == 3


def test_a_model_that_only_this_program_has_is_there_also_when_the_run_was_finished_before(tmp_path: Path) -> None:
    def local(num_classes: int, shape: tuple[int, ...]) -> nn.Module:
        return made_here(num_classes, shape)

    first = fd.train(model=local, out=tmp_path / "run", **QUICK)
    again = fd.train(model=local, out=tmp_path / "run", **{**QUICK, "engine": "local"})
    x = fd.federation("digits-gsc").test(0, 20).x
    assert again.predict(x).tolist() == first.predict(x).tolist()
    model = fd.load_model(tmp_path / "run", local)
    assert sum(p.numel() for p in model.parameters()) == first.theta.size


def test_more_rounds_train_a_finished_run_further(tmp_path: Path) -> None:
    whole = fd.train(**{**QUICK, "rounds": 5})
    fd.train(out=tmp_path / "run", **QUICK)
    with pytest.raises(UserError, match=r"another config: rounds \(3, not 5\)"):
        fd.train(out=tmp_path / "run", **{**QUICK, "rounds": 5})
    further = fd.train(out=tmp_path / "run", resume=True, **{**QUICK, "rounds": 5})
    assert further.theta_sha256 == whole.theta_sha256
    assert [r["round"] for r in further.history] == [1, 2, 3, 4, 5]


def test_a_run_that_a_callback_ends_is_finished_and_evaluated(tmp_path: Path) -> None:
    settings = {**QUICK, "rounds": 9, "evaluate_every": 9}
    stopped = fd.train(out=tmp_path / "run", on_round=lambda r: r["round"] < 2, **settings)
    assert (len(stopped.history), stopped.summary["stopped"]) == (2, True)
    assert stopped.accuracy is not None
    assert fd.load_run(tmp_path / "run").history[-1]["accuracy"] == stopped.accuracy
    further = fd.train(out=tmp_path / "run", resume=True, **settings)
    assert further.theta_sha256 == fd.train(**settings).theta_sha256


def test_the_server_computes_in_one_thread_and_gives_the_others_back() -> None:
    """Else the bits of estimates would depend on the number of cores."""
    seen: list[set[int]] = []

    def threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(2, "blas"):
        fd.train(on_round=lambda record: seen.append(threads()), **QUICK)
        assert threads() == {2}
    assert seen == [{1}] * 3


def test_arrays_without_attributes_and_without_a_test_set() -> None:
    rng = np.random.default_rng(0)
    y = np.array(["ill", "well"])[rng.integers(0, 2, 60)]
    x = rng.normal(size=(60, 3)) + 3 * (y == "ill")[:, None]
    federation = fd.Federation.from_arrays(x, y, client=rng.integers(0, 4, 60))
    result = fd.train(federation, "mlp", "feddiverse", rounds=6, lr=0.1, aggregator="fedavg", workers=1)
    assert (result.accuracy, result.groups) == (None, [])
    assert "evaluation_only" not in result.triplets
    assert len(result.triplets["triplets"]) == 4
    assert (result.predict(x) == y).mean() > 0.9


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"selector": "unifrom"}, "There is no selector 'unifrom' .did you mean 'uniform'"),
        ({"selector": Own(), "selector.skip": 3}, "'selector.skip' cannot reach it"),
        ({"selector": {"name": "uniform", "skip": 3}}, "The selector 'uniform' has no parameter 'skip'"),
        ({"selector": Half}, "is no subclass of feddiverse.Selector"),
        ({"selector": Undecided}, "cannot be made: .* abstract method '?choose"),
        ({"learning_rate": 3.0}, "Unknown key 'learning_rate' in the arguments of train .did you mean 'lr'"),
        ({"lerning_rate": 3.0}, "did you mean 'lr'"),
        ({"selector": f"{__name__}:Own", "skip": 3}, "Unknown key 'skip' .* .did you mean 'selector.skip'"),
        ({"federation": None}, "Config key 'federation' must be text, not None"),
        (
            {"federation": fd.federation("digits-gsc"), "image_size": 14},
            "is open already: 'image_size' is to be given to",
        ),
        ({"model": nn.Linear(3, 2)}, r"Linear .object. does not take samples of shape .3, 28, 28.: RuntimeError"),
        ({"model": nn.Flatten()}, "Flatten .object. has no weights to train"),
        ({"model": lambda n, shape: wide(5, shape)}, r"gives .2, 5. for two samples, not .2, 2.: one number a class"),
        ({"optimizer": "fedavg", "aggregator": "fedavgm"}, "another word for 'aggregator'"),
        ({"resume": True}, "Only a run in a directory can go on"),
        ({"engine": "cloud"}, "There is no engine 'cloud'"),
    ],
)
def test_mistakes_are_told_in_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        fd.train(**{**QUICK, **settings})


@pytest.mark.parametrize("chosen", [None, [0, 0], [99], ["a"], [0.5]], ids=str)
def test_a_choice_that_is_none_is_told_in_a_sentence(chosen: Any) -> None:
    class Wrong(fd.Selector):
        def choose(self, round, k, clients, ask, rng):
            return chosen

    with pytest.raises(RunError, match="The selector chose"):
        fd.train(selector=Wrong, **QUICK)
