"""docs/paper.md points at files and commands that exist, and leaves no equation, table or figure out."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import typer.main

from feddiverse import registry
from feddiverse.cli import app
from feddiverse.experiment.config import KEYS, SHORTHANDS
from feddiverse.experiment.grids import STUDIES

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "paper.md").read_text("utf-8")
COMMANDS = typer.main.get_command(app).commands
NAMED_FILES = sorted(set(re.findall(r"`([\w/]+\.py)`", TEXT)))
NAMED_COMMANDS = sorted(set(re.findall(r"`(feddiverse [^`]+)`", TEXT)))


@pytest.mark.parametrize("name", NAMED_FILES)
def test_file_exists(name: str) -> None:
    assert (ROOT / "src" / "feddiverse" / name).is_file() or (ROOT / name).is_file()


@pytest.mark.parametrize("line", NAMED_COMMANDS)
def test_command_exists_with_its_options_and_values(line: str) -> None:
    _, name, *words = shlex.split(line)
    options = {opt for parameter in COMMANDS[name].params for opt in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
    given = dict(pairwise(words))
    assert given.get("--selector", "uniform") in registry.SELECTOR.builtin
    assert given.get("--aggregator", "fedavg") in {**registry.AGGREGATOR.builtin, **SHORTHANDS}
    assert given.get("--set", "seed=0").partition("=")[0] in KEYS
    if name == "study":
        assert words[0] in STUDIES


def test_nothing_of_the_paper_is_left_out() -> None:
    numbers = {int(n) for a, b in re.findall(r"Eq\. (\d+)(?:–(\d+))?", TEXT) for n in range(int(a), int(b or a) + 1)}
    assert numbers == set(range(1, 11))
    for wanted in ("Table I,", "Table II,", "Table III,", "Table IV,", "Fig. 1,", "Fig. 2,", "Fig. 3,"):
        assert wanted in TEXT
    for number in range(1, 7):
        assert f"Baseline {number}," in TEXT


def test_every_line_of_a_table_names_a_file() -> None:
    rows = [
        line
        for line in TEXT.splitlines()
        if line.startswith("| ") and not line.startswith(("| ---", "| in the", "| table or", "| decision"))
    ]
    assert len(rows) > 40
    assert not [row for row in rows if not re.search(r"`[\w/]+\.py`", row)]
