"""A federation that other people and other frameworks can use: who has what, as one CSV with a side file.

`run` reads the CSV back to the same bits: the side file `federation.json` beside it says what a table cannot, such as
the seed, the order of classes and the normalisation. With the pictures it is a Hugging Face dataset too (an image
folder, `train/` and `test/`), whose column `client` Flower Datasets can partition by.
"""

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feddiverse import files
from feddiverse.data.federation import Federation, Ids
from feddiverse.errors import UserError

CSV, PARTS = "federation.csv", ("train", "test")
FORMAT = "federation 1"


@dataclass(frozen=True)
class Side:
    """What the side file of a shared table says."""

    federation: str  # where it comes from, whose default settings are its own
    class_names: tuple[str, ...]
    attribute_names: tuple[str, ...]
    num_selected: int
    image_size: int
    resize: int
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    root: str  # of pictures, relative to the table


def export(federation: Federation, folder: Path, *, seed: int, pictures: bool = False) -> Path:
    """Write `federation.csv` and `federation.json`; gives the CSV's path.

    Pictures that are made (coloured digits) are always written, those of a photo set if `pictures`; else the CSV names
    them relative to the set's folder.
    """
    source: Any = federation.source
    is_photos = hasattr(source, "train_files")
    if source.mean is None or len(source.shape) != 3:
        raise UserError(f"The samples of {federation.name} are no pictures: share the table they come from.")
    if source.shape[0] not in (1, 3):
        raise UserError(f"Pictures of {source.shape[0]} channels cannot be shared as files.")
    pictures = pictures or not is_photos
    folder = folder.expanduser()
    if folder.is_dir() and any(folder.iterdir()) and not (folder / CSV).is_file():
        raise UserError(f"{folder} is not empty and no shared federation; choose another folder with --out.")
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    rows = list(_samples(federation))
    names = [_write_picture(federation, folder, n, row) if pictures else _file(federation, row)
             for n, row in enumerate(rows)]  # fmt: skip
    text = _table(federation, rows, names)
    about = {
        "feddiverse": FORMAT,
        "federation": federation.name,
        "seed": seed,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "fingerprint": source.fingerprint,
        "class_names": list(map(str, source.class_names)),
        "attribute_names": list(source.attribute_names),
        "num_selected": federation.num_selected,
        "image_size": source.shape[-1],
        "resize": getattr(source, "resize", 0),
        "mean": source.mean,
        "std": source.std,
        "root": "." if pictures else os.path.relpath(source.root, folder),
    }
    files.write(folder / CSV, text.encode())
    if pictures:
        for part in PARTS:
            if lines := _metadata(federation, rows, names, part):
                files.write(folder / part / "metadata.jsonl", lines.encode())
        files.write(folder / "README.md", _card(federation, rows).encode())
    files.write_json(_side_of(folder / CSV), about)
    return folder / CSV


@dataclass(frozen=True)
class _Row:
    part: str
    client: str  # empty for test samples
    id: int
    y: int
    a: int | None


def _samples(federation: Federation) -> Iterator[_Row]:
    """Client after client in the order that training sees, then the test set."""
    for k, name in enumerate(federation.names):
        for i, a in zip(federation.client_ids[k].tolist(), federation.client_a[k].tolist(), strict=True):
            known = a if federation.attributes_known else None
            yield _Row("train", name, i, int(federation.source.train_y[i]), known)
    for i in federation.test_ids.tolist():
        a = int(federation.source.test_a[i]) if federation.test_attributes_known else None
        yield _Row("test", "", i, int(federation.source.test_y[i]), a)


def _file(federation: Federation, row: _Row) -> str:
    source: Any = federation.source
    name: str = (source.train_files if row.part == "train" else source.test_files)[row.id]
    return name


