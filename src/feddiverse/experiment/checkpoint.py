"""All a run must remember between two rounds, as one safetensors file: arrays as tensors, the rest as JSON."""

import hashlib
import json
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from feddiverse.errors import UserError
from feddiverse.messages import Plain, Vector

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Snapshot:
    """A run between two rounds. `seconds`: spent on it so far, over all sessions; `evaluation`: what is known of the
    truth; `objective`: what clients would remember; empty in checkpoints from before there were such."""

    round: int
    theta: Vector
    aggregator: Plain
    selector: Plain
    lost_in_a_row: int
    seconds: float
    evaluation: Plain = field(default_factory=dict)
    objective: Plain = field(default_factory=dict)
    balancer: Plain = field(default_factory=dict)
    config: Plain = field(default_factory=dict)  # what it is a run of


def pack(snapshot: Snapshot) -> bytes:
    """The snapshot as a safetensors file."""
    arrays: Arrays = {}
    tree = json.dumps(_flatten(vars(snapshot), "", arrays))
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return save(arrays, metadata={"state": tree, "sha256": _digest(tree, arrays)})


def unpack(data: bytes, where: object) -> Snapshot:
    """The snapshot `pack` wrote."""
    try:
        header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
        about, arrays = header["__metadata__"], load(data)
        snapshot = Snapshot(**_unflatten(json.loads(about["state"]), arrays))
        if "sha256" not in about and snapshot.config:  # those from before there were checksums have no config either
            raise ValueError("its checksum is missing")
        if "sha256" in about and about["sha256"] != _digest(about["state"], arrays):
            raise ValueError("its content does not have the checksum that was written with it")
        return snapshot
    except (SafetensorError, struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"The checkpoint {where} is damaged ({error}); run again in another folder.") from error


def _digest(tree: str, arrays: Arrays) -> str:
    """SHA-256 over all that a checkpoint holds."""
    digest = hashlib.sha256(tree.encode())
    for name in sorted(arrays):
        digest.update(f"\n{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _flatten(value: Any, name: str, arrays: Arrays) -> Any:
    """Plain data as JSON knows it. JSON has no arrays, tuples, or keys but text: those become marked dictionaries."""
    match value:
        case np.ndarray():
            arrays[name] = value
            return {"$array": name}
        case np.generic():
            return value.item()
        case dict() if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _flatten(item, f"{name}.{key}".lstrip("."), arrays) for key, item in value.items()}
        case dict():
            return {"$dict": [_flatten([*pair], f"{name}.{i}", arrays) for i, pair in enumerate(value.items())]}
        case tuple():
            return {"$tuple": _flatten([*value], name, arrays)}
        case list():
            return [_flatten(item, f"{name}.{i}", arrays) for i, item in enumerate(value)]
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"{name} is a {type(value).__name__}, which a checkpoint cannot hold")


def _unflatten(value: Any, arrays: Arrays) -> Any:
    match value:
        case {"$array": name}:
            return arrays[name]
        case {"$dict": pairs}:
            return {_unflatten(key, arrays): _unflatten(item, arrays) for key, item in pairs}
        case {"$tuple": items}:
            return tuple(_unflatten(items, arrays))
        case dict():
            return {key: _unflatten(item, arrays) for key, item in value.items()}
        case list():
            return [_unflatten(item, arrays) for item in value]
    return value


class Writer:
    """Writes the newest snapshot beside the training, so that no round waits for the disk.

    Writing takes at most about a twentieth of the time: a small model is saved every round, a large one every few.
    What a killed run loses is computed again, to the same bits.
    """

    SHARE = 1 / 20

    def __init__(self, write: Callable[[Snapshot], None]):
        self._write = write
        self._pending: Snapshot | None = None
        self._closing = False
        self._error: BaseException | None = None
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
        self._thread.start()

    def submit(self, snapshot: Snapshot) -> None:
        """Have this written soon, instead of what was waiting. Raises what went wrong before."""
        self._raise()
        with self._news:
            self._pending = snapshot
            self._news.notify()

    def close(self) -> None:
        """Write what is waiting, now. Raises what went wrong."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join()
        self._raise()

    def _work(self) -> None:
        rest = 0.0
        while True:
            with self._news:
                self._news.wait_for(lambda: self._closing, timeout=rest)
                self._news.wait_for(lambda: self._closing or self._pending is not None)
                snapshot, self._pending = self._pending, None
            if snapshot is None:
                return
            start = time.perf_counter()
            try:
                self._write(snapshot)
            except BaseException as error:  # told to the run by its next `submit` or `close`
                self._error = error
                return
            rest = (time.perf_counter() - start) / self.SHARE

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
