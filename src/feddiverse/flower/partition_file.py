"""One client's data as one file, for a SuperNode that has nothing else on its disk (safetensors: nothing is executed
when it is read).

Attributes are not in it: a deployed client never tells any, and what it does not have it cannot tell.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from feddiverse import files
from feddiverse.data.federation import Federation, Samples
from feddiverse.errors import UserError
from feddiverse.models import ModelSpec


@dataclass(frozen=True)
class Partition:
    """What a partition file holds: a client's samples, what it is called, and what a model must know of the samples."""

    client: int
    name: str
    class_names: tuple[str, ...]
    samples: Samples
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    def spec(self, model: str) -> ModelSpec:
        """The model of this name for these samples."""
        return ModelSpec(model, len(self.class_names), self.samples.x.shape[1:], self.mean, self.std)


def write_partition(path: str | Path, federation: Federation, client: int) -> None:
    """Write the samples of one client of a federation.

    >>> import tempfile, feddiverse as fd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_partition(f"{folder}/data.safetensors", fd.federation("digits-gsc"), client=7)
    ...     read_partition(f"{folder}/data.safetensors").samples.x.shape
    (140, 3, 28, 28)
    """
    samples, source = federation.client(client), federation.source
    names = [*source.class_names, *map(str, range(federation.num_classes))][: federation.num_classes]
    about = {
        "client": client, "name": federation.names[client], "num_classes": federation.num_classes,
        "class_names": names, "mean": source.mean, "std": source.std,
    }  # fmt: skip
    arrays = {"x": np.ascontiguousarray(samples.x), "y": np.ascontiguousarray(samples.y)}
    files.write(Path(path), save(arrays, metadata={"feddiverse": json.dumps(about)}))


def read_partition(path: str | Path) -> Partition:
    """Read what `write_partition` wrote, today or before samples could be other than pictures."""
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads(file.metadata()["feddiverse"])
            x = file.get_tensor("x" if "x" in file.keys() else "images")  # noqa: SIM118 (it is no dictionary)
            y = file.get_tensor("y")
        names = about.get("class_names") or map(str, range(int(about["num_classes"])))
        mean, std = (about[key] if about[key] is None else tuple(map(float, about[key])) for key in ("mean", "std"))
        client = int(about["client"])
        partition = Partition(
            client, str(about.get("name", client)), tuple(map(str, names)), Samples(x, y, None), mean, std
        )
        _check(partition)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is no partition file ({error}): write one with write_partition.") from error
    return partition


def _check(partition: Partition) -> None:
    x, y, num_classes = partition.samples.x, partition.samples.y, len(partition.class_names)
    if x.ndim < 2 or y.shape != x.shape[:1] or y.dtype != np.int64:
        raise ValueError(f"its samples {x.shape} and labels {y.dtype} {y.shape} do not belong together")
    if len(y) and not (y.min() >= 0 and y.max() < num_classes):
        raise ValueError(f"its labels are not all within 0 … {num_classes - 1}")
    if x.dtype != np.uint8 if partition.mean else not np.issubdtype(x.dtype, np.floating):
        raise ValueError("pictures are uint8 and have mean and std, other samples are floats and have none")
