"""How many samples of each (class, attribute) every client gets: the paper's matrices, and splits made by rule.

A federation is named `split:source`, such as `gai:cmnist` or `dirichlet(alpha=0.3,clients=20):digits`, or has a name
of its own (`FEDERATIONS`). All counts come from here and need no data.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

import numpy as np

from feddiverse.errors import UserError
from feddiverse.heterogeneity import Counts
from feddiverse.splits import by_rule
from feddiverse.splits.paper import PAPER, SPLITS, Split

__all__ = ["FEDERATIONS", "PAPER", "SOURCES", "SPLITS", "Split", "counts_of", "digit_class", "parse", "split_of"]

SOURCES = ("digits", "cmnist", "spawrious", "waterbirds", "table")
FEDERATIONS = {"digits-gsc": ("gsc", "digits")} | PAPER

# The embedded digits: 500 of each, 140 of them kept for the test set.
TRAIN_PER_DIGIT = 360


def parse(name: str) -> tuple[str, str]:
    """A federation's split and source, as texts: of a named one, or of `split:source`."""
    if name in FEDERATIONS:
        return FEDERATIONS[name]
    split, _, source = name.partition(":")
    kind = split.partition("(")[0]
    if not source:
        if kind in SPLITS or kind in by_rule.KINDS:
            raise UserError(f"'{split}' is a split: say on which source as well, such as '{split}:digits'.")
        raise UserError(f"There is no federation '{name}'.{_nearest(name, FEDERATIONS)} See: feddiverse federations.")
    if split not in SPLITS and kind not in by_rule.KINDS:
        known = (*SPLITS, *by_rule.KINDS)
        raise UserError(f"There is no split '{split}'.{_nearest(kind, known)} Splits are {', '.join(known)}.")
    if source.partition(":")[0] not in SOURCES:
        raise UserError(f"There is no source '{source}'.{_nearest(source, SOURCES)} Sources are {', '.join(SOURCES)}.")
    return split, source


def split_of(name: str, seed: int = 0) -> Split:
    """The split of a named federation or of `split:source`; `seed` matters to splits made by rule.

    On the embedded digits, a split too large for them is scaled down (`fitted`).
    """
    text, source = parse(name)
    split = SPLITS[text] if text in SPLITS else by_rule.make(text, seed)
    return replace(split, counts=fitted(split.counts)) if source == "digits" else split


def counts_of(name: str, seed: int = 0) -> Counts:
    """Counts `[client, class, attribute]` of a named federation or of `split:source`."""
    return split_of(name, seed).counts


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


def _nearest(name: str, known: Sequence[str] | dict[str, tuple[str, str]]) -> str:
    close = get_close_matches(re.sub(r"[_ ]", "-", name.lower()), list(known), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""
