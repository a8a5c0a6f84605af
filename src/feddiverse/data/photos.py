"""A source of photos: what its files are and show, which of them are for testing, and their pixels from the cache."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddiverse import seeding
from feddiverse.data import pictures
from feddiverse.data.federation import Ids
from feddiverse.errors import UserError

IMAGE_SIZE = 224
HELD_OUT = 0.1  # of each group, where a set has no test part of its own (paper, Sec. V-A)


@dataclass(frozen=True)
class Listing:
    """Files below `root` in one fixed order, with class, attribute, and whether each is for testing."""

    root: Path
    files: Sequence[str]
    y: Ids
    a: Ids
    is_test: NDArray[np.bool_]


class PhotoSource:
    """A source whose pictures show the attribute they show."""

    mean: tuple[float, ...] | None = (0.485, 0.456, 0.406)  # ImageNet's
    std: tuple[float, ...] | None = (0.229, 0.224, 0.225)

    def __init__(
        self,
        name: str,
        class_names: tuple[str, ...],
        attribute_names: tuple[str, ...],
        listing: Listing,
        image_size: int | None,
        resize: int = 0,
        normalisation: tuple[tuple[float, ...] | None, tuple[float, ...] | None] | None = None,
    ) -> None:
        """`resize`: the side pictures are scaled to before their middle is cut out; 0: see `pictures.decode`.
        `normalisation`: mean and deviation of each channel (one: the pictures are grey), where not ImageNet's."""
        size = image_size or IMAGE_SIZE
        self.name, self.class_names, self.attribute_names = name, class_names, attribute_names
        self.root, self.resize = listing.root, resize
        if normalisation is not None:
            self.mean, self.std = normalisation
        self.shape: tuple[int, ...] = (len(self.mean or (0, 0, 0)), size, size)
        self._pixels, content = pictures.decoded(listing.root, listing.files, size, resize)
        self._train_rows, self._test_rows = np.flatnonzero(~listing.is_test), np.flatnonzero(listing.is_test)
        self.train_files = [listing.files[row] for row in self._train_rows.tolist()]
        self.test_files = [listing.files[row] for row in self._test_rows.tolist()]
        self.train_y, self.test_y = listing.y[self._train_rows], listing.y[self._test_rows]
        self.train_a: Ids | None = listing.a[self._train_rows]
        self.test_a = listing.a[self._test_rows]
        labels = np.stack([listing.y, listing.a, listing.is_test.astype(np.int64)]).astype("<i8").tobytes()
        scaled = f"of {resize} " if resize else ""
        self.fingerprint = hashlib.sha256(f"{name} {content} {size} {scaled}".encode() + labels).hexdigest()

    def train_x(self, ids: Ids, a: Ids) -> NDArray[np.uint8]:
        return self._pixels[self._train_rows[ids]][:, : self.shape[0]]

    def test_x(self, ids: Ids, a: Ids) -> NDArray[np.uint8]:
        return self._pixels[self._test_rows[ids]][:, : self.shape[0]]


def hold_out(y: Ids, a: Ids, seed: int) -> NDArray[np.bool_]:
    """Which samples to test on: a tenth of each group (at least one if it has two), drawn by seed."""
    is_test = np.zeros(len(y), np.bool_)
    for label, attribute in np.unique(np.stack([y, a]), axis=1).T.tolist():
        members = np.flatnonzero((y == label) & (a == attribute))
        num_test = max(round(HELD_OUT * len(members)), 1) if len(members) > 1 else 0
        is_test[seeding.rng(seed, "hold out", round=label, client=attribute).permutation(members)[:num_test]] = True
    return is_test


def check_groups(name: str, has: tuple[int, int], asked: tuple[int, int]) -> None:
    """A split's classes and attributes must be those the photos have."""
    if has != asked:
        raise UserError(
            f"Source {name} has {has[0]} classes and {has[1]} attributes, but the split has {asked[0]} classes and "
            f"{asked[1]} attributes: choose another split or source."
        )