def _write_picture(federation: Federation, folder: Path, number: int, row: _Row) -> str:
    """The file itself where there is one, else a PNG of what the source shows; gives its path within `folder`."""
    source: Any = federation.source
    if hasattr(source, "train_files"):
        original = source.root / _file(federation, row)
        name, content = f"{row.part}/{number:06d}{original.suffix.lower()}", original.read_bytes()
    else:
        from PIL import Image

        ids, a = np.array([row.id]), np.array([row.a or 0])
        pixels = (source.train_x if row.part == "train" else source.test_x)(ids, a)[0]
        stream = io.BytesIO()
        Image.fromarray(pixels.transpose(1, 2, 0).squeeze()).save(stream, "PNG")
        name, content = f"{row.part}/{number:06d}.png", stream.getvalue()
    (folder / row.part).mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return name


def _lines(header: list[str], rows: list[list[str]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def _named(federation: Federation, row: _Row) -> tuple[str, str]:
    """What its class and its attribute are called; an attribute that nobody knows is empty."""
    source = federation.source
    return str(source.class_names[row.y]), "" if row.a is None else source.attribute_names[row.a]


def _table(federation: Federation, rows: list[_Row], names: list[str]) -> str:
    header = ["client", "image", "class", "attribute", "split"]
    return _lines(
        header,
        [[row.client, name, *_named(federation, row), row.part] for row, name in zip(rows, names, strict=True)],
    )


def _metadata(federation: Federation, rows: list[_Row], names: list[str], part: str) -> str:
    """What Hugging Face's image folders read: a line a picture of the folder that this lies in.

    All values are texts, so that both parts have the same types.
    """
    lines = []
    for row, name in zip(rows, names, strict=True):
        if row.part == part:
            label, attribute = _named(federation, row)
            about = {"file_name": name.partition("/")[2], "client": row.client, "label": label, "attribute": attribute}
            lines.append(json.dumps(about, ensure_ascii=False) + "\n")
    return "".join(lines)


def _card(federation: Federation, rows: list[_Row]) -> str:
    """A dataset card that names the files of each part, so that the CSV is not taken for data."""
    parts = [part for part in PARTS if any(row.part == part for row in rows)]
    listed = "".join(f"  - split: {part}\n    path: {part}/**\n" for part in parts)
    return (
        f"---\nconfigs:\n- config_name: default\n  data_files:\n{listed}---\n# {federation.name}\n\n"
        f"A federation of {federation.num_clients} clients, written by feddiverse. `client` says who holds a picture;"
        " test pictures belong to nobody.\n"
    )


def _side_of(table: Path) -> Path:
    return table.with_suffix(".json")


def read_side(table: Path, check: bool = True) -> Side | None:
    """What is written beside a shared table; None for any other. `check`: whether the table is as it was written."""
    try:
        about = json.loads(_side_of(table).read_text("utf-8"))
        if about["feddiverse"] != FORMAT:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a file of the user's own
    if check and hashlib.sha256(table.read_bytes()).hexdigest() != about["sha256"]:
        raise UserError(
            f"{table} is no longer the table that {_side_of(table).name} beside it describes: export it again, or"
            f" delete {_side_of(table).name} to use the table as it is now."
        )
    try:
        mean, std = (None if about[key] is None else tuple(map(float, about[key])) for key in ("mean", "std"))
        return Side(
            str(about["federation"]), tuple(map(str, about["class_names"])), tuple(map(str, about["attribute_names"])),
            int(about["num_selected"]), int(about["image_size"]), int(about["resize"]), mean, std, str(about["root"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{_side_of(table)} is damaged ({error}): export the federation again.") from error


def origin(name: str) -> str:
    """The federation that a shared table comes from; of any other name, itself."""
    if not name.startswith("table:"):
        return name
    side = read_side(Path(name.removeprefix("table:")).expanduser(), check=False)
    return name if side is None else side.federation


def ordered(values: Ids, names: tuple[str, ...], order: tuple[str, ...], what: str) -> Ids:
    """Numbers of `names` as numbers of `order`."""
    place = {name: i for i, name in enumerate(order)}
    if lacking := [name for name in names if name not in place]:
        raise UserError(f"The side file does not know the {what} '{lacking[0]}': export the federation again.")
    return np.array([place[name] for name in names], np.int64)[values] if len(names) else values
