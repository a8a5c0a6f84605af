"""`feddiverse run`: what it prints, where, and the sentence for each mistake."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import feddiverse as fd
from feddiverse.cli import main
from feddiverse.cli.live import Live, clock
from feddiverse.experiment import train
from feddiverse.experiment.config import KEYS, Config

DOCS = Path(__file__).parents[2] / "docs" / "running.md"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stands in for `carry_out`: remembers how it was called and makes two rounds up."""
    seen: list[dict[str, Any]] = []

    def fake(config: Any, *, out: Path, on_round: Any, **how: Any) -> SimpleNamespace:
        seen.append({"config": config, "out": out, **how})
        for number in (1, 2):
            warnings = ["Round 1: client 3 is left out: it fell over."] if number == 1 else []
            evaluated = {"accuracy": 0.9, "worst_group_accuracy": 0.5} if number == 2 else {}
            on_round({"round": number, "selected": [4, 7, 9, 1], "seconds": 2.0, "train_loss": 0.25,
                       "warnings": warnings, "accuracy": None,
                      "worst_group_accuracy": None, **evaluated})  # fmt: skip
        summary = {"worst_group_accuracy": 0.5, "accuracy": 0.9, "rounds": 2, "seconds": 4.0, "run_dir": str(out)}
        return SimpleNamespace(summary=summary)

    monkeypatch.setattr(train, "carry_out", fake)
    return seen


def feddiverse(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["feddiverse", "run", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_options_file_and_assignments_make_the_config(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[dict[str, Any]]
) -> None:
    (tmp_path / "a.toml").write_text("rounds = 5\nseed = 1\nepochs = 3\n")
    arguments = ["--config", tmp_path / "a.toml", "--seed", 2, "--set", "epochs=4", "--set", "lr=0.5"]
    assert feddiverse(monkeypatch, *arguments, "--selector", "pow_d", "--workers", 3, "--device", "cpu") == 0
    config = calls[0]["config"]
    assert (config.rounds, config.seed, config.epochs, config.lr, config.selector) == (5, 2, 4, 0.5, "pow_d")
    assert (calls[0]["workers"], calls[0]["device"], calls[0]["engine"], calls[0]["resume"]) == (
        3,
        "cpu",
        "local",
        False,
    )
    assert calls[0]["out"] == Path("runs/digits-gsc-pow_d-seed2-rounds5-epochs4-lr0.5")


def test_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], calls: list[dict[str, Any]]
) -> None:
    assert feddiverse(monkeypatch, "--out", "there", "--rounds", 12) == 0
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        f"digits-gsc with uniform selection, 12 rounds, evaluated every {calls[0]['config'].evaluate_every}; "
        "all of it goes to there",
        "Warning: Round 1: client 3 is left out: it fell over.",
        "round 1/12  loss 0.2500  asked 4, 7, 9 and 1 more  0:22 left",  # a log says something soon
        "round 2/12  loss 0.2500  worst group 50.0%  accuracy 90.0%  asked 4, 7, 9 and 1 more  0:20 left",
    ]
    assert shown.out.splitlines() == [
        "Worst-group accuracy 50.00%, accuracy 90.00% after 2 rounds in 0:04; see there.",
        "Next: feddiverse report there",
    ]


def test_the_worst_group_and_clients_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = {"class_names": ["well", "ill"], "attribute_names": ["old", "new"], "client_names": ["Bern", "[red]Chur"]}
    (tmp_path / "federation.json").write_text(json.dumps(about))
    groups = [{"class": 0, "attribute": 1, "accuracy": 0.9}, {"class": 1, "attribute": 0, "accuracy": 0.25}]
    record = {"round": 1, "selected": [1], "seconds": 1.0, "train_loss": None, "warnings": [], "accuracy": 0.5,
              "worst_group_accuracy": 0.25, "groups": groups}  # fmt: skip
    with Live(Config(rounds=3), tmp_path) as live:
        live.show(record)
    assert "worst group 25.0% (ill, old)  accuracy 50.0%  asked [red]Chur  0:02 left" in capsys.readouterr().err


