"""Digits drawn in a colour, as in CMNIST: the class is read off the digit, the attribute is the colour.

The digit is drawn in one channel of an otherwise black picture: 0 red, 1 green (and 2 blue, for splits that have a
third attribute). Y classes are Y stretches of 0…9 (`splits.digit_class`): with two classes `digit ≥ 5`, as the paper
has it; with four {0,1,2} {3,4} {5,6,7} {8,9}.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import UserError
from feddiverse.federation import Ids
from feddiverse.splits import digit_class

COLOURS = ("red", "green", "blue")


class Pixels(Protocol):
    """Grey pictures [n, 28, 28], perhaps on disk."""

    def __getitem__(self, rows: Ids) -> NDArray[np.uint8]: ...


@dataclass(frozen=True)
class Drawn:
    """A pool of grey digits: rows of `pixels`, and the digit on each of these rows."""

    pixels: Pixels
    rows: Ids
    digits: Ids


def classes_of(digits: Ids, num_classes: int) -> Ids:
    """The class of each digit."""
    return np.array([digit_class(digit, num_classes) for digit in range(10)])[digits]


class ColouredDigits:
    """A source whose attribute is ours to give. Colouring happens when pictures are asked for."""

    shape = (3, 28, 28)
    mean = (0.1307, 0.1307, 0.1307)  # MNIST's, on each channel
    std = (0.3081, 0.3081, 0.3081)
    train_a: Ids | None = None

    def __init__(
        self,
        name: str,
        num_classes: int,
        num_attributes: int,
        train: Drawn,
        test: Drawn,
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

    def train_images(self, ids: Ids, a: Ids) -> NDArray[np.uint8]:
        return colour(self._train.pixels[self._train.rows[ids]], a)

    def test_images(self, ids: Ids, a: Ids) -> NDArray[np.uint8]:
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
