import json
import os
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from fake_grid import FakeGrid
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from feddiverse.data import open_federation
from feddiverse.data.federation import Federation
from feddiverse.errors import RunError, UserError
from feddiverse.experiment.config import KEYS, Config
from feddiverse.experiment.opening import open_run
from feddiverse.experiment.train import carry_out
from feddiverse.flower import apps, simulation
from feddiverse.flower.partition_file import read_partition, write_partition
from feddiverse.flower.site import FileSite, SimulatedSite, open_site
from feddiverse.messages import Train
from feddiverse.models import ModelSpec, initial_theta

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUN_CONFIG = PROJECT["tool"]["flwr"]["app"]["config"]


def test_run_config_keys_are_those_of_our_config() -> None:
    assert set(RUN_CONFIG) == set(KEYS) | set(apps.ENGINE_KEYS)
    config = apps.read_config(RUN_CONFIG)
    assert config == Config(selector="feddiverse", rounds=3, evaluate_every=1)
    with pytest.raises(UserError, match="Unknown key 'selektor' in the run config \\(did you mean 'selector'"):
        apps.read_config({**RUN_CONFIG, "selektor": "uniform"})


def test_flower_reads_the_version_that_is_installed() -> None:
    from feddiverse import __version__

    assert PROJECT["project"]["version"] == __version__


def test_a_partition_file_holds_one_client_and_answers_as_the_federation_does(tmp_path: Path) -> None:
    config = Config(federation="digits-gsc", seed=1)
    federation = open_federation("digits-gsc", 1)
    write_partition(tmp_path / "data", federation, 7)
    samples, spec = read_partition(tmp_path / "data", "cnn")
    assert (samples.x == federation.client(7).x).all()
    source = federation.source
    assert spec == ModelSpec("cnn", 2, source.shape, source.mean, source.std)
    theta, task = initial_theta(spec, 1), Train(1, 4, lr=0.02)
    from_file, simulated = open_site(config, "cpu", str(tmp_path / "data")), SimulatedSite(config, "cpu")
    assert isinstance(from_file, FileSite)
    assert from_file is open_site(config, "cpu", str(tmp_path / "data")), "opened once in a process"
    assert from_file.num_examples(7) == simulated.num_examples(7)
    ours, theirs = (site.answer(task, theta, 7) for site in (from_file, simulated))
    assert ours.vector is not None
    assert theirs.vector is not None
    assert ours.vector.tobytes() == theirs.vector.tobytes()


def test_a_partition_file_of_rows_without_attributes(tmp_path: Path) -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), [0, 1, 0, 1, 1, 1]
    federation = Federation.from_arrays(x, y, client=[0, 0, 1, 1, 1, 0])
    write_partition(tmp_path / "data", federation, 1)
    samples, spec = read_partition(tmp_path / "data", "mlp")
    assert (samples.x == x[[2, 3, 4]]).all()
    assert samples.y.tolist() == [0, 1, 1]
    assert samples.a is None
    assert spec == ModelSpec("mlp", 2, (2,), None, None)


def test_a_simulated_client_needs_no_starting_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddiverse.data.sources.find", lambda name: None)
    assert SimulatedSite(Config(model="mobilenet"), "cpu").num_examples(0) == 140


def test_a_file_that_is_no_partition_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"\x80\x04pickle")
    for path in (tmp_path / "bad", tmp_path / "missing"):
        with pytest.raises(UserError, match="is no partition file"):
            read_partition(path, "cnn")


@pytest.mark.parametrize("missing", ["flwr", "ray"])
def test_without_flower_the_engine_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UserError, match=r"needs Flower \(.*\): pip install .* '\.\[flower\]'"):
        simulation.open_engine(open_run(Config()))


def test_without_flower_all_else_works() -> None:
    hidden = "import sys; sys.modules.update(dict.fromkeys(('flwr', 'ray', 'flwr_datasets', 'datasets')))"
    used = "import feddiverse.flower; from feddiverse.cli import app; app(['federations'], standalone_mode=False)"
    code = f"{hidden}; {used}"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout


