"""What besides the config decides a run's bits: versions, the weights it starts from, the data."""

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from feddiverse.data.federation import Federation
from feddiverse.errors import UserError

LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "safetensors")


def describe(federation: Federation, weights: Path | None) -> dict[str, Any]:
    """What `environment.json` says."""
    from feddiverse.models.layers import library  # brings torch: only once a run begins

    return {
        "feddiverse": version("feddiverse"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        **{name: version(name) for name in LIBRARIES},
        "layers": library.describe(),
        "checkpoint": weights and {"name": weights.name, "sha256": _file_digest(weights)},
        "data": {"source": federation.source.name, "fingerprint": fingerprint(federation)},
    }


def refuse_other_inputs(before: dict[str, Any], now: dict[str, Any]) -> None:
    """A run can only go on with the data and weights it began with."""
    for key, what in (("data", "The data"), ("checkpoint", "The starting weights")):
        if before.get(key) != now[key]:
            was, is_ = (json.dumps(each.get(key)) for each in (before, now))
            raise UserError(f"{what} changed since this run began (then {was}, now {is_}): start a new run.")


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
    path = path / "checkpoint.safetensors" if path.is_dir() else path
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
