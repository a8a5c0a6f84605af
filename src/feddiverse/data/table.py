"""The user's own data, listed in a CSV: one row a sample, in columns `image`, `class` and `client`.

`attribute` and `split` (train, test or val) are optional; other names of columns are given by `Columns`. In place of
`image` a table may hold the numbers themselves (`features`). Without `client`, any split deals the samples to clients.
"""

import csv
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from feddiverse.data.arrays import NUM_SELECTED, ArraySource, by_owner, encode, fingerprint
from feddiverse.data.federation import Federation, Ids, Source
from feddiverse.data.photos import Listing, PhotoSource, check_groups, hold_out
from feddiverse.data.sharing import Side, ordered, read_side
from feddiverse.errors import UserError
from feddiverse.heterogeneity import Counts

TRAIN, TEST, UNUSED = "train", "test", ("val", "validation")
MAX_CELLS = 5_000_000  # of a table of counts; more means that a column was mistaken for another
LONGEST_LINE = 16 << 20  # characters
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
    """The used rows of a table.

    `attributes_known`: of training rows; `attribute_names` is empty where test rows have none either (and `a` is 0).
    `clients` is None where the table has no such column.
    """

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
    resize: int = 0,
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
    return _source(table, image_size, resize)


def load_table(
    path: Path,
    seed: int,
    image_size: int | None = None,
    columns: Columns | None = None,
    resize: int = 0,
    needs_test_set: bool = True,
    data_dir: Path | None = None,
) -> Federation:
    """The federation that a table with a client column is. Clients are numbered in the order of their names.

    `data_dir`: the folder that pictures are relative to, if that is not the table's.
    """
    side = read_side(path)
    table = read_table(path, seed, columns, needs_test_set)
    if side is not None:
        table = _as_shared(table, side)
    if table.clients is None:
        raise UserError(
            f"{path} has no column '{table.columns.client}': deal it to clients by a split, such as"
            f" 'gsc:table:{path}', or name the column with --client."
        )
    names, client = encode(np.array([table.clients[row] for row in np.flatnonzero(~table.is_test)]))
    source = _source(table, image_size, resize, side, data_dir)
    num_selected = side.num_selected if side else NUM_SELECTED
    return by_owner(f"table:{path}", source, names, client, num_selected, table.attributes_known)


def _as_shared(table: Table, side: Side) -> Table:
    """Classes and attributes numbered as they were, which names in the order of the alphabet need not be."""
    return replace(
        table,
        y=ordered(table.y, table.class_names, side.class_names, "class"),
        a=ordered(table.a, table.attribute_names, side.attribute_names, "attribute"),
        class_names=side.class_names,
        attribute_names=side.attribute_names if table.attribute_names else (),
    )


def _source(
    table: Table, image_size: int | None, resize: int = 0, side: Side | None = None, data_dir: Path | None = None
) -> Source:
    name = f"table:{table.path}"
    if table.numbers is None:
        root, normalisation = table.path.parent, None
        if side is not None:
            root, normalisation = root / side.root, (side.mean, side.std)
            size, image_size = image_size, image_size or side.image_size
            resize = resize or round(side.resize * (size or side.image_size) / side.image_size)
        listing = Listing(data_dir or root, table.images, table.y, table.a, table.is_test)
        return PhotoSource(name, table.class_names, table.attribute_names, listing, image_size, resize, normalisation)
    train, test = ~table.is_test, table.is_test
    mean, std = table.numbers[train].mean(axis=0), table.numbers[train].std(axis=0)
    x = (table.numbers - mean) / np.where(std > 0, std, 1)  # columns have their own units; these have none
    return ArraySource(
        name, table.class_names, table.class_names, table.attribute_names, x.shape[1:], None, None,
        x[train], table.y[train], table.a[train] if table.attributes_known else None,
        x[test], table.y[test], table.a[test], fingerprint(x, table.y, table.a, table.is_test),
    )  # fmt: skip


@dataclass(frozen=True)
class _Row:
    line: int
    part: str  # train or test
    values: dict[str, str]


