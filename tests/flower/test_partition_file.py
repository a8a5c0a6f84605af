import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from feddiverse.data import open_federation
from feddiverse.data.federation import Federation
from feddiverse.errors import UserError
from feddiverse.experiment.config import Config
from feddiverse.flower.partition_file import read_partition, write_partition
from feddiverse.flower.site import FileSite, SimulatedSite, open_site
from feddiverse.messages import Train
from feddiverse.models import ModelSpec, initial_theta


def test_a_partition_file_holds_one_client_and_answers_as_the_federation_does(tmp_path: Path) -> None:
    config = Config(federation="digits-gsc", seed=1)
    federation = open_federation("digits-gsc", 1)
    write_partition(tmp_path / "data", federation, 7)
    partition = read_partition(tmp_path / "data")
    assert (partition.samples.x == federation.client(7).x).all()
    source = federation.source
    spec = partition.spec("cnn")
    assert spec == ModelSpec("cnn", 2, source.shape, source.mean, source.std)
    assert (partition.client, partition.name, partition.class_names) == (7, "7", source.class_names)
    theta, task = initial_theta(spec, 1), Train(1, 4, lr=0.02)
    from_file, simulated = open_site(config, "cpu", str(tmp_path / "data")), SimulatedSite(config, "cpu")
    assert isinstance(from_file, FileSite)
    assert from_file is open_site(config, "cpu", str(tmp_path / "data")), "opened once in a process"
    assert from_file.num_examples(7) == simulated.num_examples(7)
    ours, theirs = (site.answer(task, theta, 7, {}) for site in (from_file, simulated))
    assert ours.vector is not None
    assert theirs.vector is not None
    assert ours.vector.tobytes() == theirs.vector.tobytes()


@pytest.mark.parametrize("shape", [(5,), (2, 3), (4, 3, 2, 2)], ids=str)
def test_samples_may_be_floats_of_any_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=(9, *shape)).astype(np.float32)
    federation = Federation.from_arrays(x, ["no", "yes", "no"] * 3, ["here", "there", "there"] * 3, np.arange(9) % 2)
    write_partition(str(tmp_path / "data"), federation, 1)
    partition = read_partition(str(tmp_path / "data"))
    there = federation.client(1)
    assert partition.samples.x.tobytes() == there.x.tobytes()
    assert partition.samples.x.shape == (6, *shape)
    assert partition.samples.y.tolist() == there.y.tolist()
    assert (partition.client, partition.name, partition.class_names) == (1, "there", ("no", "yes"))
    assert partition.spec("mlp") == ModelSpec("mlp", 2, shape, None, None)
    site = open_site(Config(model="mlp"), "cpu", str(tmp_path / "data"))
    reply = site.answer(Train(0, 1), initial_theta(partition.spec("mlp"), 0), 1, {})
    assert (reply.failure, reply.num_examples) == (None, 6)


def test_attributes_are_neither_written_nor_read(tmp_path: Path) -> None:
    federation = open_federation("digits-gsc", 1)
    assert federation.client(7).a is not None
    write_partition(tmp_path / "data", federation, 7)
    with safe_open(tmp_path / "data", framework="numpy") as file:
        assert sorted(file.keys()) == ["x", "y"]
    write_as_before(tmp_path / "old", federation, 7)
    for name in ("data", "old"):
        assert read_partition(tmp_path / name).samples.a is None


def write_as_before(path: Path, federation: Federation, client: int, **about: object) -> None:
    """As the first files were: pictures only, with attributes, without names."""
    samples, source = federation.client(client), federation.source
    assert samples.a is not None
    described = {"client": client, "num_classes": 2, "mean": source.mean, "std": source.std, **about}
    arrays = {"images": samples.x, "y": samples.y, "a": samples.a}
    save_file(arrays, path, metadata={"feddiverse": json.dumps(described)})


def test_files_from_before_are_read(tmp_path: Path) -> None:
    federation = open_federation("digits-gsc", 1)
    write_partition(tmp_path / "new", federation, 3)
    write_as_before(tmp_path / "old", federation, 3)
    new, old = read_partition(tmp_path / "new"), read_partition(tmp_path / "old")
    assert old.samples.x.tobytes() == new.samples.x.tobytes()
    assert old.samples.y.tobytes() == new.samples.y.tobytes()
    assert old.spec("cnn") == new.spec("cnn")
    assert (old.client, old.name, old.class_names) == (3, "3", ("0", "1"))


def test_a_file_that_is_no_partition_is_told(tmp_path: Path) -> None:
    federation = open_federation("digits-gsc", 1)
    (tmp_path / "bad").write_bytes(b"\x80\x04pickle")
    save_file({"x": np.zeros((2, 3), np.float32)}, tmp_path / "other")
    write_as_before(tmp_path / "one class", federation, 7, num_classes=1)
    write_as_before(tmp_path / "not normalised", federation, 7, mean=None, std=None)
    for name, why in {
        "bad": "", "missing": "", "other": "", "one class": "labels are not all within 0 … 0",
        "not normalised": "pictures are uint8 and have mean",
    }.items():  # fmt: skip
        with pytest.raises(UserError, match=f"is no partition file .*{why}.*: write one with write_partition"):
            read_partition(tmp_path / name)
