"""Examples run as a reader would run them."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("measure_own_federation.py", "north: CI 0.000  AI 0.000  SC 0.531  mostly spurious correlation"),
        ("own_selector.py", "worst-group accuracy 0."),
        ("own_model_and_data.py", "worst-group accuracy "),
        ("penguins.py", "It is the species (Gentoo or not) for 100% of the penguins."),
    ],
)
def test_example_runs(name: str, says: str, tmp_path: Path) -> None:
    environment = {**os.environ, "FEDDIVERSE_HOME": str(tmp_path)}
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


def test_a_selector_takes_twenty_lines() -> None:
    source = (EXAMPLES / "own_selector.py").read_text()
    body = source[source.index("class ") : source.index("if __name__")]
    assert len([line for line in body.splitlines() if line.strip()]) <= 20


def test_the_notebook_runs_and_has_its_outputs(tmp_path: Path) -> None:
    notebook, kept = (nbformat.read(EXAMPLES / "first_steps.ipynb", as_version=4) for _ in range(2))
    # No limits of its own: pytest's is enough, and a busy machine may take long to start a kernel.
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=None, startup_timeout=600, resources=resources).execute()
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output
    )
    assert "of 2,800 test pictures are right" in printed
    assert "('coast', 'hills', 'north', 'south')" in printed
    code, shown = ([cell for cell in each.cells if cell.cell_type == "code"] for each in (notebook, kept))
    assert [bool(cell.outputs) for cell in code] == [
        bool(cell.outputs) for cell in shown
    ]  # else run docs/.hooks/notebook.py
    assert any("image/png" in output.get("data", {}) for cell in shown for output in cell.outputs)
