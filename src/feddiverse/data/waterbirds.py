"""Waterbirds in its official layout: `metadata.csv` beside the picture folders; original train and test split."""

import csv
from pathlib import Path, PurePosixPath

import numpy as np

from feddiverse.data import sources
from feddiverse.data.photos import IMAGE_SIZE, Listing, PhotoSource, check_groups
from feddiverse.errors import UserError

CLASSES = ("landbird", "waterbird")
ATTRIBUTES = ("land", "water")
SCALED = 256 / 224  # how much larger a picture is scaled than what is seen of it
_TRAIN, _TEST = 0, 2  # 1 is the validation part, which a federation has no use for
_COLUMNS = {"y": range(2), "place": range(2), "split": range(3)}


def open_waterbirds(
    num_classes: int, num_attributes: int, image_size: int | None = None, data_dir: Path | None = None, resize: int = 0
) -> PhotoSource:
    """As the paper's released code shows it: scaled to 256 pixels a side, of which the middle 224 are seen."""
    check_groups("waterbirds", (len(CLASSES), len(ATTRIBUTES)), (num_classes, num_attributes))
    listing = list_waterbirds(sources.path_of("waterbirds", data_dir))
    resize = resize or round((image_size or IMAGE_SIZE) * SCALED)
    return PhotoSource("waterbirds", CLASSES, ATTRIBUTES, listing, image_size, resize)


def list_waterbirds(root: Path) -> Listing:
    """The train and test pictures that `metadata.csv` names, in its order."""
    table = root / "metadata.csv"
    files, numbers = [], []
    try:
        with table.open(newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream, strict=True):
                name = PurePosixPath(row["img_filename"])
                if name.is_absolute() or ".." in name.parts:
                    raise ValueError(f"the picture {name} lies outside the folder")
                numbers.append([_number(row, column) for column in _COLUMNS])
                files.append(str(name))
    except (OSError, KeyError, ValueError, csv.Error) as error:
        what = f"column {error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{table} cannot be read as Waterbirds' metadata at line {len(files) + 2}: {what}.") from error
    if not files:
        raise UserError(f"{table} is empty: it must name the pictures of Waterbirds.")
    y, a, split = np.array(numbers, np.int64).T
    used = np.flatnonzero((split == _TRAIN) | (split == _TEST))
    return Listing(root, [files[i] for i in used], y[used], a[used], split[used] == _TEST)


def _number(row: dict[str, str], column: str) -> int:
    text = row[column]
    if text is None or not text.isdecimal() or int(text) not in _COLUMNS[column]:
        raise ValueError(f"{column} is {text!r}")
    return int(text)
