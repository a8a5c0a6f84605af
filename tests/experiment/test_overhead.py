"""The overhead table: what is counted as overhead, by hand; and that every selector has its row."""

import json

import pytest
from typer.testing import CliRunner

from feddiverse import registry
from feddiverse.cli import app, console
from feddiverse.cli.overhead import size
from feddiverse.experiment import overhead
from feddiverse.experiment.config import Config
from feddiverse.experiment.overhead import METHODS, cost

FEDERATION = {"num_selected": 2, "counts": [[[1]]] * 5}


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
    found = cost(METHODS[0], Config(), RECORDS, FEDERATION)
    assert (found.rounds, found.num_clients, found.num_selected) == (4, 5, 2)
    assert found.first == {"messages": 8, "bytes_down": 800, "bytes_up": 80, "client_seconds": 16}
    assert found.each == {"messages": 1.5, "bytes_down": 12, "bytes_up": 15, "client_seconds": 3}
    assert found.extra["bytes_down"] == 824
    assert found.kinds["train"]["messages"] == 11
    assert (found.server_seconds, found.server_seconds_each) == (pytest.approx(0.8), pytest.approx(0.2))


def test_every_selector_has_a_row_and_every_row_a_config() -> None:
    assert {method.config["selector"] for method in METHODS} == set(registry.SELECTOR.builtin)
    assert all(Config(**method.config) for method in METHODS)


def test_sizes_are_readable() -> None:
    assert [size(n) for n in (0, 3, 999, 1000, 5_624_900, 3e12, -2e6)] == [
        "0 B", "3 B", "999 B", "1 kB", "5.625 MB", "3000 GB", "-2 MB"
    ]  # fmt: skip


def test_the_command_prints_formulas_beside_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(values, rounds, methods, workers, on_method):
        assert values == {"federation": "digits-gsc", "seed": 0, "num_selected": 2}
        return (cost(method, Config(), RECORDS, FEDERATION) for method in methods)

    monkeypatch.setattr(overhead, "measure", measure)
    monkeypatch.setattr(console.out, "width", 200)
    shown = CliRunner().invoke(app, ["overhead", "--federation", "digits-gsc", "--set", "num_selected=2"]).output
    for text in ("O(K²|θ|²)", "∀k: 2·O(n_k|θ|)", "paper_triplet", "934 B", "800 B", "Label entropy", "0.2000"):
        assert text in shown
    plain = CliRunner().invoke(app, ["overhead", "--set", "num_selected=2", "--paper-only", "--json"]).output
    rows = json.loads(plain)
    assert [row["method"]["name"] for row in rows] == [method.name for method in METHODS if method.in_paper]
    assert rows[0]["first"]["bytes_down"] == 800


@pytest.mark.slow
def test_measured_on_digits() -> None:
    """Uniform has no overhead; Fed-CBS costs two numbers a client, once."""
    methods = tuple(method for method in METHODS if method.config["selector"] in ("uniform", "fed_cbs"))
    uniform, fed_cbs = overhead.measure({"federation": "digits-gsc"}, 3, methods, workers=1)
    assert set(uniform.extra.values()) == {0.0}
    assert uniform.kinds.keys() == {"train"}
    assert fed_cbs.kinds["label_counts"]["bytes_up"] == 24 * 2 * 4 == fed_cbs.first["bytes_up"]
    assert set(fed_cbs.each.values()) == {0.0}
