"""The Hugging Face hub, played by a dictionary of addresses below the real huggingface_hub."""

import hashlib
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_network import Answers, files_in, online, quiet

from feddiverse.data import download, fetching, open_source
from feddiverse.errors import RunError

constants = pytest.importorskip("huggingface_hub.constants")

HUB = "https://huggingface.co"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def nobodys_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub without the settings of whoever runs the tests."""
    monkeypatch.setattr(constants, "ENDPOINT", HUB)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)


def repository(name: str, files: dict[str, bytes], altered: str = "", hub: str = HUB) -> Answers:
    """The addresses under which the hub has a repository. `altered`: a file that is not what the list says."""
    siblings: list[dict[str, Any]] = [{"rfilename": "README.md", "size": 3}]
    for path, content in files.items():
        digest = hashlib.sha256(content[::-1] if path == altered else content).hexdigest()
        lfs = {"sha256": digest, "size": len(content), "pointerSize": 130}
        siblings.append({"rfilename": path, "size": len(content), "lfs": lfs})
    answers = {f"{hub}/datasets/{name}/resolve/{COMMIT}/{path}": content for path, content in files.items()}
    listing = {"id": name, "sha": COMMIT, "siblings": siblings}
    return answers | {f"{hub}/api/datasets/{name}?blobs=true": json.dumps(listing).encode()}


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
    monkeypatch.setattr(fetching, "_OFFICIAL_WATERBIRDS", [[5, 5], [5, 5]])
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
    listing = f"{HUB}/api/datasets/me/dogs?blobs=true"
    cases: list[tuple[Answers, str]] = [
        (repository("me/dogs", {"x.tar.gz": packed}, altered="x.tar.gz"), "arrived altered"),
        (repository("me/dogs", {"x.tar.gz": packed[:-500]}), "damaged"),
        (repository("me/dogs", {"model.bin": b"x"}), "neither archives nor Parquet"),
        (repository("me/dogs", {"train.parquet": b"x"}), "do not hold image, label and place"),
        (repository("me/dogs", {"all.parquet": b"x"}), "whether it is for training or testing"),
        ({listing: b"<html>"}, "not understood"),
        ({listing: b"[]"}, "not understood"),
        ({listing: b'{"id": "me/dogs"}'}, "not understood"),
        ({listing: b'{"id": "me/dogs", "siblings": [{"rfilename": "x.zip", "lfs": {"size": 3}}]}'}, "not understood"),
        ({}, "it answers 404"),
    ]
    for answers, said in cases:
        online(monkeypatch, answers)
        with pytest.raises(RunError, match=said):
            fetching.fetch("spawrious", quiet, repository="me/dogs")
    with pytest.raises(RunError, match="write OWNER/NAME"):
        fetching.fetch("spawrious", quiet, repository="../../etc")
    assert list(home.iterdir()) == []


def test_mirrors_and_tokens_are_honoured(
    home: Path, tmp_path: Path, spawrious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "https://mirror.example")  # as HF_ENDPOINT sets it
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", MIRRORED)
    monkeypatch.setenv("HF_TOKEN", "hf_of_mine")
    packed = {"x.tar.gz": archive_of(spawrious, tmp_path)}
    asked = online(monkeypatch, repository("me/dogs", packed, hub="https://mirror.example"))
    sent: list[object] = []
    real = download.https
    monkeypatch.setattr(download, "https", lambda *given: (sent.append(given[-1]), real(*given))[1])
    fetching.fetch("spawrious", quiet, repository="me/dogs")
    assert len(asked) == 2
    assert all(address.startswith("https://mirror.example/") for address in asked)
    (headers,) = sent
    assert isinstance(headers, dict)
    assert headers["authorization"] == "Bearer hf_of_mine"


MIRRORED = "https://mirror.example/{repo_id}/resolve/{revision}/{filename}"


def test_a_repository_larger_than_a_set_may_be_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fetching._LARGEST, "spawrious", 100)
    asked = online(monkeypatch, repository("me/dogs", {"a.zip": bytes(60), "b.zip": bytes(60)}))
    with pytest.raises(RunError, match="it holds more than 100 bytes"):
        fetching.fetch("spawrious", quiet, repository="me/dogs")
    assert len(asked) == 1


def test_a_hub_without_its_package_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(RunError, match=r"huggingface_hub is not installed: .* 'feddiverse\[hub\]'"):
        fetching.fetch("waterbirds", quiet)