def test_json_and_nothing_else_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], calls: list[dict[str, Any]]
) -> None:
    assert feddiverse(monkeypatch, "--json", "--out", "there") == 0
    assert json.loads(capsys.readouterr().out)["run_dir"] == "there"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "round=3"], "Unknown key 'round' in the config (did you mean 'rounds'?); see docs/running.md."),
        (["--set", "rounds"], "'--set rounds' is not of the form key=value."),
        (["--rounds", 0], "Config key 'rounds' must be at least 1, not 0."),
        (["--set", "lr=quick"], "Config key 'lr' must be a number, not 'quick'."),
        (
            ["--aggregator", "fedadm"],
            "There is no aggregator 'fedadm' (did you mean 'fedadam'?); choose one of fedavg,",
        ),
        (["--optimizer", "adam"], "There is no aggregator 'adam'"),
        (["--set", "selector.temperature=3"], "The selector 'uniform' has no parameter 'temperature'; it has: none."),
        (["--config", "no.toml"], "Cannot read the config file no.toml: No such file or directory."),
        (["--resume", "nowhere"], "There is no run in nowhere: it has no config.toml."),
        (["--federation", "nowhere"], "There is no federation 'nowhere'."),
        (["--federation", "table:nowhere.csv"], "There is no file nowhere.csv."),
        (["--federation", "nowhere.csv"], "There is no file nowhere.csv."),
        (["--federation", "clients.csv", "--client", "site"], "clients.csv has no column 'site'"),
        (["--federation", "clients.csv", "--features", "image"], "line 2: image is 'a.png', which is not a number"),
        (["--federation", "clients.csv", "--features", "x,y"], "clients.csv has no column 'x'"),
        (["--label", "y"], "'columns' and 'features' are about a table, but the federation is digits-gsc."),
        (["--federation", "gsc:table:columns.csv"], "columns.csv has no column 'image'"),
        (["--federation", "table:clients.csv"], "clients.csv has no column 'client'"),
        (["--federation", "gsc:cmnist", "--selector", "nobody"], "nobody"),
        (["--selector", "nobody"], "nobody"),
        (["--engine", "cloud"], "There is no engine 'cloud'; choose one of local, flower"),
        (["--device", "toaster"], "toaster"),
        (
            ["--checkpoint", "no.pt"],
            "There is no checkpoint file and no finished run no.pt; give another with --checkpoint.",
        ),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[object],
    sentence: str,
) -> None:
    """With an empty cache, so that mobilenet's weights are missing too: a wrong name or column is told before them."""
    monkeypatch.setenv("FEDDIVERSE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("columns.csv").write_text("picture,class,attribute\na.png,0,0\n")
    Path("clients.csv").write_text("image,class,attribute,split\na.png,0,0,train\nb.png,0,0,test\n")
    assert feddiverse(monkeypatch, *arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert sentence in told.err
    assert "Traceback" not in told.err
    assert told.err.count("\n") == 1
    assert not any((tmp_path / "runs").glob("*"))


def test_resume_takes_the_config_from_the_directory_and_refuses_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: list[dict[str, Any]]
) -> None:
    (tmp_path / "config.toml").write_text('federation = "digits-gsc"\nrounds = 5\nseed = 3\n')
    assert feddiverse(monkeypatch, "--resume", tmp_path, "--rounds", 5) == 0
    assert calls[0]["config"].seed == 3
    assert calls[0]["out"] == tmp_path
    assert calls[0]["resume"] is True
    assert feddiverse(monkeypatch, "--resume", tmp_path, "--rounds", 6) == 0  # trains it further
    assert calls[1]["config"] == replace(calls[0]["config"], rounds=6)
    assert feddiverse(monkeypatch, "--resume", tmp_path, "--rounds", 4, "--set", "seed=4") == 2
    assert "has another config: seed (3, not 4), rounds (5, not 4)" in capsys.readouterr().err
    assert feddiverse(monkeypatch, "--resume", tmp_path, "--out", "elsewhere") == 2
    assert "leave --out away" in capsys.readouterr().err


def test_interrupted_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(config: Any, **how: Any) -> None:
        raise KeyboardInterrupt

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(train, "carry_out", interrupted)
    monkeypatch.setattr(os, "_exit", leave)
    assert feddiverse(monkeypatch, "--out", "there", "--json") == 130
    assert "go on with: feddiverse run --resume there" in capsys.readouterr().err


def test_every_option_and_key_is_documented() -> None:
    import click
    import typer

    from feddiverse.cli import app

    text = DOCS.read_text("utf-8")
    command = typer.main.get_command(app)
    assert isinstance(command, click.Group)
    options = [name for option in command.commands["run"].params for name in option.opts]
    assert [name for name in options if f"`{name}" not in text] == []
    assert [key for key in KEYS if f"| `{key}` |" not in text] == []


def test_what_a_run_directory_says_is_documented(tmp_path: Path) -> None:
    """Every key of a record and of a result is in the table of files."""
    made = fd.train("digits-gsc", rounds=1, num_selected=2, workers=1, out=tmp_path / "run", on_round=lambda _: False)
    said = {
        line.split("|")[1].strip(" `"): line for line in DOCS.read_text("utf-8").splitlines() if ".json" in line[:20]
    }
    files = {"rounds.jsonl": made.history[-1], "result.json": made.summary}
    files["federation.json"] = json.loads((tmp_path / "run" / "federation.json").read_text())
    for name, content in files.items():
        words = set(re.findall(r"\w+", said[name]))
        assert content.keys() <= words, name


def test_clock() -> None:
    assert [clock(s) for s in (0, 61, 3599, 3600, 7325)] == ["0:00", "1:01", "59:59", "1:00:00", "2:02:05"]
    assert clock(90_000) == "25:00:00"


def test_a_mistake_in_own_code_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text(
        "import json\nimport feddiverse as fd\n\n"
        "class Broken(fd.Selector):\n"
        "    def choose(self, round, k, clients, ask, rng):\n"
        "        return json.loads('nothing')\n"  # a library raises, but it is this line that called it
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDDIVERSE_DEBUG", raising=False)
    federation = "dirichlet(alpha=0.3,clients=6,samples=240):digits"
    arguments = ["--federation", federation, "--set", "num_selected=3", "--rounds", 1, "--workers", 1]
    assert feddiverse(monkeypatch, *arguments, "--selector", "broken:Broken") == 2
    told = capsys.readouterr().err
    assert "Your own code failed in choose (broken.py, line 6): JSONDecodeError: " in told
    assert "Unexpected" not in told
