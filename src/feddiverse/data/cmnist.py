"""CMNIST as the paper has it: all of MNIST, coloured. 60,000 digits to deal from; the official 10,000 to test on."""

import hashlib
from pathlib import Path

import numpy as np

from feddiverse import seeding
from feddiverse.data import sources
from feddiverse.data.coloured import ColouredDigits, GreyDigits, check_groups, classes_of
from feddiverse.data.federation import Ids
from feddiverse.data.pictures import MappedPixels


def open_cmnist(num_classes: int, num_attributes: int, seed: int, data_dir: Path | None = None) -> ColouredDigits:
    """The source for splits with so many classes and attributes; test colours are drawn by seed, evenly per class."""
    check_groups("cmnist", num_classes, num_attributes)
    folder = sources.path_of("mnist", data_dir)
    train, test = (_pool(folder, part, size) for part, size in (("train", 60_000), ("t10k", 10_000)))
    colours = _even_colours(classes_of(test.digits, num_classes), num_attributes, seed)
    pinned = " ".join(file.sha256 for file in sources.MNIST)
    identity = f"cmnist {pinned} {num_classes} {num_attributes} {seed}"
    fingerprint = hashlib.sha256(identity.encode()).hexdigest()
    return ColouredDigits("cmnist", num_classes, num_attributes, train, test, colours, fingerprint)


def _pool(folder: Path, part: str, size: int) -> GreyDigits:
    """One part of MNIST in its idx files, whose headers are 16 and 8 bytes long."""
    digits = np.fromfile(folder / f"{part}-labels-idx1-ubyte", np.uint8, offset=8).astype(np.int64)
    return GreyDigits(MappedPixels(folder / f"{part}-images-idx3-ubyte", (size, 28, 28), 16), np.arange(size), digits)


def _even_colours(y: Ids, num_attributes: int, seed: int) -> Ids:
    """A colour for each test digit: every colour equally often in a class (±1), which digit gets which by seed."""
    colours = np.empty_like(y)
    for label in np.unique(y).tolist():
        members = np.flatnonzero(y == label)
        shuffled = seeding.rng(seed, "test colours", client=label).permutation(len(members))
        colours[members] = shuffled % num_attributes
    return colours
