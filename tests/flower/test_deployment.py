"""What the deployment examples stand on; `make deployment` runs them whole."""

import os
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples/deployment"


def test_a_process_that_ends_by_itself_does_not_save_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from machinery import Deployment

    made = Deployment(tmp_path / "deployment")
    marked = {**os.environ, "FEDDIVERSE_DEPLOYMENT": made._mark}
    first, second = (subprocess.Popen(["sleep", "60"], env=marked) for _ in range(2))
    look = made._mine

    def look_before_the_first_ends() -> list[int]:
        found = sorted(look(), key=lambda process_id: process_id != first.pid)
        first.kill()
        first.wait()
        return found

    monkeypatch.setattr(made, "_mine", look_before_the_first_ends)
    try:
        assert made.shut_down() == 0
        assert second.wait(10) < 0, "killed"
    finally:
        second.kill()
