"""The loop as a Flower app: `flwr run .` starts these two, in a simulation or on a deployment.

Run config keys are those of our config; "own" stands for a key's own default. Besides these: `set`, for parameters of
parts (Flower itself refuses keys that the app does not list), `out`, and what the engine must know of a deployment
(docs/deployment.md).
"""

import functools
import shlex
from collections.abc import Iterator
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from feddiverse.client.tasks import ANSWERS
from feddiverse.data.federation import Federation
from feddiverse.engine.local import LocalEngine
from feddiverse.engine.machine import choose_device
from feddiverse.errors import UserError
from feddiverse.experiment.config import Config, from_mapping, parse_assignments
from feddiverse.experiment.opening import Objects, Opened
from feddiverse.experiment.records import worst_in_words
from feddiverse.experiment.run_directory import run_name
from feddiverse.experiment.train import carry_out
from feddiverse.flower import beside, wire
from feddiverse.flower.beside import Place
from feddiverse.flower.described import DESCRIBE_ACTION, SITES, describe, description
from feddiverse.flower.engine import FlowerEngine, Timeouts
from feddiverse.flower.policy import insist
from feddiverse.flower.site import FileSite, open_site
from feddiverse.messages import Reply, Task, Train, Vector
from feddiverse.models import ModelSpec

OWN = "own"
SET = "set"  # `selector.temperature=3 …`, as the command line's --set
ENGINE_KEYS = ("out", "device", "min_clients", "train_timeout", "query_timeout", "hello_timeout")
"""Keys of the run config that say how to run, not what."""


class ServerEngine(FlowerEngine):
    """Clients through Flower; the server's own test set in this process."""

    def __init__(
        self,
        grid: Grid,
        federation: Federation,
        spec: ModelSpec,
        expected: int,
        timeouts: Timeouts | None = None,
        device: str = "auto",
    ) -> None:
        super().__init__(grid, expected, timeouts, federation.num_clients)
        self._tester = LocalEngine(federation, spec, device=device, in_process=True)

    def evaluate(self, theta: Vector) -> NDArray[np.int64]:
        """[2, classes, attributes]: right answers on the balanced test set, and samples."""
        return self._tester.evaluate(theta)

    def ask_test_set(self, task: Task, theta: Vector) -> Iterator[Reply]:
        """The server's own samples, asked like a client's, part by part."""
        return self._tester.ask_test_set(task, theta)

    def close(self) -> None:
        self._tester.close()


def read_config(run_config: dict[str, Any]) -> Config:
    """Our config out of Flower's run config."""
    given = {key: value for key, value in run_config.items() if key not in (SET, *ENGINE_KEYS) and value != OWN}
    try:
        assignments = shlex.split(str(run_config.get(SET, "")))
    except ValueError as error:
        raise UserError(f"'{SET}' in the run config is not of the form 'key=value key=value': {error}.") from error
    return from_mapping({**given, **parse_assignments(assignments)}, "the run config")


def build_client_app(
    config: Config | None = None, device: str = "", shared: Any = None, place: Place | None = None
) -> ClientApp:
    """Answers every question we know. What is not given is taken from the context of each message: `config` from the
    run config, `device` from the node config, or else from the run config. `shared` is for `open_site`; `place`: where
    a simulation's vectors lie, beside its messages."""
    app = ClientApp()
    respond = functools.partial(_answer, config, device, shared, place)
    app.query(wire.HELLO_ACTION)(functools.partial(_hello, config, device, shared))
    app.query(DESCRIBE_ACTION)(functools.partial(_describe, config, device, shared))
    for kind in ANSWERS:
        register = app.train() if kind is Train else app.query(wire.action(kind))
        register(respond)
    return app


def _hello(config: Config | None, device: str, shared: Any, message: Message, context: Context) -> Message:
    client, site = _open(config, device, shared, context)
    content = wire.introduction(client, site.num_examples(client), context.node_config)
    return Message(content, reply_to=message)


def _describe(config: Config | None, device: str, shared: Any, message: Message, context: Context) -> Message:
    _, site = _open(config, device, shared, context)
    if not isinstance(site, FileSite):
        raise UserError("Only a node with a partition-file can say what its data are like.")
    return Message(description(site.partition, site.class_counts()), reply_to=message)


def _answer(
    config: Config | None, device: str, shared: Any, place: Place | None, message: Message, context: Context
) -> Message:
    client, site = _open(config, device, shared, context)
    memory = wire.read_memory(context.state)
    task = insist(wire.decode_task(message.content), client, context.node_config)
    vectors = beside.find(place, message.content)
    theta = wire.theta_in(message.content) if vectors is None else vectors.theta
    reply = task if isinstance(task, Reply) else site.answer(task, theta, client, memory)
    wire.write_memory(context.state, memory)
    where = RecordDict()
    if vectors is not None:
        reply, where = beside.leave(vectors, message.content, reply)
    return Message(RecordDict({**wire.encode_reply(reply), **where}), reply_to=message)


def _open(config: Config | None, device: str, shared: Any, context: Context) -> tuple[int, Any]:
    """The client this node is, and its data: those of its partition file where its node config names one."""
    client = int(context.node_config[wire.PARTITION])
    file = str(context.node_config.get("partition-file", ""))
    device = device or str(context.node_config.get("device", "") or context.run_config.get("device", "cpu"))
    return client, open_site(config or read_config(dict(context.run_config)), choose_device(device), file, shared)


def serve(grid: Grid, context: Context) -> None:
    """The server: what `feddiverse run` does, with clients reached through `grid`."""
    values = dict(context.run_config)
    config = read_config(values)
    timeouts = Timeouts(*(float(values[f"{kind}_timeout"]) for kind in ("train", "query", "hello")))
    expected, device = int(values["min_clients"]), str(values["device"])
    out = Path(str(values["out"]) or Path("runs") / run_name(config)).absolute()

    def open_engine(run: Opened, workers: int, device: str) -> ServerEngine:
        return ServerEngine(grid, run.federation, run.spec, expected or run.federation.num_clients, timeouts, device)

    objects = None
    if config.federation == SITES:
        if not config.holdout:
            raise UserError(
                f'With federation="{SITES}" the server has no test set: have clients hold samples out (holdout).'
            )
        objects = Objects(describe(FlowerEngine(grid, expected or 1, timeouts)))
    result = carry_out(config, objects, out=out, engine=open_engine, device=device, on_round=report)
    worst = worst_in_words(result.summary)
    log(INFO, "%s", f"{worst and worst.capitalize() + ' '}after {len(result.history)} rounds; see {out}.")


def report(record: dict[str, Any]) -> None:
    """A line a round, for `flwr run --stream` or `flwr log`."""
    for warning in record["warnings"]:
        log(WARNING, "%s", warning)
    parts = [f"round {record['round']}", record["phase"], f"{len(record['selected'])} clients"]
    if record["train_loss"] is not None:
        parts.append(f"loss {record['train_loss']:.4f}")
    if worst := worst_in_words(record):
        parts.append(worst)
    log(INFO, "%s", "  ".join([*parts, f"{record['seconds']:.1f} s"]))


server_app = ServerApp()
server_app.main()(serve)
client_app = build_client_app()
