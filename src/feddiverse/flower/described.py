"""A federation of which the server has no data: the sites say what a model must know of their samples.

With `federation="sites"` the server asks every node for a description: names, the shape of a sample, its normalisation,
and how many samples of each class it trains on. Test samples are those that sites hold out (`holdout`).
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from feddiverse.data.arrays import NUM_SELECTED, ArraySource
from feddiverse.data.federation import Federation
from feddiverse.errors import UserError, as_text
from feddiverse.flower import wire
from feddiverse.flower.engine import FlowerEngine
from feddiverse.flower.partition_file import Partition
from feddiverse.messages import MOST

SITES = "sites"
DESCRIBE_ACTION = f"{wire.OURS}describe"
DESCRIBE = f"query.{DESCRIBE_ACTION}"
ABOUT = "about"
MOST_CLASSES, MOST_NUMBERS = 10_000, 10**9


def description(partition: Partition, counts: list[int]) -> RecordDict:
    """What a site says of itself. `counts`: samples of each class that it trains on."""
    about: dict[str, Any] = {
        "name": partition.name,
        "class-names": list(partition.class_names),
        "shape": list(map(int, partition.samples.x.shape[1:])),
        "mean": list(partition.mean or ()),
        "std": list(partition.std or ()),
        "counts": counts,
    }
    return RecordDict({ABOUT: ConfigRecord(about)})


def describe(engine: FlowerEngine) -> Federation:
    """The federation that the nodes there now say they are. Those who come later take part under their number."""
    sizes = engine.clients
    told = {client: _read(client, content) for client, content in engine.ask_each(DESCRIBE).items() if client in sizes}
    if not told:
        raise UserError(f'No node says what its data are like: with federation="{SITES}" each needs a partition-file.')
    first = min(told)
    for client, about in told.items():
        for key in ("class-names", "shape", "mean", "std"):
            if about[key] != told[first][key]:
                raise UserError(
                    f"Clients {first} and {client} do not belong together: their {key} are {told[first][key]} and"
                    f" {about[key]}; write their partition files alike."
                )
    class_names = tuple(told[first]["class-names"])
    num_clients = max(max(told) + 1, engine.num_partitions)
    counts = np.zeros((num_clients, len(class_names), 1), np.int64)
    for client, about in told.items():
        counts[client, :, 0] = about["counts"]
    names = tuple(told[k]["name"] if k in told else str(k) for k in range(num_clients))
    if len(set(names)) < num_clients:  # two of the same name are told apart by their numbers
        names = tuple(f"{name} ({k})" for k, name in enumerate(names))
    nothing = np.empty(0, np.int64)
    shape, mean, std = (tuple(told[first][key]) for key in ("shape", "mean", "std"))
    empty = np.empty((0, *shape), np.uint8 if mean else np.float32)
    known = repr((class_names, shape, mean, std)).encode()
    source = ArraySource(
        SITES, class_names, class_names, (), shape, mean or None, std or None, empty, nothing, None,
        empty, nothing, nothing, hashlib.sha256(known).hexdigest(),
    )  # fmt: skip
    return Federation(
        SITES, source, counts, min(NUM_SELECTED, num_clients), [nothing] * num_clients, [nothing] * num_clients,
        nothing, names, False, [(nothing, nothing)] * num_clients,
    )  # fmt: skip


def _read(client: int, content: RecordDict) -> Mapping[str, Any]:
    """A description as it came in, which may be anything."""
    try:
        about: dict[str, Any] = dict(content.config_records[ABOUT])
        about["name"] = as_text(about["name"])[:100]
        about["class-names"] = [as_text(name)[:100] for name in about["class-names"]]
        about["shape"] = [wire.natural("shape", side, MOST_NUMBERS) for side in about["shape"]]
        about["counts"] = [wire.natural("counts", count, MOST) for count in about["counts"]]
        about["mean"], about["std"] = ([float(value) for value in about[key]] for key in ("mean", "std"))
        if not (0 < len(about["class-names"]) <= MOST_CLASSES and 0 < math.prod(about["shape"]) <= MOST_NUMBERS):
            raise ValueError("it has no classes, or no shape")
        if len(about["counts"]) != len(about["class-names"]):
            raise ValueError("it counts other classes than it names")
        channels = len(about["mean"])
        if channels != len(about["std"]) or (channels and channels != about["shape"][0]):
            raise ValueError("mean and std need one number a channel")
        if not all(map(math.isfinite, about["mean"])) or not all(0 < value < math.inf for value in about["std"]):
            raise ValueError("mean or std are no numbers to divide by")
    except Exception as error:
        raise UserError(f"What client {client} says of its data cannot be read ({as_text(error)}).") from error
    return about
