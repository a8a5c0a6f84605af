"""A deployment whose server has no data: sites say what their samples are like, and hold some out."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid
from flwr.app import ConfigRecord, Context, Message, RecordDict

import feddiverse as fd
from feddiverse.errors import UserError
from feddiverse.flower import apps
from feddiverse.flower.described import _read
from feddiverse.flower.partition_file import write_partition

ROOT = Path(__file__).parents[2]
RUN_CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


class Sites(FakeGrid):
    """Nodes that have a file each, and nothing else."""

    def __init__(self, folder: Path, num_nodes: int) -> None:
        super().__init__(apps.build_client_app(), num_nodes)
        self.folder = folder

    def _answer(self, message: Message, node: int) -> Message:
        k = self.online[node]
        config: dict[str, Any] = {
            "partition-id": k, "num-partitions": len(self.online), "partition-file": str(self.folder / f"{k}"),
        }  # fmt: skip
        state = self.states.setdefault(node, RecordDict())
        return self.app(message, Context(1, node, config, state, self.run_config))


def federation() -> fd.Federation:
    rng = np.random.default_rng(0)
    y, scanner = rng.integers(0, 2, 240), rng.integers(0, 2, 240)
    x = rng.normal(size=(240, 3)) + np.stack([2 * y, y, 14 * scanner], axis=1)
    site = np.array(["bern", "lund", "oslo", "pisa"])[np.where(rng.random(240) < 0.7, 2 * scanner, 1) + y * (y > 2)]
    return fd.Federation.from_arrays(x, np.array(["well", "ill"])[y], site, name="sites", num_selected=2)


def test_the_server_needs_no_data_and_gives_the_same_bits(tmp_path: Path) -> None:
    fed = federation()
    for k in range(fed.num_clients):
        write_partition(tmp_path / f"{k}", fed, k)
    grid = Sites(tmp_path, fed.num_clients)
    settings: dict[str, Any] = {
        "rounds": 3,
        "evaluate_every": 3,
        "holdout": 0.3,
        "model": "mlp",
        "seed": 5,
        "num_selected": 2,
    }
    grid.run_config = {
        **RUN_CONFIG, **settings, "selector": "feddiverse", "federation": "sites", "out": str(tmp_path / "run"),
        "min_clients": fed.num_clients,
    }  # fmt: skip
    apps.serve(grid, Context(1, 1, {}, RecordDict(), grid.run_config))
    made = fd.load_run(tmp_path / "run")
    here = fd.train(fed, selector="feddiverse", workers=1, **settings)
    assert made.theta_sha256 == here.theta_sha256
    assert made.summary["held_out"] == here.summary["held_out"]
    assert made.worst_class_accuracy == here.worst_class_accuracy
    described = json.loads((tmp_path / "run" / "federation.json").read_text("utf-8"))
    assert described["client_names"] == list(fed.names)
    assert described["class_names"] == ["ill", "well"]
    assert described["counts"] == fed.with_holdout(0.3, 5).counts.tolist()


def test_without_samples_held_out_there_would_be_nothing_to_test_on(tmp_path: Path) -> None:
    grid = Sites(tmp_path, 1)
    grid.run_config = {**RUN_CONFIG, "federation": "sites", "out": str(tmp_path / "run")}
    with pytest.raises(UserError, match="the server has no test set"):
        apps.serve(grid, Context(1, 1, {}, RecordDict(), grid.run_config))


GOOD: dict[str, Any] = {
    "name": "bern", "class-names": ["a", "b"], "shape": [3, 8, 8], "mean": [0.5] * 3, "std": [0.5] * 3,
    "counts": [4, 5],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"class-names": []}, {"shape": []}, {"shape": [-1]}, {"shape": [10**9, 10]}, {"mean": [0.5]},
        {"std": [0.0] * 3},
        {"mean": [float("nan")] * 3}, {"counts": [1]}, {"counts": [-1, 2]}, {"counts": "many"},
    ],
)  # fmt: skip
def test_a_description_that_makes_no_sense_is_told_in_a_sentence(change: dict[str, Any]) -> None:
    assert _read(3, RecordDict({"about": ConfigRecord(GOOD)}))["counts"] == [4, 5]
    with pytest.raises(UserError, match="What client 3 says of its data cannot be read"):
        _read(3, RecordDict({"about": ConfigRecord({**GOOD, **change})}))
    with pytest.raises(UserError, match="What client 3 says"):
        _read(3, RecordDict())
