"""An internet in a dictionary, and archives to find there."""

import io
import tarfile
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest

from feddiverse.data import download

Answers = dict[str, bytes]


def quiet(what: str, done: int, total: int | None) -> None:
    pass


def online(
    monkeypatch: pytest.MonkeyPatch,
    answers: Answers,
    announce: Callable[[bytes], int] = len,
    links: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """An internet of these addresses; returns the list of those asked for."""
    asked: list[str] = []

    @contextmanager
    def open_url(url: str) -> Iterator[SimpleNamespace]:
        asked.append(url)
        if url not in answers:
            raise urllib.error.HTTPError(url, 404, "not found", None, None)  # type: ignore[arg-type]
        headers = {"Content-Length": str(announce(answers[url])), "Link": links.get(url)}
        yield SimpleNamespace(headers=headers, read=io.BytesIO(answers[url]).read)

    monkeypatch.setattr(download, "open_url", open_url)
    return asked


def tgz(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return path


def files_in(home: Path) -> dict[str, bytes]:
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in home.rglob("*") if path.is_file()}
