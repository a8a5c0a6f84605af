"""The user's own data, listed in a CSV: one row a sample, in columns `image`, `class` and `client`.

`attribute` and `split` (train, test or val) are optional; other names of columns are given by `Columns`. In place of
`image` a table may hold the numbers themselves (`features`). Without `client`, any split deals the samples to clients.
"""

import csv
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddiverse.data.arrays import NUM_SELECTED, ArraySource, encode, fingerprint
from feddiverse.data.federation import Federation, Ids, Source
from feddiverse.data.photos import Listing, PhotoSource, check_groups, hold_out
from feddiverse.errors import UserError
from feddiverse.heterogeneity import Counts

TRAIN, TEST, UNUSED = "train", "test", ("val", "validation")
MAX_CELLS = 50_000_000  # of a table of counts; more means that a column was mistaken for another
MAX_COUNT = 2**53  # beyond this, doubles skip whole numbers


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are called. `class` is looked for under `label` too, if there is no `class`."""

    image: str = "image"
    label: str = "class"
    client: str = "client"
    attribute: str = "attribute"
    split: str = "split"
    features: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: str = "", features: str = "") -> "Columns":
        """From the config's texts: `label=diagnosis,client=hospital`, and `age,weight`."""
        given: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in names.split(","))):
            key, equals, name = (word.strip() for word in part.partition("="))
            key = "label" if key == "class" else key
            if not (equals and name) or key not in ("image", "label", "client", "attribute", "split"):
                raise UserError(
                    f"'{part}' in the config key 'columns' is not of the form KEY=COLUMN, with image, class, client,"
                    " attribute or split as KEY."
                )
            given[key] = name
        wanted = tuple(word.strip() for word in features.split(",") if word.strip())
        return cls(**given, features=wanted)


@dataclass(frozen=True)
class Table:
    """The used rows of a table. `a` is None where no training row has an attribute; `clients` where none is named."""

    path: Path
    columns: Columns
    class_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    y: Ids
    a: Ids
    attributes_known: bool
    is_test: NDArray[np.bool_]
    clients: list[str] | None
    images: list[str]
    numbers: NDArray[np.float32] | None


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
    path: str | Path,
    num_classes: int,
    num_attributes: int,
    seed: int,
    image_size: int | None = None,
    columns: Columns | None = None,
) -> Source:
    """A table as a source for any split with its number of classes and attributes."""
    path = path_of(f"table:{path}")
    table = read_table(path, seed, columns)
    if not table.attributes_known:
        raise UserError(
            f"{path} has no column '{table.columns.attribute}', so no split can deal it by attribute: name the clients"
            f" in a column '{table.columns.client}'."
        )
    check_groups(f"table:{path}", (len(table.class_names), len(table.attribute_names)), (num_classes, num_attributes))
    return _source(table, image_size)


def load_table(path: Path, seed: int, image_size: int | None = None, columns: Columns | None = None) -> Federation:
    """The federation that a table with a client column is. Clients are numbered in the order of their names."""
    table = read_table(path, seed, columns)
    if table.clients is None:
        raise UserError(
            f"{path} has no column '{table.columns.client}': deal it to clients by a split, such as"
            f" 'gsc:table:{path}', or name the column with --client."
        )
    train = np.flatnonzero(~table.is_test)
    names, client = encode(np.array([table.clients[row] for row in train]))
    y, a = table.y[train], table.a[train] if table.attributes_known else np.zeros(len(train), np.int64)
    num_attributes = len(table.attribute_names) if table.attributes_known else 1
    counts = np.zeros((len(names), len(table.class_names), num_attributes), np.int64)
    np.add.at(counts, (client, y, a), 1)
    ids = np.split(np.lexsort((a, y, client)), np.cumsum(counts.sum(axis=(1, 2)))[:-1])
    source = _source(table, image_size)
    return Federation(
        f"table:{path}",
        source,
        counts,
        min(NUM_SELECTED, len(names)),
        ids,
        [a[part] for part in ids],
        np.arange(len(source.test_y)),
        names,
        table.attributes_known,
    )


def _source(table: Table, image_size: int | None) -> Source:
    name = f"table:{table.path}"
    if table.numbers is None:
        listing = Listing(table.path.parent, table.images, table.y, table.a, table.is_test)
        return PhotoSource(name, table.class_names, table.attribute_names, listing, image_size)
    train, test = ~table.is_test, table.is_test
    mean, std = table.numbers[train].mean(axis=0), table.numbers[train].std(axis=0)
    x = (table.numbers - mean) / np.where(std > 0, std, 1)  # columns have their own units; these have none
    return ArraySource(
        name, table.class_names, table.class_names, table.attribute_names, x.shape[1:], None, None,
        x[train], table.y[train], table.a[train] if table.attributes_known else None,
        x[test], table.y[test], table.a[test], fingerprint(x, table.y, table.a, table.is_test),
    )  # fmt: skip


