"""What each way to select costs beyond training the chosen clients: the measured part of the paper's Table II."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from feddiverse import registry
from feddiverse.experiment.config import from_mapping
from feddiverse.experiment.opening import Objects, open_run
from feddiverse.experiment.records import COUNTED, num_rounds, total, traffic_of
from feddiverse.experiment.train import TestedEngine, carry_out
from feddiverse.server.meter import EVALUATION, Traffic

METHODS: dict[str, Mapping[str, Any]] = {
    "FedDiverse, paper's estimator": {"selector": "feddiverse", "estimator": "paper"},
    "FedDiverse, consensus": {"selector": "feddiverse", "estimator": "consensus"},
    "Uniform": {"selector": "uniform"},
    "Round robin": {"selector": "round_robin"},
    "FedNova, all clients": {"selector": "everyone", "aggregator": "fednova"},
    "pow-d": {"selector": "pow_d"},
    "FedPNS": {"selector": "fedpns"},
    "HCSFed": {"selector": "hcsfed"},
    "Group balance": {"selector": "group_balance", "estimator": "consensus"},
    "Fed-CBS": {"selector": "fed_cbs"},
    "Oort": {"selector": "oort"},
    "Label entropy": {"selector": "label_entropy"},
    "HiCS-FL": {"selector": "hics_fl"},
    "HACCS": {"selector": "haccs"},
    "FedDyn": {"selector": "uniform", "aggregator": "feddyn"},
    "MOON": {"selector": "uniform", "aggregator": "moon"},
}
"""The rows of the table, and how to run each."""


@dataclass(frozen=True)
class Cost:
    """What a short run of one method took. `extra` is beyond training κ clients a round; `first` its part in the rounds
    up to and including the first choice, `each` what every later round adds on average."""

    rounds: int
    num_clients: int
    num_selected: int
    kinds: Traffic  # over all rounds, by kind of message
    extra: dict[str, float]
    first: dict[str, float]
    each: dict[str, float]
    server_seconds: float
    server_seconds_each: float


def measure(
    values: Mapping[str, Any], rounds: int, methods: Iterable[str] = METHODS, workers: int = 0,
    on_method: Callable[[str], None] = lambda name: None,
) -> Iterator[tuple[str, Cost]]:  # fmt: skip
    """Run each method for `rounds` rounds with the config keys `values`; all share one engine, data and model."""
    values = {**values, "rounds": rounds, "evaluate_every": rounds}
    opened = open_run(from_mapping(values))
    federation = opened.federation
    with closing(registry.find(registry.ENGINE, "local")(opened, workers, "auto")) as engine:
        for name in methods:
            on_method(name)
            config = from_mapping({**values, **METHODS[name]})
            result = carry_out(config, Objects(federation), engine=lambda *_: _Lent(engine))
            num_selected = config.num_selected or federation.num_selected
            yield name, cost(result.history, federation.num_clients, num_selected)


class _Lent:
    """An engine lent to one run: closing it is the lender's business."""

    def __init__(self, engine: TestedEngine) -> None:
        self.clients, self.ask = engine.clients, engine.ask
        self.evaluate, self.ask_test_set = engine.evaluate, engine.ask_test_set

    def close(self) -> None:
        pass


def cost(records: list[dict[str, Any]], num_clients: int, num_selected: int) -> Cost:
    """The cost told by a run's records."""
    expected = min(num_selected, num_clients)
    start = next((i for i, record in enumerate(records) if record["phase"] == "selected"), len(records) - 1) + 1
    kinds = {kind: row for kind, row in traffic_of(records).items() if kind != EVALUATION}
    a_message = {name: kinds["train"][name] / max(1, kinds["train"]["messages"]) for name in COUNTED}

    def extra(part: list[dict[str, Any]]) -> dict[str, float]:
        here = {kind: row for kind, row in traffic_of(part).items() if kind != EVALUATION}
        beyond = here.pop("train", {"messages": 0})["messages"] - expected * num_rounds(part)
        return total([*here.values(), {name: beyond * a_message[name] for name in COUNTED}])

    later = records[start:]
    num_later = max(1, num_rounds(later))
    return Cost(
        rounds=num_rounds(records),
        num_clients=num_clients,
        num_selected=num_selected,
        kinds=kinds,
        extra=extra(records),
        first=extra(records[:start]),
        each={name: value / num_later for name, value in extra(later).items()},
        server_seconds=sum(record["selection_seconds"] for record in records),
        server_seconds_each=sum(record["selection_seconds"] for record in later) / num_later,
    )
