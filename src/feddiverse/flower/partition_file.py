"""One client's data as one file, for a SuperNode that has nothing else on its disk (safetensors: nothing is executed
when it is read)."""

import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from feddiverse.data.federation import Federation, Samples
from feddiverse.errors import UserError
from feddiverse.models import ModelSpec


def write_partition(path: Path, federation: Federation, client: int) -> None:
    """The samples of one client, with what a model must know of them."""
    samples, source = federation.client(client), federation.source
    about = {"client": client, "num_classes": federation.num_classes, "mean": source.mean, "std": source.std}
    arrays = {"x": samples.x, "y": samples.y} | ({} if samples.a is None else {"a": samples.a})
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(contiguous, path, metadata={"feddiverse": json.dumps(about)})


def read_partition(path: Path, model: str) -> tuple[Samples, ModelSpec]:
    """The samples in a file, and the spec that the model named `model` has for them."""
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads(file.metadata()["feddiverse"])
            a = file.get_tensor("a") if "a" in file.keys() else None  # noqa: SIM118 (no mapping)
            samples = Samples(file.get_tensor("x"), file.get_tensor("y"), a)
        mean, std = (about[key] and tuple(about[key]) for key in ("mean", "std"))
        spec = ModelSpec(model, int(about["num_classes"]), samples.x.shape[1:], mean, std)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is no partition file ({error}): write one with write_partition.") from error
    return samples, spec
