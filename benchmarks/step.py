"""One training step beside plain PyTorch: `python -m benchmarks.step`.

Plain is what anyone would write: the module in eager mode and default memory format, float pictures at hand,
torch.optim.SGD. Ours is the client's own `train`, which also loads θ, draws batches and normalises bytes. Both run the
same number of steps on one thread, by turns, so that whatever else the machine does meets both.

Beside them stands what code in single precision cannot go far below: the step's products of matrices, as fast as large
ones are multiplied on this thread by PyTorch or by our layers.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from feddiverse.client.evaluation import correct_and_total
from feddiverse.client.training import train
from feddiverse.data.federation import Samples
from feddiverse.messages import Train
from feddiverse.models import FlatModel, ModelSpec, build, initial_theta
from feddiverse.models.layers import native

RESULT = Path(__file__).parent / "results" / "step.json"
BATCH = 28


class Case(NamedTuple):
    model: str
    side: int  # of a picture
    batches: int
    turns: int


CASES = {
    "mobilenet": Case("mobilenet", 28, 7, 10),
    "mobilenet, 96 px": Case("mobilenet", 96, 2, 7),
    "mobilenet, 224 px": Case("mobilenet", 224, 1, 5),
    "cnn": Case("cnn", 28, 7, 40),
}


def run() -> dict[str, Any]:
    """Ratios ours / plain of training steps and of evaluation, with their spread over turns; also written to a file."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result: dict[str, Any] = {"machine": platform.platform(), "torch": torch.__version__}
        result["billion_operations_a_second"] = speed = _products_a_second() / 1e9
        for name, case in CASES.items():
            result[name] = {
                "train": _compare(*_training(case), case),
                "evaluate": _compare(*_evaluation(case), case),
            }
            for what, found in result[name].items():
                found["products_ms"] = product_operations(case, training=what == "train") / speed / 1e6
    finally:
        torch.set_num_threads(threads)
    result["load_of_machine"] = os.getloadavg()[0]
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return result


def _products_a_second() -> float:
    """Operations of the fastest of some products of large matrices, by PyTorch and by our layers: on AMD's processors
    PyTorch's library (MKL) takes eight numbers at once where sixteen would do."""
    size, seconds = 768, []
    a, b = torch.rand(size, size), torch.nn.Linear(size, size, bias=False)
    ways: list[Callable[[], object]] = [lambda: torch.mm(a, b.weight)]
    if native.usable_for(a):
        ways.append(lambda: native.linear(a, b, None))
    with torch.no_grad():
        for way in ways * 30:
            started = time.perf_counter()
            way()
            seconds.append(time.perf_counter() - started)
    return 2 * size**3 / min(seconds)


def product_operations(case: Case, *, training: bool) -> float:
    """Of a step's products of matrices: each layer's, and in training those of its weights' and its input's gradients.

    A convolution of one channel each (depthwise) is none, the pictures' gradient is not asked for, and of branches that
    stochastic depth drops nothing has to be computed.
    """
    module, found = _plain_module(case), []
    kept = {id(layer): 1.0 for layer in module.modules()}
    for block in module.modules():
        for layer in block.modules() if training and getattr(block, "drop", 0.0) else ():
            kept[id(layer)] = 1.0 - float(block.drop)

    def count(layer: torch.nn.Module, given: tuple[torch.Tensor], output: torch.Tensor) -> None:
        inner = layer.weight[0].numel()
        passes = (3 if found else 2) if training else 1
        found.append(passes * 2.0 * output.numel() * inner * kept[id(layer)])

    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear) or (isinstance(layer, torch.nn.Conv2d) and layer.groups == 1):
            layer.register_forward_hook(count)
    with torch.no_grad():
        module.eval()(torch.zeros(BATCH, 3, case.side, case.side))
    return sum(found)


def _spec(case: Case, *, fast: bool) -> ModelSpec:
    return ModelSpec(case.model, 2, (3, case.side, case.side), (0.1307,) * 3, (0.3081,) * 3, fast=fast)


def _samples(case: Case) -> Samples:
    rng, count = np.random.default_rng(0), BATCH * case.batches
    images = rng.integers(0, 256, (count, 3, case.side, case.side), dtype=np.uint8)
    return Samples(images, rng.integers(0, 2, count), rng.integers(0, 2, count))


def _pictures(case: Case, samples: Samples) -> torch.Tensor:
    """The same pictures as a plain loop holds them: floats, normalised before the clock starts."""
    return build(_spec(case, fast=False)).normalise(torch.from_numpy(samples.x))


def _plain_module(case: Case) -> torch.nn.Module:
    model = build(_spec(case, fast=False))
    for parameter in model.module.parameters():  # memory of its own, as in a plain loop
        parameter.data, parameter.grad = parameter.data.clone(), None
    return model.module


def _training(case: Case) -> tuple[Callable[[], object], Callable[[], object]]:
    task, samples = Train(0, 1, batch_size=BATCH), _samples(case)
    x, y = _pictures(case, samples), torch.from_numpy(samples.y)
    module = _plain_module(case)
    model, theta = build(_spec(case, fast=True)), initial_theta(_spec(case, fast=True), 0)

    def plain() -> None:
        module.train()
        optimiser = torch.optim.SGD(module.parameters(), lr=task.lr, momentum=task.momentum)
        for ids in torch.randperm(len(y)).split(BATCH):
            optimiser.zero_grad()
            loss = functional.cross_entropy(module(x[ids]), y[ids])
            loss.backward()
            optimiser.step()
            loss.item()

    return plain, lambda: train(task, theta, 0, samples, model)


def _evaluation(case: Case) -> tuple[Callable[[], object], Callable[[], object]]:
    samples = _samples(case)
    x, module = _pictures(case, samples), _plain_module(case).eval()
    model: FlatModel = build(_spec(case, fast=True))

    @torch.no_grad()
    def plain() -> None:
        for batch in x.split(BATCH):
            module(batch).argmax(1)

    return plain, lambda: correct_and_total(model, samples, 2)


def _compare(plain: Callable[[], object], ours: Callable[[], object], case: Case) -> dict[str, float]:
    plain(), ours()
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    cpu: dict[str, list[float]] = {"plain": [], "ours": []}
    for turn in range(case.turns):
        by_turns = [("plain", plain), ("ours", ours)]
        for who, work in by_turns if turn % 2 else reversed(by_turns):
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            work()
            seconds[who].append(time.perf_counter() - wall_start)
            cpu[who].append(time.process_time() - cpu_start)
    ratios = [b / a for a, b in zip(seconds["plain"], seconds["ours"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    per_step = 1000 / case.batches
    return {
        "ratio": middle,
        "ratio_quartiles": [low, high],
        "cpu_ratio": statistics.median(b / a for a, b in zip(cpu["plain"], cpu["ours"], strict=True)),
        "plain_step_ms": per_step * statistics.median(seconds["plain"]),
        "our_step_ms": per_step * statistics.median(seconds["ours"]),
        "turns": case.turns,
    }


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
