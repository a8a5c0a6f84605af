"""What besides the config decides a run's bits: versions, the weights it starts from, the data."""

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from feddiverse._version import VERSION
from feddiverse.errors import UserError
from feddiverse.experiment.config import Config
from feddiverse.federation import Federation

LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "safetensors")


def starting_weights(config: Config) -> Path | None:
    """The file a run starts from: the one given; for `mobilenet` the fetched ImageNet weights; None: from scratch."""
    if config.checkpoint == "none":
        return None
    if config.checkpoint:
        path = Path(config.checkpoint).expanduser()
        if not path.is_file():
            raise UserError(f"There is no checkpoint file {path}; give another with --checkpoint.")
        return path
    if config.model != "mobilenet":
        return None
    from feddiverse.data.sources import find

    if fetched := find("mobilenet"):
        return fetched
    from feddiverse.experiment.check import check

    check(config)  # a wrong name is told first: weights fetched for a federation that does not exist are in vain
    raise UserError(
        "The model 'mobilenet' starts from ImageNet weights, which are not on this machine: run 'feddiverse fetch "
        "mobilenet', give a file with --checkpoint FILE, or start from scratch with --checkpoint none."
    )


def describe(federation: Federation, weights: Path | None) -> dict[str, Any]:
    """What `environment.json` says."""
    from feddiverse.models import native  # brings torch: only once a run begins

    return {
        "feddiverse": VERSION,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        **{name: version(name) for name in LIBRARIES},
        "layers": "C" if native.AVAILABLE else "PyTorch",  # the two differ in rounding
        "checkpoint": weights and {"name": weights.name, "sha256": _file_digest(weights)},
        "data": {"source": federation.source.name, "fingerprint": fingerprint(federation)},
    }


def refuse_other_inputs(before: dict[str, Any], now: dict[str, Any]) -> None:
    """A run can only go on with the data and weights it began with."""
    for key, what in (("data", "The data"), ("checkpoint", "The starting weights")):
        if before.get(key) != now[key]:
            raise UserError(
                f"{what} changed since this run began ({before.get(key)}, now {now[key]}): start a new run."
            )


def other_versions(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """A sentence if the run goes on with other libraries or layers than it began with, whose rounding may differ."""
    keys = ("feddiverse", "python", "platform", *LIBRARIES, "layers")
    changed = [f"{key} {before.get(key)}, now {now[key]}" for key in keys if before.get(key) != now[key]]
    what = "The run goes on with other software than it began with, and may not give the same bits"
    return [f"{what}: {'; '.join(changed)}."] if changed else []


def fingerprint(federation: Federation) -> str:
    """SHA-256 over the source's own fingerprint and who holds which sample showing which attribute."""
    digest = hashlib.sha256(federation.source.fingerprint.encode())
    for part in (federation.counts, federation.test_ids, *federation.client_ids, *federation.client_a):
        digest.update(str(part.shape).encode() + part.astype("<i8").tobytes())
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
