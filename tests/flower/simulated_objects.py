"""A user's program: objects on both engines. Prints what came out, as JSON; `test_flower_objects` starts it.

A program of its own, since Ray leaves warnings behind in a process, and since everything here is then known to no
module but `__main__`.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

import feddiverse as fd
from feddiverse.messages import Loss, Plain

COMMON: dict[str, Any] = {"rounds": 3, "seed": 5, "num_selected": 3, "evaluate_every": 3, "device": "cpu", "workers": 2}


class Worst(fd.Selector):
    """Asks clients a question, keeps a state, and has a parameter."""

    def __init__(self, forget: float) -> None:
        self.forget = forget
        self.losses: dict[int, float] = {}

    def choose(self, round: int, k: int, clients: Mapping[int, int], ask: Any, rng: np.random.Generator) -> Any:
        for reply in ask(Loss(0, round), sorted(clients)):
            self.losses[reply.client] = self.forget * self.losses.get(reply.client, 0.0) + reply.metrics["loss"]
        return np.array(sorted(self.losses, key=lambda client: -self.losses[client])[:k])

    def state(self) -> Plain:
        return {"losses": list(self.losses.items())}


class HalfStep(fd.Aggregator):
    """An aggregator of one's own."""

    def move(self, update: Any) -> Any:
        return update / 2


def arrays() -> fd.Federation:
    """Six clients named by letters; class and attribute are two directions of rows of numbers."""
    rng = np.random.default_rng(0)
    y, a = rng.integers(0, 2, (2, 360))
    client = rng.choice(list("abcdef"), 360)
    x = rng.normal(size=(360, 7)).astype(np.float32)
    x[:, 0] += 2 * y
    x[:, 1] += 3 * a
    return fd.Federation.from_arrays(x[:300], y[:300], client[:300], a[:300], (x[300:], y[300:], a[300:]))


def arrays_with_a_factory(engine: str) -> fd.Result:
    width = 6

    def make(num_classes: int, shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, num_classes))

    return fd.train(arrays(), make, "feddiverse", aggregator=HalfStep(), engine=engine, **COMMON)


def named_with_a_selector_object(engine: str) -> fd.Result:
    selector = Worst(forget=0.5)
    result = fd.train("iid(clients=6,samples=240):digits", "cnn", selector, engine=engine, **COMMON)
    assert selector.losses == {}, "a run keeps its state to itself"
    return result


def main() -> None:
    found = {}
    for run in (arrays_with_a_factory, named_with_a_selector_object):
        for engine in ("local", "flower"):
            result = run(engine)
            found[f"{run.__name__} {engine}"] = {
                "theta": result.theta_sha256,
                "selected": [record["selected"] for record in result.history],
                "groups": result.groups,
                "bytes_up": result.summary["bytes_up"],
                "triplets": result.triplets,
                "warnings": [warning for record in result.history for warning in record["warnings"]],
            }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
