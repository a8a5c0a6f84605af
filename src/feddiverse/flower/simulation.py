"""A Flower simulation for `feddiverse run --engine flower`: started when the run needs its engine, gone with it.

Flower's own way to start one, `flwr run`, leaves a daemon behind. Here Flower runs in a thread of this process, its
server app hands the grid to the run and waits until the run is over.

Flower sends the client app with every message. So data and models that only this program has are put into Ray's object
store once, where every worker process reads them; the app has no more than a reference. Ray pickles them: they are this
program's own, and do not leave this machine. θ and its updates lie beside the messages (`beside.py`).
"""

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

from feddiverse.engine.machine import choose_device, usable_cores
from feddiverse.errors import RunError, UserError, how_to_install
from feddiverse.experiment.config import Config
from feddiverse.experiment.opening import Objects, Opened

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.server.superlink.linkstate import LinkState
    from flwr.serverapp import Grid

    from feddiverse.flower.apps import ServerEngine

QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what a later Ray will do anyway; without it Ray warns
}
START_SECONDS = 600.0  # seconds on an idle machine; on one with many busy processes minutes
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.1  # how often waiting threads look whether they should end, or whether anything broke
MANY = 3  # clients a worker and round: with fewer, sending ahead costs more at a round's end than it gains before


def open_engine(run: Opened, workers: int = 0, device: str = "auto") -> "ServerEngine":
    """The engine `flower` for an opened run: its clients simulated by Flower, on this machine."""
    os.environ.update(QUIET)  # read when Flower is imported
    try:
        import flwr  # noqa: F401
        import ray  # noqa: F401
    except ImportError as error:
        raise UserError(f"The engine 'flower' needs Flower ({error}): {how_to_install('flower')}.") from error
    from feddiverse.flower.apps import ServerEngine
    from feddiverse.flower.beside import BesideEngine

    workers, device = workers or usable_cores(), choose_device(device)
    federation, spec = run.federation, run.spec
    for_clients = Objects(run.objects.federation, run.objects.model)  # the other parts are the server's
    many = run.plan.num_selected >= MANY * workers
    simulation = Simulation(run.config, federation.num_clients, workers, device, for_clients, ahead=many)

    class SimulationEngine(BesideEngine, ServerEngine):
        """Ends the simulation with itself, and itself with the simulation."""

        beside = simulation.beside

        def check(self) -> None:
            simulation.check()

        def wait(self, seconds: float) -> None:
            simulation.answered.wait(max(seconds, LOOK_SECONDS))  # it says when: looking in between costs a core
            simulation.answered.clear()

        def _push(self, messages: Iterable["Message"]) -> set[str]:
            sent = list(messages)
            pushed = super()._push(sent)
            for message in sent:
                simulation.pushed.put(message.metadata.dst_node_id)
            return pushed

        def close(self) -> None:
            super().close()
            simulation.stop()

    try:
        return SimulationEngine(simulation.grid, federation, spec, federation.num_clients, device=device)
    except BaseException:
        simulation.stop()
        raise


