"""An internet in a dictionary, below requests (pooch's) and httpx (the Hugging Face hub's), and archives to find there.

The libraries themselves are the real ones: only what would touch a socket is replaced.
"""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from urllib3 import HTTPResponse

Answers = dict[str, bytes]


def quiet(what: str, done: int, total: int | None) -> None:
    pass


def online(
    monkeypatch: pytest.MonkeyPatch, answers: Answers, announce: Callable[[bytes], int | None] = len
) -> list[str]:
    """An internet of these addresses; returns the list of those asked for."""
    asked: list[str] = []

    def answer(url: str) -> tuple[int, dict[str, str], bytes]:
        asked.append(url)
        content = answers.get(url, b"not found")
        announced = announce(content)
        headers = {} if announced is None else {"Content-Length": str(announced)}
        return (200 if url in answers else 404), headers, content

    def send(
        self: requests.adapters.HTTPAdapter, request: requests.PreparedRequest, **options: object
    ) -> requests.Response:
        assert options["timeout"] == 10  # seconds: without a network, say so soon
        status, headers, content = answer(str(request.url))
        raw = HTTPResponse(io.BytesIO(content), headers, status, preload_content=False, decode_content=False)
        return self.build_response(request, raw)

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    _replace_httpx(monkeypatch, answer)
    return asked


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No internet at all."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", refuse)
    _replace_httpx(monkeypatch, refuse)


def _replace_httpx(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], object]) -> None:
    try:
        import httpx
    except ImportError:
        return  # it comes with the extra `hub`

    def handle(self: object, request: httpx.Request) -> httpx.Response:
        assert request.extensions["timeout"]["connect"] == 10
        status, headers, content = answer(str(request.url))
        return httpx.Response(status, headers=headers, content=content)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", handle)


def tgz(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return path


def files_in(home: Path) -> dict[str, bytes]:
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in home.rglob("*") if path.is_file()}
