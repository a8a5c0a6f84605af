import json
import os
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest
from fake_grid import FakeGrid
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from feddiverse import registry
from feddiverse.errors import RunError, UserError
from feddiverse.experiment.config import KEYS, Config
from feddiverse.experiment.opening import open_run
from feddiverse.experiment.run_directory import read_config, read_json
from feddiverse.experiment.train import carry_out
from feddiverse.flower import apps, simulation
from feddiverse.flower.site import SimulatedSite

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUN_CONFIG = PROJECT["tool"]["flwr"]["app"]["config"]


def test_run_config_keys_are_those_of_our_config() -> None:
    assert set(RUN_CONFIG) == {*KEYS, apps.SET, *apps.ENGINE_KEYS}
    config = apps.read_config(RUN_CONFIG)
    assert config == Config(selector="feddiverse", rounds=3, evaluate_every=1)
    with pytest.raises(UserError, match=r"Unknown key 'selektor' in the run config \(did you mean 'selector'"):
        apps.read_config({**RUN_CONFIG, "selektor": "uniform"})


def test_parameters_of_parts_pass_through_as_dotted_keys_and_by_set() -> None:
    expected = Config(
        federation="digits-gsc", selector="mine:Mine", rounds=3, evaluate_every=1,
        options={"selector": {"temperature": 3, "by": "size and age"}},
    )  # fmt: skip
    given = {**RUN_CONFIG, "selector": "mine:Mine"}
    assert apps.read_config({**given, "selector.temperature": 3, "selector.by": "size and age"}) == expected
    by_set = {**given, "set": "selector.temperature=3 'selector.by=size and age'"}
    assert apps.read_config(by_set) == expected
    with pytest.raises(UserError, match="'set' in the run config is not of the form 'key=value key=value'"):
        apps.read_config({**RUN_CONFIG, "set": "selector.by='size"})
    with pytest.raises(UserError, match="'--set temperature' is not of the form key=value"):
        apps.read_config({**RUN_CONFIG, "set": "temperature"})


def test_a_run_of_the_server_app_is_as_one_of_the_command_line(tmp_path: Path) -> None:
    grid = FakeGrid(apps.client_app, 6)
    settings = {
        "federation": "dirichlet(alpha=0.3,clients=6,samples=300,select=2):digits", "seed": 2,
        "set": "selector.coverage=2", "consensus_dimensions": 16, "out": str(tmp_path / "app"),
        "rebalance": True, "rebalance_weights": "classes", "rebalance_dimensions": 16,
    }  # fmt: skip
    grid.run_config = {**RUN_CONFIG, **settings}
    apps.server_app(grid, Context(1, 0, {}, RecordDict(), grid.run_config))
    config = read_config(tmp_path / "app")
    assert (config.selector, config.coverage, config.pretraining_rounds) == ("feddiverse", 2.0, 1)
    local = carry_out(config, out=tmp_path / "local", device="cpu")
    there = {folder: {path.name for path in (tmp_path / folder).iterdir()} for folder in ("app", "local")}
    assert there["app"] == there["local"]
    for name in ("config.toml", "federation.json", "model.json", "environment.json", "triplets.json"):
        assert (tmp_path / "app" / name).read_text() == (tmp_path / "local" / name).read_text(), name
    summary = read_json(tmp_path / "app/result.json")
    assert summary is not None
    same = ("theta_sha256", "groups", "bytes_up", "bytes_down", "selection", "config")
    assert [summary[key] for key in same] == [local.summary[key] for key in same]
    assert summary["rebalanced"]["theta_sha256"] == local.rebalanced["theta_sha256"] != local.theta_sha256


def test_a_clients_process_opens_no_part_of_the_server() -> None:
    config = Config(
        selector="nowhere:Mine", aggregator="nowhere:Ours", estimator="nowhere:Theirs", checkpoint="nowhere",
        options={"selector": {"temperature": 3}},
    )  # fmt: skip
    assert SimulatedSite(config, "cpu").num_examples(0) == 140


def test_flower_reads_the_version_that_is_installed() -> None:
    from feddiverse import __version__

    assert PROJECT["project"]["version"] == __version__


@pytest.mark.parametrize("missing", ["flwr", "ray"])
def test_without_flower_the_engine_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UserError, match=r"needs Flower \(.*\): pip install .* 'feddiverse\[flower\]'"):
        registry.find(registry.ENGINE, "flower")(open_run(Config()), 0, "auto")


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
    monkeypatch.setattr(apps, "open_site", lambda config, device, file, shared: opened.append(device))
    apps._open(None, "", None, Context(1, 5, {"partition-id": 0, **node}, RecordDict(), {**RUN_CONFIG, "device": run}))
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
    server[0].join(120)
    assert not server[0].is_alive()


def test_a_simulation_that_starts_too_late_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up, ended = threading.Event(), threading.Event()
    stop = simulation.Simulation.stop

    def give_up(self: simulation.Simulation) -> None:
        given_up.set()
        stop(self)

    def start_late(server_app: ServerApp, *_: object, **__: object) -> None:
        given_up.wait()
        server_app(FakeGrid(ClientApp(), 3), Context(1, 0, {}, RecordDict(), {}))
        ended.set()

    monkeypatch.setattr("flwr.simulation.run_simulation", start_late)
    monkeypatch.setattr(simulation.Simulation, "stop", give_up)
    monkeypatch.setattr(simulation, "START_SECONDS", 0.1)
    with pytest.raises(RunError, match="did not start within"):
        simulation.Simulation(Config(), 3, 1, "cpu")
    assert ended.wait(120)


@pytest.mark.slow
def test_a_simulation_gives_the_same_bits_as_the_local_engine_and_leaves_nothing_behind(tmp_path: Path) -> None:
    balanced = {"draw": "balanced", "rebalance": True, "rebalance_dimensions": 64}
    config = Config(federation="digits-gsc", selector="feddiverse", rounds=3, evaluate_every=1, seed=2, **balanced)
    local = carry_out(config, out=tmp_path / "local", device="cpu").summary
    mark = f"FEDDIVERSE_TEST_RUN={os.getpid()}"
    command = [sys.executable, "-m", "feddiverse", "run", "--engine", "flower", "--workers", "2", "--json"]
    settings = ["--selector", "feddiverse", "--rounds", "3", "--seed", "2", "--set", "evaluate_every=1"]
    settings += ["--draw", "balanced", "--rebalance", "--set", "rebalance_dimensions=64"]
    done = subprocess.run(
        [*command, *settings, "--device", "cpu", "--out", str(tmp_path / "flower")],
        capture_output=True, text=True, env={**os.environ, mark.partition("=")[0]: mark.partition("=")[2]},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    flower = json.loads(done.stdout)
    assert flower["theta_sha256"] == local["theta_sha256"]
    assert flower["groups"] == local["groups"]
    assert flower["bytes_up"] == local["bytes_up"]
    assert flower["rebalanced"]["theta_sha256"] == local["rebalanced"]["theta_sha256"] != local["theta_sha256"]
    assert done.stderr.count("worst group") == 3, "the same progress"
    assert {p.name for p in (tmp_path / "flower").iterdir()} == {p.name for p in (tmp_path / "local").iterdir()}
    deadline = time.monotonic() + 120  # Ray's own processes notice a moment later that all is over
    while left := [p for p in Path("/proc").glob("[0-9]*") if _has(p, mark)]:
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.5)


def _has(process: Path, mark: str) -> bool:
    try:
        return mark.encode() in (process / "environ").read_bytes()
    except OSError:
        return False