def read_table(path: Path, seed: int, columns: Columns | None = None, needs_test_set: bool = True) -> Table:
    """Read and check the CSV. Picture paths are relative to it; no split column: a tenth of each group is held out, if
    a test set is needed."""
    header, lines = _open(path)
    columns = _check_header(path, header, columns or Columns(), needs_samples=True)
    rows: list[_Row] = []
    first_lines: dict[str, int] = {}  # of each picture
    for line, values in lines:
        part = _part(path, line, values, columns)
        if part in UNUSED:
            continue
        needed = [*(columns.features or (columns.image,)), columns.label]
        if columns.client in header and part == TRAIN:
            needed.append(columns.client)
        _refuse_empty(path, line, values, needed)
        if not columns.features:
            # A picture listed twice could be both trained and tested on, or be with two clients.
            image = values[columns.image]
            first = first_lines.setdefault(os.path.abspath(path.parent / image), line)
            if first != line:
                raise UserError(
                    f"{path} lists the picture {image} twice, in lines {first} and {line}: keep one of them."
                )
        rows.append(_Row(line, part, values))
    if not rows:
        raise UserError(f"{path} holds no samples: it needs a row for each.")
    return _table(path, columns, header, rows, seed, needs_test_set)


def _table(path: Path, columns: Columns, header: list[str], rows: list[_Row], seed: int, needs_test_set: bool) -> Table:
    class_names, y = encode(np.array([row.values[columns.label] for row in rows]))
    attributes_known, attribute_names, a = _attributes(path, columns, rows) if columns.attribute in header else (
        False, (), np.zeros(len(rows), np.int64)
    )  # fmt: skip
    has_parts = columns.split in header
    is_test = np.array([row.part == TEST for row in rows])
    if needs_test_set and not has_parts:
        is_test = hold_out(y, a, seed)
    if is_test.all() or (needs_test_set and not is_test.any()):
        advice = (
            f"fill the column '{columns.split}' with both, or have clients hold some out (--set holdout=0.2)"
            if has_parts and needs_test_set
            else f"fill the column '{columns.split}' with both"
            if has_parts
            else "without a column of train and test a tenth of each group is held out, so list more samples"
        )
        raise UserError(f"{path} must list samples to train on and to test on: {advice}.")
    if unseen := set(y[is_test].tolist()) - set(y[~is_test].tolist()):
        raise UserError(
            f"{path} has the class '{class_names[min(unseen)]}' among its test rows only: no client could learn it."
        )
    return Table(
        path,
        columns,
        class_names,
        attribute_names,
        y,
        a,
        attributes_known,
        is_test,
        [row.values[columns.client] for row in rows] if columns.client in header else None,
        [] if columns.features else [row.values[columns.image] for row in rows],
        _numbers(path, columns.features, rows) if columns.features else None,
    )


def _attributes(path: Path, columns: Columns, rows: list[_Row]) -> tuple[bool, tuple[str, ...], Ids]:
    """Whether training rows have attributes, what the values are called, and that of each row (0 where unknown).

    Test rows alone may have them. A column with one value for all says no more than none.
    """
    values = [row.values[columns.attribute] for row in rows]
    filled = np.array([bool(value) for value in values])
    is_train = np.array([row.part == TRAIN for row in rows])
    a = np.zeros(len(rows), np.int64)
    known_in_training = bool(filled[is_train].any())
    must_have = np.ones(len(rows), np.bool_) if known_in_training else ~is_train & bool(filled.any())
    if (lacking := np.flatnonzero(must_have & ~filled)).size:
        raise UserError(
            f"{path}, line {rows[int(lacking[0])].line}: {columns.attribute} is empty, while other rows have one: fill"
            " it for every training and test row, for test rows only, or for none."
        )
    if len(set(filter(None, values))) < 2:
        return False, (), a
    names, a[filled] = encode(np.array([value for value in values if value]))
    return known_in_training, names, a


def _numbers(path: Path, features: tuple[str, ...], rows: list[_Row]) -> NDArray[np.float32]:
    numbers = np.empty((len(rows), len(features)), np.float32)
    for place, row in enumerate(rows):
        for column, name in enumerate(features):
            numbers[place, column] = _number(row.values[name])
            if not np.isfinite(numbers[place, column]):
                raise UserError(f"{path}, line {row.line}: {name} is '{row.values[name]}', which is not a number.")
    return numbers


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _part(path: Path, line: int, values: dict[str, str], columns: Columns) -> str:
    part = values.get(columns.split, TRAIN)
    if part not in (TRAIN, TEST, *UNUSED):
        raise UserError(f"{path}, line {line}: {columns.split} is '{part}', but must be train, test or val.")
    return part


def _refuse_empty(path: Path, line: int, values: dict[str, str], needed: Iterable[str]) -> None:
    if empty := next((column for column in needed if not values[column]), None):
        raise UserError(f"{path}, line {line}: {empty} is empty.")


