"""What each way to select costs beyond training the chosen clients: the paper's Table II, with what is measured."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from feddiverse.experiment.config import Config, from_mapping
from feddiverse.experiment.opening import Opened
from feddiverse.experiment.records import describe_federation
from feddiverse.server.meter import Traffic

if TYPE_CHECKING:
    from feddiverse.engine.local import LocalEngine

COUNTED = ("messages", "bytes_down", "bytes_up", "client_seconds")


@dataclass(frozen=True)
class Method:
    """A row of the table: how to run it, and the paper's formulas (ours where the paper has none)."""

    name: str
    config: Mapping[str, Any]
    frequency: str
    communication: str
    client: str
    server: str
    in_paper: bool = True


METHODS = (
    Method("FedDiverse, paper's estimator", {"selector": "feddiverse", "estimator": "paper"}, "t = 1", "3",
           "∀k: 2·O(n_k|θ|)", "O(K)"),
    Method("FedDiverse, consensus", {"selector": "feddiverse", "estimator": "consensus"}, "t = 1", "moments + 3",
           "∀k: O(n_k|θ|)", "O(K)", in_paper=False),
    Method("Uniform", {"selector": "uniform"}, "0", "0", "0", "O(1)"),
    Method("Round robin", {"selector": "round_robin"}, "0", "0", "0", "O(1)"),
    Method("FedNova, all clients", {"selector": "everyone", "aggregator": "fednova"}, "∀t", "3 + ∀k∉K': θ_k",
           "O(1) + ∀k∉K': O(n_k|θ|)", "O(K)"),
    Method("pow-d", {"selector": "pow_d"}, "∀t", "1 + ∀k∉K': θ", "∀k∉K': O(n_k|θ|)", "O(K log K)"),
    Method("FedPNS", {"selector": "fedpns"}, "0", "0", "0", "O(K²|θ|²)"),
    Method("HCSFed", {"selector": "hcsfed"}, "t = 1", "r·θ_k", "r|θ|²", "t = 1: O(K·r|θ|), then O(K)"),
    Method("Group balance", {"selector": "group_balance", "estimator": "consensus"}, "t = 1", "moments + |Y||A|",
           "∀k: O(n_k|θ|)", "t = 1: O(K(|Y||A|)²), then O(K)", in_paper=False),
    Method("Fed-CBS", {"selector": "fed_cbs"}, "t = 1", "|Y|", "O(n_k)", "O(κK|Y|)", in_paper=False),
    Method("Oort", {"selector": "oort"}, "∀t", "2", "∀k∈K': O(n_k|θ|)", "O(K log K)", in_paper=False),
    Method("Label entropy", {"selector": "label_entropy"}, "t = 1", "|Y|", "O(n_k)", "O(κK|Y|)", in_paper=False),
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """What a short run of one method took. `extra` is beyond training κ clients a round; `first` its part in the rounds
    up to and including the first choice, `each` what every later round adds on average."""

    method: Method
    rounds: int
    num_clients: int
    num_selected: int
    kinds: Traffic  # over all rounds, by kind of message
    extra: dict[str, float]
    first: dict[str, float]
    each: dict[str, float]
    server_seconds: float
    server_seconds_each: float

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    values: Mapping[str, Any], rounds: int, methods: tuple[Method, ...] = METHODS, workers: int = 0,
    on_method: Callable[[str], None] = lambda name: None,
) -> Iterator[Cost]:  # fmt: skip
    """Run each method for `rounds` rounds with the config keys `values`."""
    from feddiverse.experiment.train import carry_out

    with _OneEngine(workers) as engine:
        for method in methods:
            on_method(method.name)
            config = from_mapping({**values, **method.config, "rounds": rounds, "evaluate_every": rounds})
            result = carry_out(config, engine=engine.open)
            yield cost(
                method, config, result.history, describe_federation(engine.federation, engine.federation.num_selected)
            )


class _OneEngine:
    """An engine that is started by the first run and lent to all others: they share data and model."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._engine: LocalEngine | None = None

    def open(self, run: Opened, workers: int, device: str) -> "_OneEngine":
        from feddiverse.engine.local import open_engine

        self.federation = run.federation
        self._engine = self._engine or open_engine(run, self._workers)
        self.clients = self._engine.clients
        self.ask = self._engine.ask
        self.evaluate = self._engine.evaluate
        return self

    def close(self) -> None:
        """A run is over; the engine is not."""

    def __enter__(self) -> "_OneEngine":
        return self

    def __exit__(self, *error: object) -> None:
        if self._engine is not None:
            self._engine.close()


def cost(method: Method, config: Config, records: list[dict[str, Any]], federation: Mapping[str, Any]) -> Cost:
    """The cost told by a run's records."""
    num_selected = config.num_selected or federation["num_selected"]
    num_clients = len(federation["counts"])
    train = _sum([record["traffic"]["train"] for record in records])
    per_message = {name: train[name] / max(1, train["messages"]) for name in COUNTED}
    expected = min(num_selected, num_clients)
    extras = []
    for record in records:
        beyond = record["traffic"]["train"]["messages"] - expected
        other = [row for kind, row in record["traffic"].items() if kind != "train"]
        extras.append(_sum([*other, {name: beyond * per_message[name] for name in COUNTED}]))
    start = next((i for i, record in enumerate(records) if record["phase"] == "selected"), len(records) - 1) + 1
    later = records[start:]
    kinds = sorted({kind for record in records for kind in record["traffic"]})
    empty = dict.fromkeys(COUNTED, 0.0)
    return Cost(
        method=method,
        rounds=len(records),
        num_clients=num_clients,
        num_selected=num_selected,
        kinds={kind: _sum([record["traffic"].get(kind, empty) for record in records]) for kind in kinds},
        extra=_sum(extras),
        first=_sum(extras[:start]),
        each={name: value / max(1, len(later)) for name, value in _sum(extras[start:]).items()},
        server_seconds=sum(record["selection_seconds"] for record in records),
        server_seconds_each=sum(record["selection_seconds"] for record in later) / max(1, len(later)),
    )


def _sum(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(sum(row[name] for row in rows)) for name in COUNTED}
