"""`feddiverse estimate`: its JSON, its table, and its sentence for a wrong name."""

import json
import sys
from pathlib import Path

import pytest

from feddiverse import train
from feddiverse.cli import main
from feddiverse.experiment import estimating, finished
from feddiverse.experiment.estimating import of_run

SMALL = (
    "--federation",
    "dirichlet(clients=10,samples=1000):digits",
    "--set",
    "bias_steps=2",
    "--workers",
    "1",
    "--device",
    "cpu",
)


def feddiverse(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["feddiverse", "estimate", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_consensus_sees_colours_of_digits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert feddiverse(monkeypatch, *SMALL, "--estimator", "consensus", "--json") in (0, None)
    found = json.loads(capsys.readouterr().out)
    assert found["estimator"] == "consensus"
    assert min(found["r"].values()) > 0.99
    assert max(found["mae"].values()) < 0.01
    assert found["attribute_accuracy"] > 0.99
    assert found["bytes_up"] > 24
    assert found["seconds"] > 0
    assert found["warnings"] == []


def test_a_run_estimates_what_the_command_estimates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`feddiverse study estimators` looks at runs: the same triplets, quality and bytes, by the same rule."""
    assert feddiverse(monkeypatch, *SMALL, "--estimator", "consensus", "--seed", "3", "--json") in (0, None)
    command = json.loads(capsys.readouterr().out)
    settings = {"federation": SMALL[1], "selector": "feddiverse", "rounds": 2, "seed": 3, "num_selected": 2}
    train(**settings, workers=1, device="cpu", out=tmp_path / "run")
    run = of_run(finished.read(tmp_path / "run"))
    assert run is not None
    for key in ("r", "mae", "attribute_accuracy", "truth", "bytes_up", "bytes_down"):
        assert run[key] == command[key], key


def test_all_estimators_without_pretraining(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert feddiverse(monkeypatch, *SMALL, "--pretraining-rounds", "0", "--json") in (0, None)
    found = {row["estimator"]: row for row in json.loads(capsys.readouterr().out)}
    assert found.keys() == {"paper", "consensus", "oracle"}
    assert found["paper"]["bytes_up"] == 24  # three numbers
    assert found["paper"]["r"]["ci"] == pytest.approx(1)
    assert found["oracle"]["mae"] == pytest.approx({"ci": 0, "ai": 0, "sc": 0})
    assert found["oracle"]["attribute_accuracy"] is None


def test_table_and_reasons(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    alike = ("--federation", "iid(clients=8,samples=800):digits", "--pretraining-rounds", "0", "--workers", "1")
    assert feddiverse(monkeypatch, *alike, "--estimator", "consensus") in (0, None)
    shown = capsys.readouterr()
    assert "consensus" in shown.out
    assert "undefined" in shown.out
    assert "no attribute" in shown.err.replace("\n", " ")


def test_names_in_brackets_are_shown_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {"ci": 0.5, "ai": 0.5, "sc": None}
    made = {"estimator": "mine:Own", "num_clients": 2, "warnings": ["[red] is odd."], "undefined": {"sc": "see [b]"},
            "r": numbers, "mae": numbers, "seconds": 1.0, "bytes_up": 24}  # fmt: skip
    monkeypatch.setattr(estimating, "estimates", lambda *_, **__: iter([made]))
    assert feddiverse(monkeypatch, "--estimator", "consensus") in (0, None)
    shown = capsys.readouterr()
    assert shown.err == "mine:Own: [red] is odd.\n"
    assert "mine:Own: r of SC is undefined: see [b].\n" in shown.out


def test_wrong_estimator_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert feddiverse(monkeypatch, *SMALL, "--estimator", "guess") == 2
    assert "'guess'" in capsys.readouterr().err
