"""`feddiverse discover`: its JSON, its words, its folder, and its sentence for what is wrong."""

import json
import sys
from pathlib import Path

import pytest

from feddiverse.cli import main

SMALL = ("dirichlet(clients=10,samples=1000):digits", "--workers", "1", "--device", "cpu")


def feddiverse(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["feddiverse", "discover", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_json_is_what_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ("--out", str(tmp_path / "found"), "--seed", "3", "--pretraining-rounds", "1", "--json")
    assert feddiverse(monkeypatch, *SMALL, *options) in (0, None)
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((tmp_path / "found" / "discovery.json").read_text())
    assert shown["evaluation_only"]["attribute_accuracy"] > 0.95
    assert shown["settings"]["seed"] == 3
    assert shown["settings"]["pretraining_rounds"] == 1
    assert len(shown["clients"]) == 10


def test_words_and_the_default_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert feddiverse(monkeypatch, *SMALL, "--no-pictures") in (0, None)
    shown = capsys.readouterr().out.replace("\n", " ")
    assert "Clients differ in one hidden attribute" in shown
    folder = tmp_path / "discover" / "dirichlet-clients-10-samples-1000-digits"
    assert {path.name for path in folder.iterdir()} == {"attributes.csv", "discovery.json", "index.html"}
    assert "<img" not in (folder / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere.csv",), "nowhere.csv"),
        (("digts-gsc",), "digits-gsc"),
        (("digits-gsc", "--set", "workers=2"), "'workers'"),
        (("digits-gsc", "--set", "atributes=3"), "atributes"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    arguments: tuple[str, ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert feddiverse(monkeypatch, *arguments) == 2
    told = capsys.readouterr().err
    assert says in told
    assert len(told.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
