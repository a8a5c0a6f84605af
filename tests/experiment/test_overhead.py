"""The overhead table: what is counted as overhead, by hand; and that every selector has its row."""

import json

import pytest
from typer.testing import CliRunner

from feddiverse import registry
from feddiverse.cli import app, console
from feddiverse.experiment import overhead
from feddiverse.experiment.config import Config
from feddiverse.experiment.overhead import METHODS, cost
from feddiverse.report.published import OVERHEAD


def traffic(messages: int, each: float = 100.0) -> dict[str, float]:
    return {
        "messages": messages, "bytes_down": each * messages, "bytes_up": 10 * messages, "client_seconds": 2.0 * messages
    }  # fmt: skip


def record(phase: str, seconds: float, **kinds: dict[str, float]) -> dict:
    return {"phase": phase, "selection_seconds": seconds, "traffic": kinds}


RECORDS = [
    record("pretraining", 0.0, train=traffic(5)),
    record("selected", 0.4, train=traffic(2), paper_triplet=traffic(5)),
    record("selected", 0.1, train=traffic(2)),
    record("selected", 0.3, train=traffic(2), loss=traffic(3, each=8.0)),
]


def test_overhead_is_what_goes_beyond_training_the_chosen() -> None:
    found = cost(RECORDS, num_clients=5, num_selected=2)
    assert (found.rounds, found.num_clients, found.num_selected) == (4, 5, 2)
    assert found.first == {"messages": 8, "bytes_down": 800, "bytes_up": 80, "client_seconds": 16}
    assert found.each == {"messages": 1.5, "bytes_down": 12, "bytes_up": 15, "client_seconds": 3}
    assert found.extra["bytes_down"] == 824
    assert found.kinds["train"]["messages"] == 11
    assert (found.server_seconds, found.server_seconds_each) == (pytest.approx(0.8), pytest.approx(0.2))


def test_every_selector_has_a_row_and_every_row_a_config() -> None:
    assert {settings["selector"] for settings in METHODS.values()} == set(registry.names(registry.SELECTOR))
    assert all(Config(**settings) for settings in METHODS.values())
    assert METHODS.keys() == OVERHEAD.keys()


def test_the_command_prints_formulas_beside_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(values, rounds, methods, workers, on_method):
        assert values == {"federation": "digits-gsc", "seed": 0, "num_selected": 2}
        return ((method, cost(RECORDS, 5, 2)) for method in methods)

    monkeypatch.setattr(overhead, "measure", measure)
    monkeypatch.setattr(console.out, "width", 200)
    shown = CliRunner().invoke(app, ["overhead", "--federation", "digits-gsc", "--set", "num_selected=2"]).output
    for text in (
        "O(K²|θ|²)",
        "∀k: 2·O(n_k|θ|)",
        "paper_triplet",
        "800 bytes",
        "1.1 kB",
        "K = 5 clients, κ = 2",
        "Label entropy *",
        "200.0 ms",
    ):
        assert text in shown
    plain = CliRunner().invoke(app, ["overhead", "--set", "num_selected=2", "--paper-only", "--json"]).output
    rows = json.loads(plain)
    assert [row["method"]["name"] for row in rows] == [name for name, row in OVERHEAD.items() if row.in_paper]
    assert rows[0]["method"]["server"] == "O(K)"
    assert rows[0]["first"]["bytes_down"] == 800


@pytest.mark.slow
def test_measured_on_digits() -> None:
    """Uniform has no overhead; Fed-CBS costs two numbers a client, once."""
    found = dict(overhead.measure({"federation": "digits-gsc"}, 3, ["Uniform", "Fed-CBS"], workers=1))
    uniform, fed_cbs = found["Uniform"], found["Fed-CBS"]
    assert set(uniform.extra.values()) == {0.0}
    assert uniform.kinds.keys() == {"train"}
    assert fed_cbs.kinds["label_counts"]["bytes_up"] == 24 * 2 * 4 == fed_cbs.first["bytes_up"]
    assert set(fed_cbs.each.values()) == {0.0}
