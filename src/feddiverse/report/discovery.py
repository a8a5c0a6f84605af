"""The page of `feddiverse discover`: one HTML file that lets a person see what the hidden attribute is."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse.experiment.discovery import CONFIDENT, Discovery
from feddiverse.heterogeneity import METRICS, triplet
from feddiverse.report import templates

IN_A_STRIP = 12
LARGEST_SIDE = 96  # pixels of a picture on the page
MOST_CLIENTS = 200
MOST_COLUMNS, COLUMNS_OF_ROWS = 10, 6
MEANING = {
    "gci": "class imbalance, all data together",
    "gai": "attribute imbalance, all data together",
    "gsc": "spurious correlation, all data together",
    "cci": "class imbalance, mean over clients",
    "cai": "attribute imbalance, mean over clients",
    "csc": "spurious correlation, mean over clients",
}


@dataclass(frozen=True)
class Shown:
    """One sample: what is said of it, and its picture or some of its numbers."""

    value: int
    says: str
    picture: str = ""
    numbers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Strip:
    """Samples of one class from one end of the attribute to the other; how many of the class have each value."""

    name: str
    counts: tuple[int, ...]
    samples: tuple[Shown, ...]


@dataclass(frozen=True)
class Column:
    """A column of numbers: its mean under each value, and how many standard deviations these are apart."""

    name: str
    means: tuple[str, ...]
    apart: str


@dataclass(frozen=True)
class Client:
    """One client's estimated table; `bars[class][value]` is a count and the width of its bar in per cent."""

    name: str
    samples: int
    bars: tuple[tuple[tuple[int, float], ...], ...]
    ai: str
    sc: str


def write(discovery: Discovery, *, pictures: bool = True) -> str:
    """The page as text. `pictures`: whether it may show samples at all."""
    columns: list[Column] = []
    strips: list[Strip] = []
    if discovery.seen and pictures:
        strips = list(pictures_of(discovery))
        if not strips:
            places, columns = _telling_columns(discovery)
            first = places[:COLUMNS_OF_ROWS]
            strips = _strips(discovery, lambda x: {"numbers": tuple(f"{n:.4g}" for n in x.reshape(-1)[first])})
    counts = discovery.counts
    return templates.get("discovery.html").render(
        found=discovery,
        are_pictures=_are_pictures(discovery),
        strips=strips,
        columns=columns,
        heads=[column.name for column in columns[:COLUMNS_OF_ROWS]],
        clients=_clients(discovery),
        num_clients=int((counts.sum(axis=(1, 2)) > 0).sum()),
        num_samples=len(discovery.y),
        metrics=[(name.upper(), discovery.metrics[name], MEANING[name]) for name in METRICS],
        confident=CONFIDENT,
        version=version("feddiverse"),
    )


def pictures_of(discovery: Discovery) -> tuple[Strip, ...]:
    """A strip a class; none where samples are no pictures."""
    return tuple(_strips(discovery, lambda x: {"picture": data_uri(x)})) if _are_pictures(discovery) else ()


def chosen(discovery: Discovery, y: int) -> NDArray[np.int64]:
    """Rows of class `y` for a strip: of every value equally many, evenly spread along the direction.

    Of a rare value the unsure ones are mostly others: those read with confidence are taken where there are enough.
    """
    positions = discovery.positions()
    values = [np.flatnonzero((discovery.y == y) & (discovery.attributes == a)) for a in range(discovery.num_attributes)]
    share = max(2, IN_A_STRIP // max(1, sum(len(rows) > 0 for rows in values)))
    picked = []
    for rows in values:
        sure = rows[discovery.confidence[rows] >= CONFIDENT]
        rows = sure if len(sure) >= share else rows
        ordered = rows[np.argsort(positions[rows], kind="stable")]
        num = min(share, len(ordered))
        picked.append(ordered[((np.arange(num) + 0.5) * len(ordered) / max(num, 1)).astype(np.int64)])
    return np.concatenate(picked)


def data_uri(x: NDArray[Any]) -> str:
    """A uint8 picture [1 or 3, height, width] as text that a page can hold: small ones exactly, others as JPEG."""
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(x[0] if len(x) == 1 else x.transpose(1, 2, 0)))
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    kind = "png" if max(picture.size) <= LARGEST_SIDE // 2 else "jpeg"
    out = io.BytesIO()
    picture.save(out, kind, **({"quality": 85} if kind == "jpeg" else {"optimize": True}))
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}"


