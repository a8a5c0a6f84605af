"""How many samples of each (class, attribute) every client gets: the paper's matrices, and splits made by rule.

All counts come from here and need no data; `feddiverse.data.names` puts a split and a source together.
"""

from feddiverse import registry
from feddiverse.errors import UserError
from feddiverse.splits import by_rule
from feddiverse.splits.paper import PAPER, SPLITS, Split

__all__ = ["PAPER", "SPLITS", "Split", "is_split", "make"]


def is_split(text: str) -> bool:
    """Whether a text such as `gsc` or `dirichlet(alpha=0.3)` names a split that there is."""
    return text in SPLITS or text.partition("(")[0] in registry.names(registry.SPLIT)


def make(text: str, seed: int = 0) -> Split:
    """The split that a text stands for; `seed` matters to splits made by rule.

    >>> make("gsc").counts.sum(axis=0).tolist()
    [[1760, 640], [640, 1760]]
    """
    if text in SPLITS:
        return SPLITS[text]
    if not is_split(text):
        known = (*SPLITS, *registry.names(registry.SPLIT))
        hint = registry.nearest(text.partition("(")[0], known)
        raise UserError(f"There is no split '{text}'{hint}. Splits are {', '.join(known)}.")
    return by_rule.make(text, seed)
