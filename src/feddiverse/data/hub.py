"""A data set from the Hugging Face hub over plain https, each file checked against the SHA-256 the hub publishes.

A repository may hold the official archive, or Parquet files (`image`, `label`, `place`, as Waterbirds is often
stored); the latter are written back into the official layout.
"""

import csv
import hashlib
import importlib
import io
import json
import os
import re
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

from feddiverse.data import archives, download
from feddiverse.data.archives import Report
from feddiverse.data.download import Unavailable
from feddiverse.data.pictures import SUFFIXES

_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")
_PARTS = {"train": 0, "validation": 1, "valid": 1, "val": 1, "test": 2}  # as Waterbirds numbers them
_MOST_FILES = 10_000


@dataclass(frozen=True)
class HubFile:
    """A file as the hub lists it. Only large files have a published SHA-256, and only those are taken."""

    path: str
    size: int
    sha256: str


def bring(repository: str, folder: Path, limit_bytes: int, report: Report) -> None:
    """Download a data set's archives, or else its Parquet files, and lay it out in `folder`."""
    files = _list(repository)
    chosen = [file for file in files if file.path.endswith(_ARCHIVES)]
    chosen = chosen or [file for file in files if file.path.endswith(".parquet")]
    if not chosen:
        raise Unavailable("it holds neither archives nor Parquet files")
    if sum(file.size for file in chosen) > limit_bytes:
        raise Unavailable(f"it holds more than {limit_bytes} bytes")
    downloads = folder.parent / "downloads"
    downloads.mkdir()
    for number, file in enumerate(chosen):
        path = downloads / f"{number}-{Path(file.path).name}"
        _download(repository, file, path, report)
        if path.name.endswith(".parquet"):
            _unpack_parquet(path, _part(file.path), folder)
        else:
            suffixes = SUFFIXES | {".csv"}
            archives.extract_all(path, folder, suffixes=suffixes, limit_bytes=limit_bytes, report=report)
        path.unlink()


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _list(repository: str) -> list[HubFile]:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise Unavailable(f"'{repository}' is no repository: write OWNER/NAME")
    address: str | None = f"{_endpoint()}/api/datasets/{repository}/tree/main?recursive=true"
    found: list[HubFile] = []
    while address and len(found) < _MOST_FILES:
        try:
            with download.open_url(address) as answer:
                entries = json.load(answer)
                following = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link") or "")
            found += [HubFile(e["path"], int(e["lfs"]["size"]), str(e["lfs"]["oid"])) for e in entries if "lfs" in e]
        except (OSError, HTTPException) as error:
            raise Unavailable(download.reason(error)) from error
        except (ValueError, KeyError, TypeError) as error:
            raise Unavailable("its answer is not understood") from error
        address = following[1] if following else None
    return sorted(found, key=lambda file: file.path)


def _download(repository: str, file: HubFile, target: Path, report: Report) -> None:
    address = f"{_endpoint()}/datasets/{repository}/resolve/main/{quote(file.path)}"
    download.https(address, target, file.size, report)
    with target.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if target.stat().st_size != file.size or digest != file.sha256:
        raise Unavailable(f"{file.path} arrived altered: its size or SHA-256 differs")


def _part(path: str) -> int:
    found = re.search(rf"(?:^|[/_-])({'|'.join(_PARTS)})(?:[/_.-])", path)
    if found is None:
        raise Unavailable(f"{path} does not say whether it is for training or testing")
    return _PARTS[found[1]]


def _unpack_parquet(packed: Path, part: int, folder: Path) -> None:
    """Write the pictures of one Parquet file beside `metadata.csv`, and their labels into it."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise Unavailable("its files are Parquet, which needs the package pyarrow") from error
    from PIL import Image

    table = folder / "metadata.csv"
    is_new = not table.exists()
    with table.open("a", newline="", encoding="utf-8") as stream:
        out = csv.writer(stream)
        if is_new:
            out.writerow(["img_id", "img_filename", "y", "split", "place", "place_filename"])
        (folder / packed.stem).mkdir()
        number = 0
        try:
            for batch in parquet.ParquetFile(packed).iter_batches(256, columns=["image", "label", "place"]):
                for row in batch.to_pylist():
                    picture = row["image"]["bytes"]
                    kind = str(Image.open(io.BytesIO(picture)).format).lower()
                    name = f"{packed.stem}/{number:06d}.{kind}"
                    (folder / name).write_bytes(picture)
                    out.writerow([number, name, int(row["label"]), part, int(row["place"]), ""])
                    number += 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unavailable("its Parquet files do not hold image, label and place") from error
