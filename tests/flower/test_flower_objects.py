"""What only Python can give, on Flower's simulation: the same bits as on the local engine."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from simulated_objects import COMMON, HalfStep, Worst, arrays
from torch import nn

import feddiverse as fd
from feddiverse.errors import UserError
from feddiverse.experiment.opening import Objects
from feddiverse.flower import simulation
from feddiverse.flower.apps import build_client_app


@pytest.mark.slow
def test_objects_give_the_same_bits_on_both_engines(tmp_path: Path) -> None:
    """Arrays with a model factory and an aggregator object; a named federation with a selector object."""
    program = Path(__file__).with_name("simulated_objects.py")
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name in ("arrays_with_a_factory", "named_with_a_selector_object"):
        local, flower = found[f"{name} local"], found[f"{name} flower"]
        assert flower == local, name
        assert len(local["selected"]) == 3
        assert not any("no usable answer" in warning for warning in local["warnings"])
    assert len(found["arrays_with_a_factory flower"]["triplets"]["triplets"]) == 6
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_messages_carry_a_reference_and_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower sends the client app with every message."""
    kept: list[Objects] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "put", lambda objects: kept.append(objects) or "reference")
    federation = arrays()
    assert simulation._share(Objects(federation, nn.Linear), {}) == "reference"
    assert kept[0].federation is federation
    assert simulation._share(Objects(), {}) is None, "named data is opened where it is needed"
    app = build_client_app(fd.Config(federation="arrays"), "cpu", "reference")
    assert len(ray.cloudpickle.dumps(app)) < 10_000 < len(ray.cloudpickle.dumps(federation))


def test_parts_stay_on_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Objects] = []

    class Stopped(Exception):
        pass

    def start(config: Any, num_clients: int, workers: int, device: str, objects: Objects, *, ahead: bool) -> None:
        seen.append(objects)
        raise Stopped

    monkeypatch.setattr(simulation, "Simulation", start)
    with pytest.raises(Stopped):
        fd.train(arrays(), "mlp", Worst(0.5), HalfStep(), engine="flower", **COMMON)
    assert seen == [replace(seen[0], parts={})]
    assert seen[0].federation is not None


def test_what_cannot_be_copied_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(objects: Objects) -> None:
        ray.cloudpickle.dumps(objects)

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "put", refuse)
    generator = (layer for layer in [nn.Linear(3, 2)])
    with pytest.raises(
        UserError, match=r"cannot copy the data or the model to its processes \(TypeError: cannot pickle"
    ):
        simulation._share(Objects(model=lambda: next(generator)), {})


@pytest.mark.parametrize("name", ["digits-gsc", "iid(clients=3,samples=60):digits"])
def test_a_federation_that_was_opened_by_name_can_be_copied(name: str) -> None:
    federation = fd.federation(name, seed=1)
    copied = ray.cloudpickle.loads(ray.cloudpickle.dumps(federation))  # our own, of this process
    assert copied.client(2).x.tobytes() == federation.client(2).x.tobytes()
    assert copied.sizes == federation.sizes
