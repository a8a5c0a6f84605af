"""The user's own pictures, listed in a CSV: image, class, attribute, and perhaps client and split.

With a client column the federation is the table's own; without one, any split deals the pictures to clients.
"""

import csv
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feddiverse.data.arrays import NUM_SELECTED, encode
from feddiverse.data.federation import Federation
from feddiverse.data.photos import Listing, PhotoSource, check_groups, hold_out
from feddiverse.errors import UserError

_REQUIRED = ("image", "class", "attribute")
_UNUSED = ("val", "validation")


@dataclass(frozen=True)
class Table:
    """The used rows of a table, and the client of each if it names clients."""

    class_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    listing: Listing
    clients: list[str] | None


def path_of(name: str) -> Path:
    """The CSV that a source `table:PATH.csv` names."""
    path = name.partition(":")[2]
    if not path:
        raise UserError("The source 'table' needs the path of a CSV, such as 'table:pictures.csv'.")
    try:
        return Path(path).expanduser()
    except RuntimeError:  # the ~ of a user whom this machine does not know
        raise UserError(f"There is no home folder for {path}: write the path of the CSV in full.") from None


def open_table(
    path: str | Path, num_classes: int, num_attributes: int, seed: int, image_size: int | None = None, resize: int = 0
) -> PhotoSource:
    """A table as a source for any split with its number of classes and attributes."""
    path = path_of(f"table:{path}")
    table = read_table(path, seed)
    has = (len(table.class_names), len(table.attribute_names))
    check_groups(f"table:{path}", has, (num_classes, num_attributes))
    return PhotoSource(f"table:{path}", table.class_names, table.attribute_names, table.listing, image_size, resize)


def load_table(path: Path, seed: int, image_size: int | None = None, resize: int = 0) -> Federation:
    """The federation that a table with a client column is. Clients are numbered in the order of their names."""
    table = read_table(path, seed)
    if table.clients is None:
        raise UserError(f"{path} has no column 'client': deal it to clients by a split, such as 'gsc:table:{path}'.")
    is_train = ~table.listing.is_test
    names, client = encode(np.array([table.clients[row] for row in np.flatnonzero(is_train)]))
    y, a = table.listing.y[is_train], table.listing.a[is_train]
    counts = np.zeros((len(names), len(table.class_names), len(table.attribute_names)), np.int64)
    np.add.at(counts, (client, y, a), 1)
    ids = np.split(np.lexsort((a, y, client)), np.cumsum(counts.sum(axis=(1, 2)))[:-1])
    source = PhotoSource(f"table:{path}", table.class_names, table.attribute_names, table.listing, image_size, resize)
    return Federation(
        f"table:{path}",
        source,
        counts,
        min(NUM_SELECTED, len(names)),
        ids,
        [a[part] for part in ids],
        np.arange(len(source.test_y)),
        names,
    )


def read_table(path: Path, seed: int) -> Table:
    """Read and check the CSV. Picture paths are relative to it; no split column: a tenth of each group is held out."""
    rows: list[dict[str, str]] = []
    lines: dict[str, int] = {}  # of each picture
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, strict=True, restval="")
            columns = [column.strip() for column in reader.fieldnames or ()]
            reader.fieldnames = columns
            if absent := [column for column in _REQUIRED if column not in columns]:
                raise UserError(f"{path} has no column '{absent[0]}': it needs {', '.join(_REQUIRED)}.")
            for values in reader:
                row = _checked(path, reader.line_num, values)
                if row.get("split") in _UNUSED:
                    continue
                # A picture listed twice could be both trained and tested on, or be with two clients.
                first = lines.setdefault(os.path.abspath(path.parent / row["image"]), reader.line_num)
                if first != reader.line_num:
                    raise UserError(
                        f"{path} lists the picture {row['image']} twice, in lines {first} and {reader.line_num}: "
                        "keep one of them."
                    )
                rows.append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a CSV table ({error}).") from error
    if not rows:
        raise UserError(f"{path} holds no pictures: it needs a row for each.")
    class_names, y = encode(np.array([row["class"] for row in rows]))
    attribute_names, a = encode(np.array([row["attribute"] for row in rows]))
    is_test = np.array([row["split"] == "test" for row in rows]) if "split" in columns else hold_out(y, a, seed)
    if is_test.all() or not is_test.any():
        raise UserError(f"{path} must list pictures to train on and to test on: fill the column 'split' with both.")
    listing = Listing(path.parent, [row["image"] for row in rows], y, a, is_test)
    return Table(
        class_names, attribute_names, listing, [row["client"] for row in rows] if "client" in columns else None
    )


def _checked(path: Path, line: int, values: dict[str, str]) -> dict[str, str]:
    """A row with its values stripped, so that a space after a comma makes no further class."""
    if None in values:
        raise UserError(f"{path}, line {line}, has more values than the table has columns.")
    row = {column: value.strip() for column, value in values.items()}
    part = row.get("split", "train")
    if part not in ("train", "test", *_UNUSED):
        raise UserError(f"{path}, line {line}: split is '{part}', but must be train, test or val.")
    needed = [*_REQUIRED, *(["client"] if "client" in row and part == "train" else [])]
    if empty := [column for column in needed if not row[column]]:
        raise UserError(f"{path}, line {line}: {empty[0]} is empty.")
    return row
