"""What README and docs say is true: commands run, options are documented."""

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from feddiverse import registry
from feddiverse.cli import app
from feddiverse.experiment.config import PARTS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
COMMANDS = typer.main.get_command(app).commands


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def shell_lines() -> list[str]:
    return [line for block in blocks("console") for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE)]


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("feddiverse ")])
def test_readme_command_runs(line: str, tmp_path: Path) -> None:
    words = shlex.split(line, comments=True)
    command = [sys.executable, "-c", "from feddiverse.cli import main; main()", *words[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_readme_make_targets_exist() -> None:
    wanted = {line.split()[1] for line in shell_lines() if line.startswith("make ")}
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert wanted
    assert wanted <= targets


def test_what_the_readme_claims_can_be_shown() -> None:
    """Every claim of the table names a command whose parts are there."""
    table = README.read_text().partition("## Every claim has its command")[2].partition("\n## ")[0]
    claims = re.findall(r"^\| (?!claim|---)(.*) \| (.*) \|$", table, re.MULTILINE)
    assert len(claims) >= 8
    for claim, shown in claims:
        commands = [code for code in re.findall(r"`(.*?)`", shown) if re.match(r"make |feddiverse |python ", code)]
        assert commands, claim
        for program, *words in map(shlex.split, commands):
            if program == "make":
                assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text(), claim
            elif program == "python":
                assert (ROOT / f"{words[1].replace('.', '/')}.py").exists(), claim
            else:
                assert words[0] in COMMANDS, claim
                assert all((ROOT / word).exists() for word in words if word.startswith("results/")), claim


@pytest.mark.parametrize("block", blocks("python"))
def test_readme_python_runs(block: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_and_options_are_documented(name: str) -> None:
    assert f"feddiverse {name}" in DOCS
    options = [opt for p in COMMANDS[name].params for opt in p.opts if opt.startswith("--") and opt != "--help"]
    assert not [opt for opt in options if f"`{opt}" not in DOCS and f" {opt}" not in DOCS]


def test_parameters_of_parts_are_there_to_be_set() -> None:
    """A name that is none might still be taken, for a key of ours: a recorded command would then do something else."""
    recorded = "\n".join(path.read_text() for path in [*ROOT.glob("results/*.json"), *ROOT.glob("benchmarks/*.py")])
    set_somewhere = set(re.findall(r"\b(selector|estimator|average|objective)\.([a-z_]+)=", DOCS + recorded))
    assert {("selector", "rule"), ("estimator", "sees")} <= set_somewhere
    for part, name in sorted(set_somewhere):
        kind = PARTS[part]
        known = [inspect.signature(registry.find(kind, builtin)).parameters for builtin in kind.builtin]
        assert any(name in parameters for parameters in known), f"no {part} has a parameter {name}"
