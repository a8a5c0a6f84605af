"""Where samples come from: embedded digits, MNIST, photo sets, the user's own tables and arrays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from feddiverse import registry
from feddiverse.data.federation import Federation, Source, deal
from feddiverse.data.names import full_name, parse, split_of
from feddiverse.data.sources import missing
from feddiverse.errors import UserError

__all__ = ["missing", "open_federation", "open_source"]


def open_federation(
    name: str,
    seed: int = 0,
    *,
    image_size: int = 0,
    resize: int = 0,
    data_dir: str | Path = "",
    columns: str = "",
    features: str = "",
    needs_test_set: bool = True,
) -> Federation:
    """The federation of this name: a named one, `split:source`, or a table (`PATH.csv`) with clients of its own.

    `image_size` is the side of photos in pixels (0: 224; that of digits is 28); with `resize` photos are scaled to that
    side first and their middle is cut out (0: as the source does, Waterbirds 256); `data_dir` holds data that is not in
    the cache. `columns` (`"class=diagnosis,client=hospital"`) says what a table's columns are called, `features`
    (`"age,weight"`) that it holds numbers instead of pictures. A table without test rows is refused if
    `needs_test_set`; one that does not say which rows these are then keeps a tenth of them for that.

    >>> open_federation("digits-gsc", seed=0).client(0).x.shape
    (140, 3, 28, 28)
    """
    if not isinstance(name, str):
        raise UserError(
            f"A federation is opened by its name, not by {type(name).__name__}; own samples make one by"
            " Federation.from_clients or Federation.from_arrays."
        )
    name = full_name(name)
    opened_with = {
        "seed": seed, "image_size": image_size, "resize": resize, "data_dir": str(data_dir), "columns": columns,
        "features": features,
    }  # fmt: skip
    if name.startswith("table:"):
        from feddiverse.data.table import Columns, load_table, path_of

        opened = load_table(
            path_of(name), seed, image_size or None, Columns.of(columns, features), resize, needs_test_set,
            Path(data_dir).expanduser() if data_dir else None,
        )  # fmt: skip
        return replace(opened, opened_with=opened_with)
    split = split_of(name, seed)
    num_classes, num_attributes = split.counts.shape[1:]
    source = open_source(
        parse(name)[1], num_classes, num_attributes, seed, image_size=image_size or None, resize=resize,
        data_dir=Path(data_dir).expanduser() if data_dir else None, columns=columns, features=features,
    )  # fmt: skip
    return replace(deal(name, source, split.counts, split.num_selected, seed), opened_with=opened_with)


def open_source(
    name: str,
    num_classes: int,
    num_attributes: int,
    seed: int,
    *,
    image_size: int | None = None,
    resize: int = 0,
    data_dir: Path | None = None,
    columns: str = "",
    features: str = "",
) -> Source:
    """A source with as many classes and attributes as a split has; `seed` draws the test set where none is given."""
    kind, _, path = name.partition(":")
    if kind in ("digits", "cmnist") and (image_size not in (None, 28) or resize):
        given = f"resize {resize}" if resize else f"image_size {image_size}"
        raise UserError(f"The pictures of {kind} are 28 pixels a side and are not scaled: leave {given} out.")
    settings: dict[str, Any] = {
        "num_classes": num_classes, "num_attributes": num_attributes, "seed": seed, "image_size": image_size,
        "resize": resize, "data_dir": data_dir, "path": path,
    }  # fmt: skip
    if kind == "table":
        from feddiverse.data.table import Columns

        settings["columns"] = Columns.of(columns, features)
    source: Source = registry.make(registry.SOURCE, kind, settings)
    return source
