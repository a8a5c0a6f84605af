"""Taking what we need out of a file, a folder or an archive that someone hands us."""

import shutil
from pathlib import Path

from feddiverse.data import archives, sources
from feddiverse.data.archives import Report
from feddiverse.data.pictures import SUFFIXES
from feddiverse.data.sources import FILES, File
from feddiverse.errors import UserError

LARGEST = {"waterbirds": 4 << 30, "spawrious": 64 << 30}  # bytes; several times what the official sets have
_NEEDED = SUFFIXES | {".csv"}


def unpack(name: str, given: Path, folder: Path, report: Report) -> None:
    """Copy into `folder` what `name` needs out of `given`, which is only read."""
    if not given.exists():
        raise UserError(f"{given} does not exist: --from takes a file, an archive or a folder that holds {name}.")
    if name not in FILES:
        _unpack_photos(name, given, folder, report)
    elif given.is_dir():
        for file in FILES[name]:
            named = [*given.rglob(file.name), *given.rglob(f"{file.name}.gz")]
            for path in sorted(filter(Path.is_file, named))[:1]:  # Kaggle's folders bear the names of their files
                unpack_one(path, folder, file)
    else:
        _unpack_file(name, given, folder)


def _unpack_file(name: str, given: Path, folder: Path) -> None:
    """One of the files itself, by content or by name, or an archive of them. (PyTorch's files are archives, too.)"""
    for file in FILES[name]:
        if file.is_at(given) or given.name.removesuffix(".gz") == file.name:
            unpack_one(given, folder, file)
            return
    if archives.is_archive(given):
        archives.extract_named(given, folder, {file.name: file.size for file in FILES[name]})


def unpack_one(path: Path, folder: Path, file: File) -> None:
    """Copy one file, gzipped or not, if it is no larger than it may be."""
    if path.suffix == ".gz":
        archives.gunzip(path, folder / file.name, file.size)
    else:
        with path.open("rb") as stream:
            archives.copy(stream, folder / file.name, file.size)


def _unpack_photos(name: str, given: Path, folder: Path, report: Report) -> None:
    if archives.is_archive(given):
        archives.extract_all(given, folder, suffixes=_NEEDED, limit_bytes=LARGEST[name], report=report)
        return
    if not given.is_dir():
        raise UserError(f"{given} is neither a folder nor an archive that can be read.")
    root = sources.find(name, given)
    if root is None:
        raise UserError(f"{given} does not have the layout of {name}: see docs/data.md.")
    done = 0
    for path in sorted(root.rglob("*")):
        if path.suffix.lower() in _NEEDED and path.is_file():
            target = folder / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            done += target.stat().st_size
            report(f"Copying {name}", done, None)
