"""Where pictures come from: embedded digits, MNIST, photo sets, and the user's own table."""

from pathlib import Path

from feddiverse.data.sources import missing
from feddiverse.errors import UserError
from feddiverse.federation import Federation, Source, deal
from feddiverse.splits import parse, split_of

__all__ = ["load_federation", "missing", "open_source"]


def load_federation(name: str, seed: int, *, image_size: int | None = None, data_dir: Path | None = None) -> Federation:
    """The federation of this name: a named one, `split:source`, or `table:PATH.csv` with clients of its own.

    `image_size` is the side of photos in pixels (None: 224; that of digits is 28); `data_dir` holds data that is not in
    the cache.

    >>> federation = load_federation("digits-gsc", seed=0)
    >>> federation.client(0).images.shape
    (140, 3, 28, 28)
    """
    if name.startswith("table:"):
        from feddiverse.data.table import load_table, path_of

        return load_table(path_of(name), seed, image_size)
    split = split_of(name, seed)
    num_classes, num_attributes = split.counts.shape[1:]
    source = open_source(parse(name)[1], num_classes, num_attributes, seed, image_size=image_size, data_dir=data_dir)
    return deal(name, source, split.counts, split.num_selected, seed)


def open_source(
    name: str,
    num_classes: int,
    num_attributes: int,
    seed: int,
    *,
    image_size: int | None = None,
    data_dir: Path | None = None,
) -> Source:
    """A source with as many classes and attributes as a split has; `seed` draws the test set where none is given."""
    kind = name.partition(":")[0]
    if kind in ("digits", "cmnist") and image_size not in (None, 0, 28):
        raise UserError(f"The pictures of {kind} are 28 pixels a side, not {image_size}: leave image_size out.")
    match kind:
        case "digits":
            from feddiverse.data.digits import open_digits

            return open_digits(num_classes, num_attributes, seed)
        case "cmnist":
            from feddiverse.data.cmnist import open_cmnist

            return open_cmnist(num_classes, num_attributes, seed, data_dir)
        case "waterbirds":
            from feddiverse.data.waterbirds import open_waterbirds

            return open_waterbirds(num_classes, num_attributes, image_size, data_dir)
        case "spawrious":
            from feddiverse.data.spawrious import open_spawrious

            return open_spawrious(num_classes, num_attributes, seed, image_size, data_dir)
        case "table":
            from feddiverse.data.table import open_table, path_of

            return open_table(path_of(name), num_classes, num_attributes, seed, image_size)
    raise UserError(f"There is no source '{name}': choose digits, cmnist, spawrious, waterbirds or table:PATH.csv.")
