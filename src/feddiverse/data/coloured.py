"""Digits drawn in a colour, as in CMNIST: the class is read off the digit, the attribute is the colour.

The digit is drawn in one channel of an otherwise black picture: 0 red, 1 green (and 2 blue, for splits that have a
third attribute). Y classes are Y stretches of 0…9 (`digit_class`): with two classes `digit ≥ 5`, as the paper
has it; with four {0,1,2} {3,4} {5,6,7} {8,9}.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feddiverse.data.federation import Ids
from feddiverse.errors import UserError
from feddiverse.heterogeneity import Counts

COLOURS = ("red", "green", "blue")
TRAIN_PER_DIGIT = 360  # of the embedded digits: 500 of each, 140 of them kept for the test set


class Pixels(Protocol):
    """Grey pictures [n, 28, 28], perhaps on disk."""

    def __getitem__(self, rows: Ids) -> NDArray[np.uint8]: ...


@dataclass(frozen=True)
class GreyDigits:
    """A pool of grey digits: rows of `pixels`, and the digit on each of these rows."""

    pixels: Pixels
    rows: Ids
    digits: Ids


def classes_of(digits: Ids, num_classes: int) -> Ids:
    """The class of each digit."""
    return np.array([digit_class(digit, num_classes) for digit in range(10)])[digits]


class ColouredDigits:
    """A source whose attribute is ours to give. Colouring happens when pictures are asked for."""

    shape: tuple[int, ...] = (3, 28, 28)
    mean: tuple[float, ...] | None = (0.1307, 0.1307, 0.1307)  # MNIST's, on each channel
    std: tuple[float, ...] | None = (0.3081, 0.3081, 0.3081)
    train_a: Ids | None = None

    def __init__(
        self,
        name: str,
        num_classes: int,
        num_attributes: int,
        train: GreyDigits,
        test: GreyDigits,
        test_a: Ids,
        fingerprint: str,
    ) -> None:
        self.name = name
        self.class_names = class_names(num_classes)
        self.attribute_names = COLOURS[:num_attributes]
        self.fingerprint = fingerprint
        self._train, self._test = train, test
        self.train_y = classes_of(train.digits, num_classes)
        self.test_y = classes_of(test.digits, num_classes)
        self.test_a = test_a

    def train_x(self, ids: Ids, a: Ids) -> NDArray[np.uint8]:
        return colour(self._train.pixels[self._train.rows[ids]], a)

    def test_x(self, ids: Ids, a: Ids) -> NDArray[np.uint8]:
        return colour(self._test.pixels[self._test.rows[ids]], a)


def colour(grey: NDArray[np.uint8], a: Ids) -> NDArray[np.uint8]:
    """[n, h, w] → [n, 3, h, w] with each picture in the channel of its attribute only."""
    images = np.zeros((len(grey), 3, *grey.shape[1:]), np.uint8)
    images[np.arange(len(grey)), a] = grey
    return images


def class_names(num_classes: int) -> tuple[str, ...]:
    """The digits of each class: `0-4`, `5-9`."""
    members = [np.flatnonzero(classes_of(np.arange(10), num_classes) == y).tolist() for y in range(num_classes)]
    return tuple(str(d[0]) if len(d) == 1 else f"{d[0]}-{d[-1]}" for d in members)


def check_groups(name: str, num_classes: int, num_attributes: int) -> None:
    """Ten digits make at most ten classes, three channels at most three colours."""
    if not (1 <= num_classes <= 10 and 1 <= num_attributes <= len(COLOURS)):
        raise UserError(
            f"Source {name} has at most 10 classes and {len(COLOURS)} attributes, but the split has {num_classes} "
            f"classes and {num_attributes} attributes: choose another split."
        )


def digit_class(digit: int, num_classes: int) -> int:
    """The class a digit is drawn for: equal stretches of 0…9; with two classes, digit ≥ 5 as in CMNIST."""
    return digit * num_classes // 10


def fitted(counts: Counts) -> Counts:
    """Counts scaled down until the embedded digits suffice.

    The factor is the largest of 1, 0.9, …, 0.1, 0.09, … that fits; each count is rounded half up, and a group
    that a client has keeps at least one sample. (GSC is scaled by 0.7 and so stays exact.)
    """
    num_classes = counts.shape[1]
    if num_classes > 10:
        raise UserError(f"The digits make at most 10 classes; the split has {num_classes}.")
    capacity = TRAIN_PER_DIGIT * np.bincount([digit_class(d, num_classes) for d in range(10)], minlength=num_classes)
    for tenths, unit in [(1, 1)] + [(d, 10**e) for e in range(1, 10) for d in range(9, 0, -1)]:
        scaled: Counts = np.maximum((2 * counts * tenths + unit) // (2 * unit), counts > 0)
        if (scaled.sum(axis=(0, 2)) <= capacity).all():
            return scaled
    raise UserError(
        f"The embedded digits are too few for this split even at one sample a group: they have {capacity.tolist()} of "
        f"each class, {(counts > 0).sum(axis=(0, 2)).tolist()} are needed; use fewer clients, or the source cmnist."
    )
