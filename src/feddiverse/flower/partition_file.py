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
    """The samples of one client, with what a model must know of the pictures."""
    samples, source = federation.client(client), federation.source
    about = {"client": client, "num_classes": federation.num_classes, "mean": source.mean, "std": source.std}
    arrays = {"images": samples.x, "y": samples.y, "a": samples.a}
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(contiguous, path, metadata={"feddiverse": json.dumps(about)})


def read_partition(path: Path, model: str) -> tuple[Samples, ModelSpec]:
    """The samples in a file, and the spec that the model named `model` has for them."""
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads(file.metadata()["feddiverse"])
            samples = Samples(file.get_tensor("images"), file.get_tensor("y"), file.get_tensor("a"))
        shape: tuple[int, int, int] = samples.x.shape[1:]
        spec = ModelSpec(model, int(about["num_classes"]), shape, tuple(about["mean"]), tuple(about["std"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is no partition file ({error}): write one with write_partition.") from error
    return samples, spec
