"""A federation written for others, and read back: same samples, same order, same bits; and by other frameworks."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import feddiverse as fd
from feddiverse.cli import app
from feddiverse.errors import UserError
from feddiverse.experiment.config import from_mapping

ROOT = Path(__file__).parent.parent.parent
QUICK: dict[str, Any] = {"rounds": 2, "num_selected": 2, "workers": 1, "seed": 4, "model": "cnn"}


def small(channels: int = 3, **more: Any) -> fd.Federation:
    """Pictures of 28 pixels at three clients. Names are not in the order of the alphabet, where that can be."""
    rng = np.random.default_rng(0)
    x, y, a = rng.integers(0, 256, (48, channels, 28, 28), np.uint8), np.arange(48) % 2, np.arange(48) // 2 % 2
    names = np.array(["zug", "bern", "ulm"])[np.arange(36) % 3]
    held = (x[36:], y[36:], np.array(["wet", "dry"])[a[36:]])
    return fd.Federation.from_arrays(
        x[:36], y[:36], names, np.array(["wet", "dry"])[a[:36]], held, num_selected=2, **more
    )


def same(one: fd.Federation, other: fd.Federation) -> None:
    assert one.names == other.names
    assert (one.counts == other.counts).all()
    for a, b in [(one.client(k), other.client(k)) for k in range(one.num_clients)] + [(one.test(), other.test())]:
        np.testing.assert_array_equal(a.x, b.x)
        np.testing.assert_array_equal(a.y, b.y)
        np.testing.assert_array_equal(a.a, b.a)


@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_read_back_to_the_same_bits(tmp_path: Path, channels: int) -> None:
    fed = small(channels, mean=[0.3] * channels, std=[0.2] * channels)
    path = fed.export(tmp_path / "shared", seed=4)
    again = fd.federation(str(path), 4)
    same(fed, again)
    assert again.num_selected == 2
    made = [fd.train(each, **QUICK, selector="feddiverse").theta_sha256 for each in (fed, str(path))]
    assert made[0] == made[1]


def test_a_named_federation_keeps_its_order_and_its_default_settings(tmp_path: Path) -> None:
    fed = fd.federation("digits-gsc", 1)
    path = fed.export(tmp_path / "shared", seed=1)
    again = fd.federation(str(path), 1)
    same(fed, again)
    assert again.source.attribute_names == ("red", "green")
    ours, theirs = (from_mapping({"federation": name}) for name in (str(path), "digits-gsc"))
    assert {**ours.plain(), "federation": ""} == {**theirs.plain(), "federation": ""}
    with path.open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["client", "image", "class", "attribute", "split"]
    assert sum(row["split"] == "train" for row in rows) == fed.counts.sum()
    about = json.loads(path.with_suffix(".json").read_text())
    assert (about["seed"], about["fingerprint"]) == (1, fed.source.fingerprint)


def photos(folder: Path) -> Path:
    """A table of pictures of any size in a folder of its own."""
    rng = np.random.default_rng(1)
    (folder / "set" / "p").mkdir(parents=True)
    lines = ["image,class,client,split"]
    for i in range(24):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(folder / "set" / "p" / f"{i}.png")
        lines.append(f"p/{i}.png,{'ba'[i % 2]},{'' if i > 17 else 'xyz'[i % 3]},{'test' if i > 17 else 'train'}")
    path = folder / "set" / "table.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("pictures", [False, True])
def test_a_photo_set_is_named_or_copied(tmp_path: Path, pictures: bool) -> None:
    fed = fd.federation(str(photos(tmp_path)), image_size=16)
    path = fed.export(tmp_path / "shared", pictures=pictures)
    assert (tmp_path / "shared" / "train").exists() is pictures
    same(fed, fd.federation(str(path)))
    if not pictures:  # on another machine the set lies elsewhere
        (tmp_path / "set").rename(tmp_path / "moved")
        same(fed, fd.federation(str(path), data_dir=str(tmp_path / "moved")))


def test_what_cannot_be_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = small().export(tmp_path / "shared")
    path.write_text(path.read_text().replace("bern", "biel", 1))
    with pytest.raises(UserError, match=r"no longer the table that federation\.json beside it describes"):
        fd.federation(str(path))
    path.with_suffix(".json").write_text("{}")
    assert "biel" in fd.federation(str(path)).names  # a table like any other
    numbers = fd.Federation.from_arrays(np.zeros((4, 3)), [0, 1, 0, 1], [0, 0, 1, 1])
    with pytest.raises(UserError, match="are no pictures"):
        numbers.export(tmp_path / "numbers")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(UserError, match="not empty"):
        small().export(tmp_path / "full")


class Rows(dict[str, list[Any]]):
    """As much of a `datasets.Dataset` as is needed."""

    def __len__(self) -> int:
        return len(next(iter(self.values())))

    @property
    def column_names(self) -> list[str]:
        return list(self)


class Dealt:
    num_partitions = 3

    def __init__(self, parts: list[Rows]) -> None:
        self.parts = parts

    def load_partition(self, k: int) -> Rows:
        return self.parts[k]


def test_what_a_partitioner_deals_is_a_federation() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (9, 8, 8, 3), np.uint8)
    parts = [Rows(img=[Image.fromarray(p) for p in pixels[3 * k : 3 * k + 3]], label=[k, 0, 1]) for k in (0, 1)]
    fed = fd.Federation.from_partitioner(Dealt([*parts, Rows(img=[], label=[])]), test=parts[0], names=["b", "a", "c"])
    assert fed.client_names == ("a", "b")  # the third has nothing
    assert fed.sizes == {0: 3, 1: 3}
    assert sorted(fed.client(1).y.tolist()) == [0, 0, 1]
    np.testing.assert_array_equal(fed.client(1).x[0], pixels[0].transpose(2, 0, 1))
    assert len(fed.test()) == 3
    with pytest.raises(UserError, match="no column 'kind': it has 'img', 'label'; name yours with label="):
        fd.Federation.from_partitioner(Dealt(parts + parts[:1]), label="kind")
    uneven = [Rows(x=[np.zeros((2, 2)), np.zeros((3, 3))], label=[0, 1])] * 3
    with pytest.raises(UserError, match="different shapes, such as"):
        fd.Federation.from_partitioner(Dealt(uneven))


def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/sharing.md, where Flower Datasets is installed."""
    pytest.importorskip("flwr_datasets")
    from typer.testing import CliRunner

    page = (ROOT / "docs" / "sharing.md").read_text("utf-8")
    photos(tmp_path)
    (tmp_path / "set" / "table.csv").rename(tmp_path / "set" / "scans.csv")
    monkeypatch.chdir(tmp_path / "set")
    for line in re.findall(r"^\$ feddiverse (.*)$", page, re.MULTILINE):
        done = CliRunner().invoke(app, line.split(), catch_exceptions=False)
        assert done.exit_code == 0, done.output
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub"), "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["(30, 20) x 6", "('x', 'y', 'z') {0: 6, 1: 6, 2: 6}"]
