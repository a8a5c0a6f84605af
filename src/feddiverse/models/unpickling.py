"""PyTorch's `.pt` files, which are programs of a kind: read in a process of its own, with limits of time and memory.

`torch.load(weights_only=True)` runs no foreign code, but a file of a kilobyte can still keep it busy for ever or fill
the memory. What the child found comes back as a safetensors file, which cannot.
"""

import multiprocessing
import pickle
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

SECONDS = 20  # of processor time
PATIENCE = 600  # seconds of waiting: on a busy machine processor time comes slowly
ROOM = 2 << 30  # bytes beyond what the file itself takes


def load_safely(path: Path) -> dict[str, Tensor]:
    """The float tensors of a `.pt` or `.pth` file in its order; a `ValueError` says why it cannot be read."""
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "tensors.safetensors"
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_convert, args=(path, found, theirs), daemon=True)
        child.start()
        theirs.close()
        try:
            problem = ours.recv() if ours.poll(PATIENCE) else "it takes too long"
        except EOFError:
            problem = "reading it takes more time or memory than any weights would"
        finally:
            child.kill()
            child.join()
            ours.close()
        if problem:
            raise ValueError(problem)
        tensors = load_file(found)
    return {name.partition(" ")[2]: tensors[name] for name in sorted(tensors)}


def _convert(path: Path, target: Path, answer: Connection) -> None:
    try:
        _limit(ROOM + 4 * path.stat().st_size)
        torch.set_num_threads(1)  # a forked process has none of its parent's threads
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
        while isinstance(state, dict) and (inner := state.get("state_dict", state.get("model"))) is not None:
            state = inner
        if not isinstance(state, dict):
            raise TypeError(f"it holds a {type(state).__name__}")
        floats = [(name, tensor) for name, tensor in state.items() if tensor.is_floating_point()]
        save_file(
            {f"{place:09} {name}": tensor.float().clone().contiguous() for place, (name, tensor) in enumerate(floats)},
            target,
        )
        answer.send("")
    except pickle.UnpicklingError:  # PyTorch's own words would advise to run what is in the file
        answer.send("it holds more than tensors, or is damaged")
    except BaseException as error:  # whatever it is, it is the file's
        answer.send(next(iter(str(error).splitlines()), "") or type(error).__name__)


def _limit(room: int) -> None:
    """Have Linux end this process when it takes more than `room` bytes or too long."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
