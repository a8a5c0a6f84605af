"""FedDyn, MOON and changed pictures on real digits: the same bits for any number of workers, interrupted or not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feddiverse as fd
from feddiverse.data import open_federation
from feddiverse.errors import UserError
from feddiverse.experiment.config import Config, from_mapping

KEYS: dict[str, Any] = {"rounds": 6, "num_selected": 3, "batch_size": 70, "evaluate_every": 6, "seed": 4}
CASES: dict[str, dict[str, Any]] = {
    "feddyn": {"aggregator": "feddyn"},
    "moon": {"aggregator": "fedavg", "objective": {"name": "moon", "mu": 2.0}},
    "flip and shift": {"flip": True, "crop_padding": 2, "padding": "edge"},
    "hics_fl": {"selector": "hics_fl"},
}


class Stop(Exception):
    """The machine goes down."""


@pytest.mark.parametrize("case", CASES)
def test_same_bits_for_any_number_of_workers_and_after_an_interruption(case: str, tmp_path: Path) -> None:
    keys = {**KEYS, **CASES[case]}
    expected = fd.train("digits-gsc", workers=1, **keys)
    plain = fd.train("digits-gsc", workers=2, **KEYS)
    assert expected.theta_sha256 != plain.theta_sha256

    def interrupt(record: dict[str, Any]) -> None:
        if record["round"] == 4:
            raise Stop

    with pytest.raises(Stop):
        fd.train("digits-gsc", out=tmp_path, workers=2, on_round=interrupt, **keys)
    resumed = fd.train("digits-gsc", out=tmp_path, workers=2, **keys)
    assert resumed.theta_sha256 == expected.theta_sha256
    memory = [record["traffic"].get("memory", {"bytes_down": 0})["bytes_down"] for record in resumed.history]
    assert (memory[-1] > 0) == (case in ("feddyn", "moon"))
    assert memory[0] == 0  # nobody has anything to remember yet


def test_feddyn_is_an_objective_and_a_server_step() -> None:
    config = from_mapping({"aggregator": "feddyn", "objective.alpha": 0.1})
    assert (config.aggregator, config.objective) == ("feddyn", "feddyn")
    assert config.parameters("objective") == {"alpha": 0.1}
    assert from_mapping(config.plain()) == config
    apart = from_mapping({"aggregator": "feddyn", "objective": "cross_entropy"})
    assert apart.objective == "cross_entropy"
    prox = from_mapping({"objective": "fedprox", "aggregator": "fedavg"})
    assert (prox.objective, prox.prox_mu) == ("cross_entropy", 0.1)
    with pytest.raises(UserError, match="has no parameter 'alfa'"):
        fd.train("digits-gsc", aggregator="feddyn", **{"objective.alfa": 1.0})


def test_what_changes_pictures_is_refused_for_floats() -> None:
    x, y = np.zeros((8, 4), np.float32), np.arange(8) % 2
    federation = fd.Federation.from_arrays(x, y, client=np.arange(8) // 4, test=(x, y))
    with pytest.raises(UserError, match="are floats of shape"):
        fd.train(federation, "mlp", rounds=1, crop_padding=2)


def test_waterbirds_are_shown_as_released_and_others_as_they_are() -> None:
    birds = Config(federation="waterbirds-dist")
    assert (birds.flip, birds.crop_padding, birds.padding, birds.resize) == (True, 24, "constant", 0)
    assert Config(federation="dist:waterbirds", image_size=112).crop_padding == 12
    assert Config(federation="waterbirds-dist", flip=False, crop_padding=0).flip is False
    for name in ("spawrious-gsc", "cmnist-gsc", "digits-gsc"):
        assert (Config(federation=name).flip, Config(federation=name).crop_padding) == (False, 0)
    with pytest.raises(UserError, match="'flip' must be true or false"):
        from_mapping({"flip": 1})
    with pytest.raises(UserError, match="28 pixels a side and are not scaled"):
        open_federation("digits-gsc", resize=32)
