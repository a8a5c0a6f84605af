"""Examples run as a reader would run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("measure_own_federation.py", "north: CI 0.000  AI 0.000  SC 0.531  mostly spurious correlation"),
        ("own_selector.py", "worst-group accuracy 0."),
        ("own_model_and_data.py", "worst-group accuracy "),
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