def _are_pictures(discovery: Discovery) -> bool:
    source = discovery.federation.source
    return source.mean is not None and len(source.shape) == 3 and source.shape[0] in (1, 3)


def _strips(discovery: Discovery, show: Callable[[NDArray[Any]], dict[str, Any]]) -> list[Strip]:
    """One a class that has samples."""
    federation, names = discovery.federation, discovery.names_of_samples()
    counts = discovery.counts.sum(axis=0)
    strips = []
    for y in np.flatnonzero(counts.sum(axis=1)).tolist():
        samples = []
        for row in chosen(discovery, y).tolist():
            k, sample = int(discovery.client[row]), discovery.sample[[row]]
            # The attribute that a coloured digit shows is given to it by the source.
            shows = federation.client_a[k][federation.client_ids[k] == sample]
            a = int(discovery.attributes[row])
            says = f"{names[row]}, {federation.names[k]}: a{a}, {100 * discovery.confidence[row]:.0f} % sure"
            samples.append(Shown(a, says, **show(federation.source.train_x(sample, shows)[0])))
        strips.append(Strip(discovery.class_names[y], tuple(counts[y].tolist()), tuple(samples)))
    return strips


def _telling_columns(discovery: Discovery) -> tuple[NDArray[np.int64], list[Column]]:
    """The columns whose means differ most between the attribute's values within classes, relative to their spread."""
    federation, shape = discovery.federation, discovery.counts.shape[1:]
    size = int(np.prod(federation.source.shape))
    sums, squares = np.zeros((*shape, size)), np.zeros(size)
    for k in np.unique(discovery.client).tolist():
        own = discovery.client == k
        x = federation.client(k).x.reshape(int(own.sum()), -1).astype(np.float64)
        np.add.at(sums, (discovery.y[own], discovery.attributes[own]), x)
        squares += np.square(x).sum(axis=0)
    counts = discovery.counts.sum(axis=0)
    around = squares - (np.square(sums) / np.maximum(counts, 1)[..., None]).sum(axis=(0, 1))
    spread = np.sqrt(np.maximum(around / counts.sum(), 1e-12))  # within groups
    # Classes that show every value count: else a difference between classes would pass for one of the attribute.
    whole = (counts > 0).all(axis=1)
    used = whole if whole.any() else np.ones_like(whole)
    weights = counts[used].sum(axis=1) / counts[used].sum()
    means = np.tensordot(weights, sums[used] / np.maximum(counts[used], 1)[..., None], axes=1)  # [A, size]
    apart = np.ptp(means, axis=0) / spread
    places = np.argsort(-apart, kind="stable")[:MOST_COLUMNS]
    names = getattr(federation.source, "feature_names", None)
    return places, [
        Column(
            str(names[i]) if names else _place(i, federation.source.shape),
            tuple(f"{mean:.4g}" for mean in means[:, i]),
            f"{apart[i]:.1f}",
        )
        for i in places.tolist()
    ]


def _place(i: int, shape: tuple[int, ...]) -> str:
    return "column " + ", ".join(str(int(at)) for at in np.unravel_index(i, shape))


def _clients(discovery: Discovery) -> list[Client]:
    """The first clients that answered, in their order."""
    counts = discovery.counts
    widest = max(1, int(counts.sum(axis=2).max()))
    shown = np.flatnonzero(counts.sum(axis=(1, 2)))[:MOST_CLIENTS]
    rows = []
    for k in shown.tolist():
        _, ai, sc = (f"{value:.2f}" for value in triplet(counts[k]))
        bars = tuple(tuple((int(n), round(100 * n / widest, 2)) for n in row) for row in counts[k])
        rows.append(
            Client(
                discovery.federation.names[k],
                int(counts[k].sum()),
                bars,
                ai if discovery.seen else "–",
                sc if discovery.seen else "–",
            )
        )
    return rows