def read_table(path: Path, seed: int, columns: Columns | None = None) -> Table:
    """Read and check the CSV. Picture paths are relative to it; no split column: a tenth of each group is held out."""
    columns = columns or Columns()
    rows: list[dict[str, str]] = []
    lines: dict[str, int] = {}  # of each picture
    header: list[str] = []
    for line, header, row in _rows(path):
        if not rows and not lines:
            columns = _check_header(path, header, columns)
        part = row.get(columns.split, "") or TRAIN
        if columns.split in header and part not in (TRAIN, TEST, *UNUSED):
            raise UserError(f"{path}, line {line}: {columns.split} is '{part}', but must be train, test or val.")
        if part in UNUSED:
            continue
        needed = [*(columns.features or (columns.image,)), columns.label]
        if columns.client in header and part == TRAIN:
            needed.append(columns.client)
        if empty := [column for column in needed if not row[column]]:
            raise UserError(f"{path}, line {line}: {empty[0]} is empty.")
        if not columns.features:
            # A picture listed twice could be both trained and tested on, or be with two clients.
            first = lines.setdefault(os.path.abspath(path.parent / row[columns.image]), line)
            if first != line:
                raise UserError(
                    f"{path} lists the picture {row[columns.image]} twice, in lines {first} and {line}: keep one of"
                    " them."
                )
        rows.append({**row, "": part, "line": str(line)})
    if not rows:
        raise UserError(f"{path} holds no samples: it needs a row for each.")
    return _table(path, columns, header, rows, seed)


def _table(path: Path, columns: Columns, header: list[str], rows: list[dict[str, str]], seed: int) -> Table:
    class_names, y = encode(np.array([row[columns.label] for row in rows]))
    attributes_known, attribute_names, a = _attributes(path, columns, header, rows)
    is_test = np.array([row[""] == TEST for row in rows]) if columns.split in header else hold_out(y, a, seed)
    if is_test.all() or not is_test.any():
        raise UserError(
            f"{path} must list samples to train on and to test on: fill the column '{columns.split}' with both."
        )
    unseen = set(y[is_test].tolist()) - set(y[~is_test].tolist())
    if unseen:
        raise UserError(f"{path} has the class '{class_names[min(unseen)]}' among its test rows only.")
    return Table(
        path,
        columns,
        class_names,
        attribute_names,
        y,
        a,
        attributes_known,
        is_test,
        [row[columns.client] for row in rows] if columns.client in header else None,
        [] if columns.features else [row[columns.image] for row in rows],
        _numbers(path, columns.features, rows) if columns.features else None,
    )


def _attributes(
    path: Path, columns: Columns, header: list[str], rows: list[dict[str, str]]
) -> tuple[bool, tuple[str, ...], Ids]:
    """Whether training rows have attributes, what the values are called, and that of each row (0 where unknown)."""
    nothing = np.zeros(len(rows), np.int64)
    if columns.attribute not in header:
        return False, (), nothing
    filled = np.array([bool(row[columns.attribute]) for row in rows])
    is_train = np.array([row[""] == TRAIN for row in rows])
    if not filled.any():
        return False, (), nothing
    for of_part, part in ((is_train, "training"), (~is_train, "test")):
        if filled[of_part].any() and not filled[of_part].all():
            line = rows[int(np.flatnonzero(of_part & ~filled)[0])]["line"]
            raise UserError(
                f"{path}, line {line}: {columns.attribute} is empty, while other {part} rows have one: fill it, or"
                " empty the column."
            )
    if filled[is_train].any() and not filled.all():
        line = rows[int(np.flatnonzero(~filled)[0])]["line"]
        raise UserError(f"{path}, line {line}: {columns.attribute} is empty, while training rows have one: fill it.")
    names, places = encode(np.array([row[columns.attribute] for row, there in zip(rows, filled, strict=True) if there]))
    nothing[filled] = places
    return bool(filled[is_train].any()), names, nothing


def _numbers(path: Path, features: tuple[str, ...], rows: list[dict[str, str]]) -> NDArray[np.float32]:
    values = np.empty((len(rows), len(features)), np.float32)
    for place, row in enumerate(rows):
        for column, name in enumerate(features):
            try:
                number = float(row[name])
            except ValueError:
                number = float("nan")
            if not np.isfinite(number):
                raise UserError(f"{path}, line {row['line']}: {name} is '{row[name]}', which is not a number.")
            values[place, column] = number
    return values


