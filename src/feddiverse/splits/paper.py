"""The paper's seven federations: each client's true interaction matrix, as the authors released them (Sec. V-A)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from feddiverse.heterogeneity import Counts


@dataclass(frozen=True)
class Split:
    """Counts `[client, class, attribute]`, how many clients to select a round, and the metrics a design aimed at."""

    counts: Counts
    num_selected: int = 9
    targets: Mapping[str, float] = field(default_factory=dict)


def _repeat(*clients: tuple[int, Sequence[Sequence[int]]]) -> Counts:
    """Counts of a federation given as (how many clients, the matrix of each)."""
    times, matrices = zip(*clients, strict=True)
    return np.repeat(np.array(matrices, dtype=np.int64), times, axis=0)


SPLITS: dict[str, Split] = {
    "gsc": Split(
        _repeat(
            (2, [[90, 90], [10, 10]]),
            (2, [[10, 10], [90, 90]]),
            (2, [[90, 10], [90, 10]]),
            (2, [[10, 90], [10, 90]]),
            (15, [[90, 10], [10, 90]]),
            (1, [[10, 90], [90, 10]]),
        )
    ),
    "gci": Split(
        _repeat(
            (15, [[90, 90], [10, 10]]),
            (1, [[10, 10], [90, 90]]),
            (2, [[90, 10], [90, 10]]),
            (2, [[10, 90], [10, 90]]),
            (2, [[90, 10], [10, 90]]),
            (2, [[10, 90], [90, 10]]),
        )
    ),
    "gai": Split(
        _repeat(
            (1, [[120, 5], [20, 10]]),
            (1, [[120, 40], [5, 10]]),
            (2, [[170, 5], [5, 5]]),
            (2, [[5, 5], [170, 5]]),
            (2, [[10, 30], [120, 10]]),
            (2, [[80, 80], [20, 2]]),
            (14, [[80, 15], [90, 2]]),
            (1, [[110, 5], [85, 8]]),
        )
    ),
    "4": Split(
        _repeat(
            (2, [[20, 20], [20, 20], [5, 5], [5, 5]]),
            (2, [[5, 5], [5, 5], [20, 20], [20, 20]]),
            (2, [[20, 5], [20, 5], [20, 5], [20, 5]]),
            (2, [[5, 20], [5, 20], [5, 20], [5, 20]]),
            (1, [[5, 20], [5, 20], [20, 5], [20, 5]]),
            (7, [[119, 5], [119, 5], [5, 119], [5, 119]]),
            (9, [[118, 5], [118, 5], [5, 118], [5, 118]]),
        )
    ),
    "gci-100": Split(
        np.tile(
            _repeat(
                (16, [[68, 68], [10, 10]]),
                (1, [[10, 10], [68, 68]]),
                (2, [[68, 10], [68, 10]]),
                (2, [[10, 68], [10, 68]]),
                (2, [[68, 10], [10, 68]]),
                (2, [[10, 68], [68, 10]]),
            ),
            (4, 1, 1),
        ),
        num_selected=12,
    ),
    "dist": Split(
        _repeat(
            (1, [[23, 23], [10, 110]]),
            (1, [[110, 23], [10, 23]]),
            (1, [[89, 39], [1, 29]]),
            (1, [[29, 39], [1, 89]]),
            (1, [[81, 35], [9, 31]]),
            (9, [[126, 1], [1, 31]]),
            (16, [[127, 1], [1, 31]]),
        )
    ),
}

PAPER: dict[str, tuple[str, str]] = {
    "cmnist-gsc": ("gsc", "cmnist"),
    "spawrious-gsc": ("gsc", "spawrious"),
    "spawrious-gci": ("gci", "spawrious"),
    "spawrious-gai": ("gai", "spawrious"),
    "spawrious-4": ("4", "spawrious"),
    "spawrious-gci-100": ("gci-100", "spawrious"),
    "waterbirds-dist": ("dist", "waterbirds"),
}