@pytest.mark.parametrize(
    ("node", "run", "expected"), [({}, "mps", "mps"), ({"device": "cuda"}, "cpu", "cuda"), ({}, "cpu", "cpu")]
)
def test_clients_compute_on_the_device_of_the_run_or_of_their_node(
    node: dict[str, str], run: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    monkeypatch.setattr(apps, "choose_device", lambda wanted: wanted)  # this machine may have none of them
    monkeypatch.setattr(apps, "open_site", lambda config, device, file: opened.append(device))
    apps._open(None, "", Context(1, 5, {"partition-id": 0, **node}, RecordDict(), {**RUN_CONFIG, "device": run}))
    assert opened == [expected]


def test_a_simulation_that_breaks_down_is_told_at_once_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid(ClientApp(), 3)
    grid.silent = {*grid.online}
    server: list[threading.Thread] = []

    def break_down(server_app: ServerApp, *_: object, **__: object) -> None:
        """As Flower does when Ray cannot start: the server app runs already, and nobody ends it."""
        server.append(threading.Thread(target=server_app, args=(grid, Context(1, 0, {}, RecordDict(), {}))))
        server[0].start()
        try:
            raise OSError("no space in /dev/shm")
        except OSError as error:
            raise RuntimeError("An error was encountered. Ending simulation.") from error

    monkeypatch.setattr("flwr.simulation.run_simulation", break_down)
    engine = simulation.open_engine(open_run(Config()), 1, "cpu")
    with pytest.raises(RunError, match=r"simulation broke down \(OSError: no space in /dev/shm\)"):
        _ = engine.clients
    engine.close()
    server[0].join(10)
    assert not server[0].is_alive()


def test_a_simulation_that_starts_too_late_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def start_late(server_app: ServerApp, *_: object, **__: object) -> None:
        time.sleep(0.5)
        server_app(FakeGrid(ClientApp(), 3), Context(1, 0, {}, RecordDict(), {}))
        ended.set()

    monkeypatch.setattr("flwr.simulation.run_simulation", start_late)
    monkeypatch.setattr(simulation, "START_SECONDS", 0.1)
    with pytest.raises(RunError, match="did not start within"):
        simulation.Simulation(Config(), 3, 1, "cpu")
    assert ended.wait(10)


@pytest.mark.slow
def test_a_simulation_gives_the_same_bits_as_the_local_engine_and_leaves_nothing_behind(tmp_path: Path) -> None:
    config = Config(federation="digits-gsc", selector="feddiverse", rounds=3, evaluate_every=1, seed=2)
    local = carry_out(config, out=tmp_path / "local", device="cpu").summary
    mark = f"FEDDIVERSE_TEST_RUN={os.getpid()}"
    command = [Path(sys.executable).parent / "feddiverse", "run", "--engine", "flower", "--workers", "2", "--json"]
    settings = ["--selector", "feddiverse", "--rounds", "3", "--seed", "2", "--set", "evaluate_every=1"]
    done = subprocess.run(
        [*map(str, command), *settings, "--device", "cpu", "--out", str(tmp_path / "flower")],
        capture_output=True, text=True, timeout=280, env={**os.environ, mark.partition("=")[0]: mark.partition("=")[2]},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    flower = json.loads(done.stdout)
    assert flower["theta_sha256"] == local["theta_sha256"]
    assert flower["groups"] == local["groups"]
    assert flower["bytes_up"] == local["bytes_up"]
    assert done.stderr.count("worst group") == 3, "the same progress"
    assert {p.name for p in (tmp_path / "flower").iterdir()} == {p.name for p in (tmp_path / "local").iterdir()}
    deadline = time.monotonic() + 20  # Ray's own processes notice a moment later that all is over
    while left := [p for p in Path("/proc").glob("[0-9]*") if _has(p, mark)]:
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.5)


def _has(process: Path, mark: str) -> bool:
    try:
        return mark.encode() in (process / "environ").read_bytes()
    except OSError:
        return False
