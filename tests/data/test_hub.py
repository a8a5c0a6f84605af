"""The Hugging Face hub, played by a dictionary of addresses."""

import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_network import Answers, files_in, online, quiet

from feddiverse.data import checking, fetching, open_source
from feddiverse.errors import RunError

HUB = "https://huggingface.co"


def repository(name: str, files: dict[str, bytes], altered: str = "") -> Answers:
    """The addresses under which the hub has a repository. `altered`: a file that is not what the list says."""
    entries: list[dict[str, Any]] = [{"path": "README.md", "size": 3}]
    for path, content in files.items():
        digest = hashlib.sha256(content[::-1] if path == altered else content).hexdigest()
        entries.append({"path": path, "lfs": {"oid": digest, "size": len(content)}})
    answers = {f"{HUB}/datasets/{name}/resolve/main/{path}": content for path, content in files.items()}
    return answers | {f"{HUB}/api/datasets/{name}/tree/main?recursive=true": json.dumps(entries).encode()}


def archive_of(folder: Path, tmp_path: Path) -> bytes:
    return Path(shutil.make_archive(str(tmp_path / "packed"), "gztar", folder.parent, folder.name)).read_bytes()


def test_an_archive_from_the_hub(home: Path, tmp_path: Path, spawrious: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = online(monkeypatch, repository("me/dogs", {"data/spawrious224.tar.gz": archive_of(spawrious, tmp_path)}))
    assert fetching.fetch("spawrious", quiet, repository="me/dogs") == home / "spawrious"
    assert len(files_in(home)) == 160
    assert len(asked) == 2
    assert fetching.fetch("spawrious", quiet) == home / "spawrious"
    assert len(asked) == 2


def parquet_of(waterbirds: Path, split: int) -> bytes:
    """The rows of one part as `datasets` stores them."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = []
    for line in (waterbirds / "metadata.csv").read_text().splitlines()[1:]:
        _, name, y, part, place, _ = line.split(",")
        if int(part) == split:
            picture = {"bytes": (waterbirds / name).read_bytes(), "path": name}
            rows.append({"image": picture, "label": int(y), "place": int(place), "bird": 7})
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), out)
    return out.getvalue()


def test_parquet_files_become_the_official_layout(
    home: Path, waterbirds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"train-00000-of-00001": 0, "validation-00000-of-00001": 1, "test-00000-of-00001": 2}
    files = {f"data/{name}.parquet": parquet_of(waterbirds, split) for name, split in parts.items()}
    online(monkeypatch, repository("grodino/waterbirds", files))
    with pytest.raises(RunError, match=r"by class and place are \[\[5, 5\], \[5, 5\]\], not \[\[3498"):
        fetching.fetch("waterbirds", quiet)
    monkeypatch.setattr(checking, "_OFFICIAL_WATERBIRDS", [[5, 5], [5, 5]])
    fetching.fetch("waterbirds", quiet)
    fetched = open_source("waterbirds", 2, 2, 0, image_size=12)
    original = open_source("waterbirds", 2, 2, 0, image_size=12, data_dir=waterbirds)
    for side in ("train", "test"):
        sets = []
        for source in (fetched, original):
            y, a = getattr(source, f"{side}_y"), getattr(source, f"{side}_a")
            images = getattr(source, f"{side}_x")(np.arange(len(y)), a)[:, 0, 0, 0]
            sets.append(sorted(zip(images.tolist(), y.tolist(), a.tolist(), strict=True)))
        assert sets[0] == sets[1]


def test_what_the_hub_altered_lacks_or_mangles_is_refused(
    home: Path, tmp_path: Path, spawrious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = archive_of(spawrious, tmp_path)
    listing = f"{HUB}/api/datasets/me/dogs/tree/main?recursive=true"
    cases: list[tuple[Answers, str]] = [
        (repository("me/dogs", {"x.tar.gz": packed}, altered="x.tar.gz"), "arrived altered"),
        (repository("me/dogs", {"x.tar.gz": packed[:-500]}), "damaged"),
        (repository("me/dogs", {"model.bin": b"x"}), "neither archives nor Parquet"),
        (repository("me/dogs", {"train.parquet": b"x"}), "do not hold image, label and place"),
        (repository("me/dogs", {"all.parquet": b"x"}), "whether it is for training or testing"),
        ({listing: b"<html>"}, "not understood"),
        ({listing: b'[{"path": "x.zip", "lfs": {}}]'}, "not understood"),
        ({}, "it answers 404"),
    ]
    for answers, said in cases:
        online(monkeypatch, answers)
        with pytest.raises(RunError, match=said):
            fetching.fetch("spawrious", quiet, repository="me/dogs")
    with pytest.raises(RunError, match="write OWNER/NAME"):
        fetching.fetch("spawrious", quiet, repository="../../etc")
    assert list(home.iterdir()) == []


def test_long_lists_come_in_pages_and_mirrors_are_honoured(
    home: Path, tmp_path: Path, spawrious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    answers = {
        address.replace(HUB, "https://mirror.example"): content
        for address, content in repository("me/dogs", {"x.tar.gz": archive_of(spawrious, tmp_path)}).items()
    }
    first = "https://mirror.example/api/datasets/me/dogs/tree/main?recursive=true"
    second = f"{first}&cursor=2"
    answers |= {second: answers[first], first: b"[]"}
    asked = online(monkeypatch, answers, links={first: f'<{second}>; rel="next"'})
    fetching.fetch("spawrious", quiet, repository="me/dogs")
    assert asked[:2] == [first, second]
