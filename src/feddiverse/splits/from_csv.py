"""Counts of a user's own federation, read from a CSV: one row a sample, or one row a group with its count."""

import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feddiverse.errors import UserError
from feddiverse.heterogeneity import Counts

MAX_CELLS = 50_000_000  # of the dense table; more means that a column was mistaken for another
MAX_COUNT = 2**53  # beyond this, doubles skip whole numbers


@dataclass(frozen=True)
class Tally:
    """Counts `[client, class, attribute]`, and the names of what they count (clients in order of appearance)."""

    counts: Counts
    clients: list[str]
    classes: list[str]
    attributes: list[str]


def read(
    path: Path, client: str = "client", label: str = "label", attribute: str = "attribute", count: str | None = None
) -> Tally:
    """Count the rows of a CSV by its columns `client`, `label` and `attribute`, or add up its column `count`."""
    cells: Counter[tuple[str, ...]] = Counter()
    for number, key, amount in _rows(path, (client, label, attribute), count):
        cells[key] += 1 if amount is None else _whole(amount, f"row {number} of {path} (client {key[0]})")
    if not cells:
        raise UserError(f"{path} has a header but no rows: nothing to measure.")
    if cells.total() > MAX_COUNT:
        raise UserError(f"The counts of {path} add up to {cells.total()}: at most {MAX_COUNT} samples can be measured.")
    clients = list(dict.fromkeys(key[0] for key in cells))
    classes, attributes = (_sorted({key[axis] for key in cells}) for axis in (1, 2))
    shape = len(clients), len(classes), len(attributes)
    if np.prod(shape, dtype=float) > MAX_CELLS:
        raise UserError(
            f"{path} has {shape[0]} clients, {shape[1]} values of '{label}' and {shape[2]} of '{attribute}': too many "
            "to be a class and an attribute; name the right columns with --client, --label and --attribute."
        )
    counts = np.zeros(shape, dtype=np.int64)
    positions = [{name: i for i, name in enumerate(names)} for names in (clients, classes, attributes)]
    for key, total in cells.items():
        counts[tuple(position[name] for position, name in zip(positions, key, strict=True))] = total
    return Tally(counts, clients, classes, attributes)


def _rows(path: Path, keys: tuple[str, ...], count: str | None) -> Iterator[tuple[int, tuple[str, ...], str | None]]:
    """Line number, the values of the `keys` columns, and that of the `count` column, of each row."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            first = stream.readline()
            stream.seek(0)
            rows = csv.reader(stream, delimiter=max(",;\t", key=first.count), strict=True)
            header = [name.strip() for name in next(rows, [])]
            if not any(header):
                raise UserError(f"{path} is empty: it needs a header with the columns {', '.join(keys)}.")
            columns = [_column(path, header, name) for name in keys]
            amount = None if count is None else _column(path, header, count)
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise UserError(
                        f"Row {rows.line_num} of {path} has {len(row)} values where the header has {len(header)}."
                    )
                key = tuple([row[column].strip() for column in columns])
                if "" in key:
                    raise UserError(f"Row {rows.line_num} of {path} has no value for '{keys[key.index('')]}'.")
                yield rows.line_num, key, None if amount is None else row[amount]
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise UserError(f"{path} is not a CSV: it must be a text in UTF-8 with one row a line.") from None


def _column(path: Path, header: list[str], name: str) -> int:
    if name not in header:
        raise UserError(f"{path} has no column '{name}'; its columns are {', '.join(header)[:300]}.")
    return header.index(name)


def _whole(text: str, where: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if number < 0:
        raise UserError(f"The count {text.strip()} in {where} is negative.")
    if not number.is_integer() or number > MAX_COUNT:
        raise UserError(f"The count '{text.strip()}' in {where} is not a whole number of samples.")
    return int(number)


def _sorted(names: set[str]) -> list[str]:
    """In order of number if all are whole numbers, else of text."""
    numeric = all(re.fullmatch(r"-?\d+", name) for name in names)
    return sorted(names, key=lambda name: (int(name) if numeric else 0, name))
