"""`fd.train`: names, classes or objects; in memory or in a directory; trained further, stopped, read again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import NoiseEngine
from torch import nn

import feddiverse as fd
from feddiverse.errors import UserError
from feddiverse.experiment.config import Config
from feddiverse.experiment.opening import open_run
from feddiverse.server.aggregation import FedAvg

QUICK: dict[str, Any] = {"rounds": 3, "evaluate_every": 1, "num_selected": 2, "engine": NoiseEngine}


class Own(fd.Selector):
    """Takes the first clients, from the `skip`-th on."""

    def __init__(self, skip: int = 0) -> None:
        self.skip = skip

    def choose(self, round, k, clients, ask, rng):  # type: ignore[no-untyped-def]
        return sorted(clients)[self.skip : self.skip + k]


class Half(FedAvg):
    def move(self, update):  # type: ignore[no-untyped-def]
        return 0.5 * update


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
        ({"learning_rate": 3.0}, "Unknown key 'learning_rate' in the arguments of train; did you mean 'lr'"),
        ({"optimizer": "fedavg", "aggregator": "fedavgm"}, "another word for 'aggregator'"),
        ({"resume": True}, "Only a run in a directory can go on"),
        ({"engine": "cloud"}, "There is no engine 'cloud'"),
    ],
)
def test_mistakes_are_told_in_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        fd.train(**{**QUICK, **settings})