def _check_header(path: Path, header: list[str], columns: Columns) -> Columns:
    """The columns as this table has them; what is needed and not there is told by name."""
    if columns.label == "class" and "class" not in header and "label" in header:
        columns = Columns(columns.image, "label", columns.client, columns.attribute, columns.split, columns.features)
    for name in [*(columns.features or (columns.image,)), columns.label]:
        if name not in header:
            option = {columns.image: "--image", columns.label: "--label"}.get(name, "--features")
            raise UserError(
                f"{path} has no column '{name}': it has {', '.join(header)[:300]}; name yours with {option}."
            )
    return columns


def _rows(path: Path) -> Iterator[tuple[int, list[str], dict[str, str]]]:
    """Line number, header and values of each row, stripped: a space after a comma makes no further class."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            first = stream.readline()
            stream.seek(0)
            rows = csv.reader(stream, delimiter=max(",;\t", key=first.count), strict=True)
            header = [name.strip() for name in next(rows, [])]
            if not any(header):
                raise UserError(f"{path} is empty: it needs a header that names its columns.")
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise UserError(
                        f"{path}, line {rows.line_num}, has {len(row)} values where the header has {len(header)}."
                    )
                yield rows.line_num, header, dict(zip(header, map(str.strip, row), strict=True))
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise UserError(f"{path} is not a CSV: it must be a text in UTF-8 with one row a line.") from None


@dataclass(frozen=True)
class Tally:
    """Counts `[client, class, attribute]` of training rows, and the names of what they count.

    Clients are in order of appearance. Without attributes there is one column for all, and no name.
    """

    counts: Counts
    clients: list[str]
    classes: list[str]
    attributes: list[str]


def tally(path: Path, columns: Columns | None = None, count: str | None = None) -> Tally:
    """Count a table's training rows by client, class and attribute, or add up its column `count`. Needs no pictures."""
    columns = columns or Columns()
    cells: Counter[tuple[str, str, str]] = Counter()
    keys: tuple[str, ...] = ()
    for line, header, row in _rows(path):
        if not keys:
            keys = _keys(path, header, columns, count)
        if row.get(columns.split, TRAIN) in (TEST, *UNUSED):
            continue
        values = tuple(row[key] for key in keys)
        if "" in values:
            raise UserError(f"{path}, line {line}: {keys[values.index('')]} is empty.")
        client, label, attribute = (*values, "") if len(values) == 2 else values
        cells[client, label, attribute] += 1 if count is None else _whole(row[count], f"line {line} of {path}")
    if not cells:
        raise UserError(f"{path} has a header but no training rows: nothing to measure.")
    if cells.total() > MAX_COUNT:
        raise UserError(f"The counts of {path} add up to {cells.total()}: at most {MAX_COUNT} samples can be measured.")
    clients = list(dict.fromkeys(key[0] for key in cells))
    classes, attributes = (list(encode(np.array(sorted({key[axis] for key in cells})))[0]) for axis in (1, 2))
    shape = len(clients), len(classes), len(attributes)
    if np.prod(shape, dtype=float) > MAX_CELLS:
        raise UserError(
            f"{path} has {shape[0]} clients, {shape[1]} classes and {shape[2]} attributes: too many to be these; name"
            " the right columns with --client, --label and --attribute."
        )
    counts = np.zeros(shape, dtype=np.int64)
    positions = [{name: i for i, name in enumerate(names)} for names in (clients, classes, attributes)]
    for key, total in cells.items():
        counts[tuple(position[name] for position, name in zip(positions, key, strict=True))] = total
    return Tally(counts, clients, classes, [name for name in attributes if name])


def _keys(path: Path, header: list[str], columns: Columns, count: str | None) -> tuple[str, ...]:
    label = "label" if columns.label == "class" and "class" not in header else columns.label
    needed = [columns.client, label, *([] if count is None else [count])]
    options = dict(zip(needed, ("--client", "--label", "--count"), strict=False))
    if absent := [name for name in needed if name not in header]:
        raise UserError(
            f"{path} has no column '{absent[0]}': it has {', '.join(header)[:300]}; name yours with"
            f" {options[absent[0]]}."
        )
    if columns.attribute != "attribute" and columns.attribute not in header:
        raise UserError(f"{path} has no column '{columns.attribute}': it has {', '.join(header)[:300]}.")
    return (columns.client, label, *([columns.attribute] if columns.attribute in header else []))


def _whole(text: str, where: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if number < 0:
        raise UserError(f"The count {text} in {where} is negative.")
    if not number.is_integer() or number > MAX_COUNT:
        raise UserError(f"The count '{text}' in {where} is not a whole number of samples.")
    return int(number)
