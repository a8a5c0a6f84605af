"""Deciding whether what arrived is what it should be, before it may enter the cache."""

import os
from pathlib import Path

import numpy as np

from feddiverse.data import sources
from feddiverse.data.sources import FILES, File
from feddiverse.data.spawrious import BREEDS, LOCATIONS
from feddiverse.data.waterbirds import list_waterbirds
from feddiverse.errors import UserError

# Waterbirds' train pictures by class and place: how a copy that carries no published digest is known.
_OFFICIAL_WATERBIRDS = [[3498, 184], [56, 1057]]


def verified(name: str) -> Path | None:
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


def accepted(name: str, arrived: Path, official: bool) -> Path:
    """A folder ready for the cache with just what `name` needs. `official`: nobody vouches for it but its content."""
    if name in FILES:
        return _accepted_files(name, arrived)
    folders = [arrived, *sorted(path for path in arrived.iterdir() if path.is_dir())]
    root = next((root for folder in folders if (root := sources.find(name, folder))), None)
    if root is None:
        raise UserError(f"What was given does not have the layout of {name}: see docs/data.md.")
    if name == "waterbirds":
        _check_waterbirds(root, official)
    else:
        _check_spawrious(root)
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


def _check_spawrious(root: Path) -> None:
    pairs = [(breed, location) for breed in BREEDS for location in LOCATIONS]
    if not any((root / "0" / location / breed).is_dir() for breed, location in pairs):
        raise UserError(f"What was given has no folder such as 0/{LOCATIONS[0]}/{BREEDS[0]}: it is not spawrious.")