def _check_header(path: Path, header: list[str], columns: Columns, *, needs_samples: bool) -> Columns:
    """The columns as this table has them. One that is needed, or was named by the user, must be there, once."""
    if columns.label == "class" and "class" not in header and "label" in header:
        columns = replace(columns, label="label")
    usual = Columns()
    named = {"--label": columns.label}
    if needs_samples and not columns.features:
        named["--image"] = columns.image
    named |= {
        f"--{key}": getattr(columns, key)
        for key in ("client", "attribute", "split")
        if getattr(columns, key) in header or getattr(columns, key) != getattr(usual, key)
    }
    wanted = [*named.items(), *(("--features", name) for name in columns.features)]
    for option, name in wanted:
        if name not in header:
            raise UserError(
                f"{path} has no column '{name}': it has {', '.join(header)[:300]}; name yours with {option}."
            )
        if header.count(name) > 1:
            raise UserError(f"{path} has two columns '{name}': give one of them another name.")
    for place, (option, name) in enumerate(wanted):
        if other := next((before for before, same in wanted[:place] if same == name), None):
            raise UserError(f"{path}: the column '{name}' cannot be both {other} and {option}.")
    return columns


def _open(path: Path) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """The header; and line number and values of each row, stripped: a space after a comma makes no further class."""
    lines = _lines(path)
    _, header = next(lines, (0, []))
    if not any(header):
        raise UserError(f"{path} is empty: it needs a header that names its columns.")
    return header, _rows(path, header, lines)


def _rows(
    path: Path, header: list[str], lines: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, dict[str, str]]]:
    for line, values in lines:
        if len(values) != len(header):
            raise UserError(f"{path}, line {line}, has {len(values)} values where the header has {len(header)}.")
        yield line, dict(zip(header, values, strict=True))


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            first = stream.readline(LONGEST_LINE)
            stream.seek(0)
            rows = csv.reader(_bounded(stream), delimiter=max(",;\t", key=first.count), strict=True)
            for row in rows:
                if row or rows.line_num == 1:
                    yield rows.line_num, list(map(str.strip, row))
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise UserError(f"{path} is not a CSV: it must be a text in UTF-8 with one row a line.") from None


def _bounded(stream: IO[str]) -> Iterator[str]:
    while line := stream.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE or "\0" in line:
            raise csv.Error("a line without end, or none of a text")
        yield line


@dataclass(frozen=True)
class Tally:
    """Counts `[client, class, attribute]` of training rows, and the names of what they count.

    Clients are in order of appearance. Without attributes `attributes` is empty, and `counts` has one column for all.
    """

    counts: Counts
    clients: list[str]
    classes: list[str]
    attributes: list[str]
    has_pictures: bool = True


def tally(path: Path, columns: Columns | None = None, count: str | None = None) -> Tally:
    """Count a table's training rows by client, class and attribute, or add up its column `count`. Needs no pictures."""
    header, lines = _open(path)
    columns = _check_header(path, header, columns or Columns(), needs_samples=False)
    for option, name in (("--client", columns.client), ("--count", count)):
        if name is not None and name not in header:
            raise UserError(
                f"{path} has no column '{name}': it has {', '.join(header)[:300]}; name yours with {option}."
            )
    cells: Counter[tuple[str, str, str]] = Counter()
    some: tuple[int, bool] | None = None  # the first training row, and whether it has an attribute
    for line, values in lines:
        if _part(path, line, values, columns) != TRAIN:
            continue
        _refuse_empty(path, line, values, (columns.client, columns.label))
        attribute = values.get(columns.attribute, "")
        some = some or (line, bool(attribute))
        if bool(attribute) != some[1]:
            empty, other = (some[0], line) if attribute else (line, some[0])
            raise UserError(f"{path}, line {empty}: {columns.attribute} is empty, while line {other} has one.")
        key = values[columns.client], values[columns.label], attribute
        cells[key] += 1 if count is None else _whole(values[count], f"line {line} of {path}")
    if not cells:
        raise UserError(f"{path} has a header but no training rows: nothing to measure.")
    if cells.total() > MAX_COUNT:
        raise UserError(f"The counts of {path} add up to {cells.total()}: at most {MAX_COUNT} samples can be measured.")
    return replace(_tally(path, cells), has_pictures=columns.image in header)


def _tally(path: Path, cells: Counter[tuple[str, str, str]]) -> Tally:
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
    # One value for all says no more than none.
    return Tally(counts, clients, classes, attributes if len(attributes) > 1 else [])


def _whole(text: str, where: str) -> int:
    number = _number(text)
    if number < 0:
        raise UserError(f"The count {text} in {where} is negative.")
    if not number.is_integer() or number > MAX_COUNT:
        raise UserError(f"The count '{text}' in {where} is not a whole number of samples.")
    return int(number)
