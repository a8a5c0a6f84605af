import difflib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_grid import FakeGrid
from flwr.app import Context, RecordDict

EXAMPLE = Path(__file__).parents[2] / "examples/flower_quickstart"
CONFIG = {"num-server-rounds": 3, "fraction-train": 0.5, "local-epochs": 1, "learning-rate": 0.1}


@pytest.fixture(params=["before", "after"])
def app(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any, Any]]:
    """The example's two apps, imported as Flower would."""
    monkeypatch.syspath_prepend(str(EXAMPLE / request.param))
    yield (
        request.param,
        importlib.import_module("quickstart.server_app").app,
        importlib.import_module("quickstart.client_app").app,
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        del sys.modules[name]


def test_both_run_and_learn(app: tuple[str, Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    which, server_app, client_app = app
    grid = FakeGrid(client_app, 8)
    grid.run_config = dict(CONFIG)
    server_app(grid, Context(1, 0, {}, RecordDict(), dict(CONFIG)))
    assert "accuracy of the last round: {1:" in capsys.readouterr().out
    asked = len(grid.asked("query.feddiverse_attribute_triplet"))
    assert asked == (0 if which == "before" else 8)
    assert len(grid.asked("train")) == (12 if which == "before" else 8 + 4 + 4)


def test_the_difference_is_a_handful_of_lines() -> None:
    changed = 0
    for before in sorted((EXAMPLE / "before").rglob("*.*")):
        after = EXAMPLE / "after" / before.relative_to(EXAMPLE / "before")
        if before.suffix in (".py", ".toml"):
            lines = difflib.ndiff(before.read_text().splitlines(), after.read_text().splitlines())
            changed += sum(line.startswith("+ ") and bool(line[2:].strip()) for line in lines)
    assert 0 < changed <= 10
