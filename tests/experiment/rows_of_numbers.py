"""A federation of rows of numbers in which a hidden attribute leads the class astray: quick to train and to solve."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

import feddiverse as fd

ALIGNED = (0.95, 0.9, 0.8, 0.9, 0.6, 0.1)
"""How often class and attribute agree, on the kinds of clients."""


def groups_of(aligned: float, n: int, num_classes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Classes and attributes of n samples; classes beyond two have both attributes alike."""
    shares = np.array([aligned, 1 - aligned, 1 - aligned, aligned]) / 2
    y, a = np.divmod(np.repeat(np.arange(4), np.round(shares * n).astype(int)), 2)
    more = np.repeat(np.arange(2, num_classes), n // 4)
    return np.concatenate([y, more]), np.concatenate([a, np.arange(len(more)) % 2])


def rows(
    num_clients: int = 12, n: int = 60, num_classes: int = 2, seed: int = 0, gap: float = 8.0
) -> dict[str, NDArray[np.float32] | NDArray[np.int64]]:
    """x [·, 6], y, a, client; client −1: the test set, balanced. The attribute is easy to see, the class is not."""
    rng = np.random.default_rng(seed)
    parts = []
    for owner in range(-1, num_clients):
        aligned = 0.5 if owner < 0 else ALIGNED[owner % len(ALIGNED)]
        y, a = groups_of(aligned, 200 if owner < 0 else n, num_classes)
        x = rng.normal(size=(len(y), 6)) + 3
        x[:, 0] += 1.5 * y
        x[:, 1] += gap * a
        parts.append((x.astype(np.float32), y, a, np.full(len(y), owner)))
    return dict(
        zip(("x", "y", "a", "client"), (np.concatenate(part) for part in zip(*parts, strict=True)), strict=True)
    )


def federation(name: str = "rows", *, attributes: bool = True, **how: float) -> fd.Federation:
    """The same as a `Federation`."""
    made = rows(**how)
    own = made["client"] >= 0
    return fd.Federation.from_arrays(
        made["x"][own], made["y"][own], made["client"][own],
        attribute=made["a"][own] if attributes else None,
        test=(made["x"][~own], made["y"][~own], made["a"][~own]), name=name, num_selected=4,
    )  # fmt: skip


def table(path: Path, **how: float) -> Path:
    """The same as a CSV."""
    made = rows(**how)
    with path.open("w", encoding="utf-8", newline="") as stream:
        write = csv.writer(stream)
        write.writerow([*(f"f{i}" for i in range(6)), "class", "attribute", "client", "split"])
        for x, y, a, client in zip(*made.values(), strict=True):
            write.writerow([*x, y, a, "" if client < 0 else f"c{client}", "test" if client < 0 else "train"])
    return path


def linear(num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """A model whose features are the numbers themselves."""
    return nn.Linear(shape[0], num_classes)


def people(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Two numbers that tell the class, a third that shows a hidden scanner, which the sites differ in."""
    rng = np.random.default_rng(seed)
    site = rng.integers(0, 4, n)
    scanner = (rng.random(n) < np.array([0.1, 0.4, 0.6, 0.9])[site]).astype(np.int64)
    y = (rng.random(n) < np.where(scanner, 0.7, 0.3)).astype(np.int64)
    x = rng.normal(size=(n, 3)) + np.stack([1.2 * y, y - 0.8 * scanner, 14 * scanner], axis=1)
    return x.astype(np.float32), y, np.array(["north", "south", "east", "west"])[site], scanner
