"""Splits made by rule and seed: iid, shards, Dirichlet, and designed ones, written as `kind(option=value,…)`.

iid and shards deal out a pool of samples that is balanced over the (class, attribute) groups; Dirichlet draws each
client's own mix of groups. All give clients equal sizes (up to one sample), designs where that can meet their targets.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse import heterogeneity, registry, seeding
from feddiverse.errors import UserError
from feddiverse.heterogeneity import Counts
from feddiverse.splits import design
from feddiverse.splits.paper import PAPER, SPLITS, Split

Rng = np.random.Generator

LARGEST = 10_000_000  # of any number in an option, and of the cells of all matrices: what a laptop's memory holds


def iid(rng: Rng, clients: int = 24, samples: int = 4800, classes: int = 2, attributes: int = 2) -> Split:
    """Every client a random part of the balanced pool."""
    groups = rng.permutation(_pool(samples, classes * attributes))
    return Split(_tables(np.array_split(groups, clients), classes, attributes))


def shards(
    rng: Rng, per_client: int = 2, clients: int = 24, samples: int = 4800, classes: int = 2, attributes: int = 2
) -> Split:
    """The pool sorted by group and cut into equal shards, `per_client` of them dealt to each (McMahan et al., 2017)."""
    if samples < clients * per_client:
        raise UserError(f"{clients} clients with {per_client} shards each need more than {samples} samples.")
    pieces = np.array_split(_pool(samples, classes * attributes), clients * per_client)
    dealt = rng.permutation(len(pieces)).reshape(clients, per_client)
    return Split(_tables([np.concatenate([pieces[i] for i in own]) for own in dealt], classes, attributes))


def dirichlet(
    rng: Rng, alpha: float = 0.3, clients: int = 24, samples: int = 4800, classes: int = 2, attributes: int = 2
) -> Split:
    """Each client's mix of groups drawn from a symmetric Dirichlet of concentration alpha (Hsu et al., 2019)."""
    mixes = rng.dirichlet(np.full(classes * attributes, alpha), size=clients)
    counts = rng.multinomial(_even(samples, clients), mixes)
    return Split(counts.reshape(clients, classes, attributes))


def designed(
    rng: Rng,
    like: str = "",
    gci: float = math.nan,
    gai: float = math.nan,
    gsc: float = math.nan,
    cci: float = math.nan,
    cai: float = math.nan,
    csc: float = math.nan,
    tolerance: float = 0.02,
    clients: int = 24,
    samples: int = 4800,
    classes: int = 2,
    attributes: int = 2,
) -> Split:
    """Matrices searched to meet target metrics, given one by one or taken from a federation of the paper (`like`)."""
    targets = dict(zip(heterogeneity.METRICS, (gci, gai, gsc, cci, cai, csc), strict=True))
    if like:
        if like not in PAPER:
            raise UserError(f"A design can be like {', '.join(PAPER)}, not like '{like}'.")
        measured = heterogeneity.measure(SPLITS[PAPER[like][0]].counts)
        targets = {name: getattr(measured, name) if math.isnan(t) else t for name, t in targets.items()}
    found = design.search(targets, clients, samples, classes, attributes, rng)
    if found.distance > tolerance:
        raise UserError(
            f"No counts found within {tolerance:g} of these metrics: the nearest miss by {found.distance:.3f} "
            f"({found.worst}); change the targets, give more samples, or allow it with tolerance=."
        )
    return Split(found.counts, targets={name: t for name, t in targets.items() if not math.isnan(t)})


def make(text: str, seed: int) -> Split:
    """The split that a text such as `dirichlet(alpha=0.3,clients=20)` stands for."""
    kind, opening, inside = text.partition("(")
    if opening and not inside.endswith(")"):
        raise UserError(f"The split '{text}' lacks its closing parenthesis at the end.")
    rule: Callable[..., Split] = registry.find(registry.SPLIT, kind)
    options = _options(text, inside[:-1], {"select": 9} | _defaults(rule))
    num_selected = options.pop("select")
    split = rule(seeding.rng(seed, "split"), **options)
    return replace(split, num_selected=min(num_selected, len(split.counts)))


def _defaults(function: Callable[..., Split]) -> dict[str, Any]:
    return {p.name: p.default for p in signature(function).parameters.values() if p.default is not p.empty}


def _options(text: str, inside: str, defaults: dict[str, Any]) -> dict[str, Any]:
    """`defaults` with what `inside` says instead; each value has the type of its default."""
    options = dict(defaults)
    for part in filter(None, (p.strip() for p in inside.split(","))):
        key, _, value = (p.strip() for p in part.partition("="))
        if key not in options:
            raise UserError(f"'{part}' in '{text}' is not option=value with an option of {', '.join(options)}.")
        try:
            options[key] = type(defaults[key])(value)
        except ValueError:
            kind = "a whole number" if isinstance(defaults[key], int) else "a number"
            raise UserError(f"'{key}' in '{text}' must be {kind}, not '{value}'.") from None
        number = options[key]
        if isinstance(number, int) and not 1 <= number <= LARGEST:
            raise UserError(f"'{key}' in '{text}' must be at least 1 and at most {LARGEST}.")
        if key == "alpha" and not 0 < number < math.inf:
            raise UserError(f"'alpha' in '{text}' must be positive.")
        if isinstance(number, float) and key != "alpha" and not 0 <= number <= 1:
            raise UserError(f"'{key}' in '{text}' must lie between 0 and 1.")
    if options.get("samples", math.inf) < options.get("clients", 1):
        raise UserError(f"'{text}' has fewer samples ({options['samples']}) than clients ({options['clients']}).")
    if math.prod(options.get(key, 1) for key in ("clients", "classes", "attributes")) > LARGEST:
        raise UserError(f"'{text}' asks for more than {LARGEST} counts: use fewer clients, classes or attributes.")
    return options


def _even(total: int, parts: int) -> NDArray[np.int64]:
    """`total` in `parts` nearly equal numbers, the larger ones first."""
    return total // parts + (np.arange(parts) < total % parts)


def _pool(samples: int, num_groups: int) -> NDArray[np.int64]:
    """The group of each sample of a balanced pool, sorted."""
    return np.repeat(np.arange(num_groups), _even(samples, num_groups))


def _tables(clients: list[NDArray[np.int64]], classes: int, attributes: int) -> Counts:
    """Counts of clients that hold samples of these groups (group = class · attributes + attribute)."""
    rows = [np.bincount(groups, minlength=classes * attributes) for groups in clients]
    return np.array(rows).reshape(len(clients), classes, attributes)