class Simulation:
    """Flower's simulation engine in a thread: `num_clients` virtual nodes on `workers` processes.

    `ahead`: send a worker its next message while it answers one.
    """

    def __init__(
        self,
        config: Config,
        num_clients: int,
        workers: int,
        device: str,
        objects: Objects | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        from feddiverse.flower.beside import Beside

        self.beside = Beside(workers) if Beside.is_possible() else None  # where vectors lie, beside the messages
        self.pushed: Queue[int] = Queue()  # nodes that a message waits for
        self.answered = threading.Event()  # set when there is an answer
        self._over = threading.Event()
        self._grids: Queue[Grid | None] = Queue()  # None: there will be no grid
        self._error: BaseException | None = None
        gpus = 1 / workers if device == "cuda" else 0.0
        backend = {
            "init_args": {
                "num_cpus": workers,
                "include_dashboard": False,
                "log_to_driver": False,
                "logging_level": logging.ERROR,
            },
            "client_resources": {"num_cpus": 1, "num_gpus": gpus},
        }
        self._thread = threading.Thread(
            target=self._run,
            args=(config, num_clients, device, backend, objects or Objects(), ahead),
            name="flower",
            daemon=True,
        )
        self._thread.start()
        try:
            self.grid = self._wait_for_grid()
        except BaseException:
            self.stop()  # or it would start later and run for ever
            raise

    def _wait_for_grid(self) -> "Grid":
        try:
            grid = self._grids.get(timeout=START_SECONDS)
        except Empty:
            raise RunError(f"Flower's simulation did not start within {START_SECONDS:.0f} s.") from None
        if grid is None:
            raise self._broken()
        return grid

    def check(self) -> None:
        """Raises what ended the simulation, where it has ended: nodes stay in the grid, but nobody answers."""
        if not self._thread.is_alive():
            raise self._broken()

    def _broken(self) -> Exception:
        first = self._error
        if isinstance(first, UserError):
            return first
        while first is not None and first.__cause__ is not None:  # Flower wraps it in "An error was encountered"
            first = first.__cause__
        what = "it ended by itself" if first is None else f"{type(first).__name__}: {first}"
        return RunError(f"Flower's simulation broke down ({what}).")

    def _run(
        self,
        config: Config,
        num_clients: int,
        device: str,
        backend: dict[str, Any],
        objects: Objects,
        ahead: bool,
    ) -> None:
        from flwr.server.superlink.fleet.vce import vce_api
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation
        from flwr.simulation.ray_transport.ray_actor import BasicActorPool

        from feddiverse.flower.apps import build_client_app

        # It says that `flwr run` should be used instead: that leaves a daemon behind.
        logger = logging.getLogger("flwr")
        level = logger.level
        logger.setLevel(logging.CRITICAL)
        server_app = ServerApp()

        @server_app.main()
        def main(grid: "Grid", context: "Context") -> None:
            self._grids.put(grid)
            self._over.wait()

        shared = None
        try:
            shared = _share(objects, backend["init_args"])
            place = None if self.beside is None else self.beside.place
            client_app = build_client_app(config, device, shared, place)
            with (
                _in_place_of(vce_api, "add_messages_to_queue", functools.partial(_deliver, self.pushed)),
                _in_place_of(vce_api, "put_message_into_state", functools.partial(_collect, self.answered)),
                _in_place_of(BasicActorPool, "add_actors_to_pool", functools.partialmethod(_add_actors, ahead)),
            ):
                run_simulation(server_app, client_app, num_clients, backend_config=backend)
        except BaseException as error:
            self._error = error
        finally:
            logger.setLevel(level)
            if shared is not None:
                import ray

                ray.shutdown()  # Flower did, unless it broke down early
            self._grids.put(None)

    def stop(self) -> None:
        """End nodes and processes. Safe to call twice."""
        self._over.set()
        self._thread.join(STOP_SECONDS)
        if self.beside is not None:
            self.beside.close()


@contextlib.contextmanager
def _in_place_of(owner: Any, name: str, ours: Any) -> Iterator[None]:
    """A part of Flower's own, replaced for as long as the simulation runs."""
    theirs = getattr(owner, name)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        setattr(owner, name, theirs)


def _add_actors(pool: Any, ahead: bool, num_actors: int) -> None:
    """Flower's pool of worker processes; with `ahead` each is in it twice, so that its next message is on the way while
    it answers one. Flower itself sends it when the answer has arrived."""
    times = 2 if ahead else 1
    pool.pool.extend([pool.create_actor_fn() for _ in range(num_actors)] * times)
    pool.num_actors += times * num_actors  # as many threads wait for answers


def _deliver(
    pushed: "Queue[int]",
    state: "LinkState",
    queue: "Queue[Message]",
    nodes_mapping: dict[int, int],
    f_stop: threading.Event,
) -> None:
    """Flower's thread that hands messages to worker processes. Its own asks for every node's, ten times a second, which
    is a seventh of a small model's round, and grows with the federation: this one asks for those that were sent."""
    while not f_stop.is_set():
        with contextlib.suppress(Empty):
            for message in state.get_message_ins(node_id=pushed.get(timeout=LOOK_SECONDS), limit=1):
                queue.put(message)


def _collect(answered: threading.Event, state: "LinkState", queue: "Queue[Message]", f_stop: threading.Event) -> None:
    """Flower's thread that takes answers from worker processes; this one also says that there are some."""
    while not f_stop.is_set():
        with contextlib.suppress(Empty):
            state.store_message_res(queue.get(timeout=1.0))
            answered.set()


def _share(objects: Objects, init_args: dict[str, Any]) -> Any:
    """A reference to the data and the model in Ray's object store; None where the config alone names them.

    Flower takes the Ray that is there, and shuts it down at the end.
    """
    if objects.federation is None and objects.model is None:
        return None
    import ray

    if not ray.is_initialized():
        paths = os.pathsep.join(path for path in sys.path if path)  # as Flower does: workers import what we can
        ray.init(runtime_env={"env_vars": {"PYTHONPATH": paths}}, **init_args)
    try:
        return ray.put(objects)
    except Exception as error:
        ray.shutdown()
        raise UserError(
            f"The engine 'flower' cannot copy the data or the model to its processes ({type(error).__name__}:"
            f" {str(error).splitlines()[0]}): give a function that makes the model, or use the engine 'local'."
        ) from error
