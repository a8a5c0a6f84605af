"""What a federation's name means: a split and a source. Needs no data.

A federation is named `split:source`, such as `gai:cmnist` or `dirichlet(alpha=0.3,clients=20):digits`, or has a name
of its own (`FEDERATIONS`).
"""

from dataclasses import replace

from feddiverse import registry, splits
from feddiverse.data.coloured import fitted
from feddiverse.errors import UserError
from feddiverse.heterogeneity import Counts
from feddiverse.splits import PAPER, Split

FEDERATIONS = {"digits-gsc": ("gsc", "digits")} | PAPER


def full_name(name: str) -> str:
    """The name as configs have it: the path of a CSV is `table:PATH`."""
    is_csv = name not in FEDERATIONS and name.lower().endswith((".csv", ".tsv")) and ":" not in name
    return f"table:{name}" if is_csv else name


def parse(name: str) -> tuple[str, str]:
    """A federation's split and source, as texts: of a named one, or of `split:source`."""
    if name in FEDERATIONS:
        return FEDERATIONS[name]
    split, _, source = name.partition(":")
    if not source:
        if splits.is_split(split):
            raise UserError(f"'{split}' is a split: say on which source as well, such as '{split}:digits'.")
        hint = registry.nearest(name.replace("_", "-").replace(" ", "-"), FEDERATIONS)
        raise UserError(f"There is no federation '{name}'{hint}. See: feddiverse federations.")
    if not splits.is_split(split):
        splits.make(split)  # says so
    known = registry.names(registry.SOURCE)
    if source.partition(":")[0] not in known:
        raise UserError(
            f"There is no source '{source}'{registry.nearest(source, known)}. Sources are {', '.join(known)}."
        )
    return split, source


def split_of(name: str, seed: int = 0) -> Split:
    """The split of a named federation or of `split:source`; `seed` matters to splits made by rule.

    On the embedded digits, a split too large for them is scaled down (`fitted`).
    """
    text, source = parse(name)
    split = splits.make(text, seed)
    return replace(split, counts=fitted(split.counts)) if source == "digits" else split


def counts_of(name: str, seed: int = 0) -> Counts:
    """Counts `[client, class, attribute]` of a named federation or of `split:source`.

    >>> counts_of("cmnist-gsc").shape
    (24, 2, 2)
    """
    return split_of(name, seed).counts
