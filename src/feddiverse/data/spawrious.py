"""Spawrious in its official layout, `spawrious224/{0,1}/<location>/<breed>/*.png`; a tenth of each pair is held out."""

from pathlib import Path

import numpy as np

from feddiverse.data import pictures, sources
from feddiverse.data.photos import Listing, PhotoSource, check_groups, hold_out
from feddiverse.errors import UserError

BREEDS = ("bulldog", "corgi", "dachshund", "labrador")
LOCATIONS = ("beach", "snow", "desert", "dirt", "jungle", "mountain")  # the paper's two, which are the hardest, first


def open_spawrious(
    num_classes: int,
    num_attributes: int,
    seed: int,
    image_size: int | None = None,
    data_dir: Path | None = None,
    resize: int = 0,
) -> PhotoSource:
    """With two classes the paper's labrador and dachshund, else the first breeds; locations in the order above."""
    breeds = ("labrador", "dachshund") if num_classes == 2 else BREEDS[:num_classes]
    locations = LOCATIONS[:num_attributes]
    check_groups("spawrious", (len(breeds), len(locations)), (num_classes, num_attributes))
    listing = list_spawrious(sources.path_of("spawrious", data_dir), breeds, locations, seed)
    return PhotoSource("spawrious", breeds, locations, listing, image_size, resize)


def list_spawrious(root: Path, breeds: tuple[str, ...], locations: tuple[str, ...], seed: int) -> Listing:
    files: list[str] = []
    labels: list[tuple[int, int]] = []
    for y, breed in enumerate(breeds):
        for a, location in enumerate(locations):
            folders = [root / part / location / breed for part in ("0", "1")]
            found = sorted(
                path.relative_to(root).as_posix()
                for folder in folders
                if folder.is_dir()
                for path in folder.iterdir()
                if path.suffix.lower() in pictures.SUFFIXES
            )
            if not found:
                raise UserError(f"{folders[0]} holds no pictures: Spawrious needs {breed} on {location}.")
            files += found
            labels += [(y, a)] * len(found)
    y_of, a_of = np.array(labels, np.int64).T
    return Listing(root, files, y_of, a_of, hold_out(y_of, a_of, seed))
