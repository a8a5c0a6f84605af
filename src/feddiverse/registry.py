"""Names for parts: the one place where a name becomes a class, and a class an object.

Selectors, aggregators, estimators and models are named alike: a known name, `package.module:Class` (the current folder
is looked at too), or a name that an installed package announces by an entry point of the group `feddiverse.selectors`,
`feddiverse.aggregators`, …. From Python a class or an object will do as well.

A part's constructor gets those of the run's settings that it names (`seed`, `num_classes`, `lr`, …) and its own
parameters (`--set selector.temperature=3`), which are checked: an unknown one is refused, naming the nearest.
"""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from feddiverse.errors import UserError

Options = Mapping[str, Any]

OBJECT = " (object)"
"""Ends the name, in a config, of a part that was given as an object: only the program that made it has it."""


@dataclass(frozen=True)
class Later:
    """A setting that is made only if a constructor asks for it, such as the estimator of a selector."""

    make: Callable[[], Any]


@dataclass(frozen=True)
class Kind:
    """One kind of part: what is built in (name → `module:attribute`), and the base class of one's own, if any."""

    name: str
    builtin: Mapping[str, str]
    base: str | None = None

    @property
    def group(self) -> str:
        """The group of entry points under which packages announce parts of this kind."""
        return f"feddiverse.{self.name}s"


SELECTOR = Kind(
    "selector",
    {
        "feddiverse": "feddiverse.selection.feddiverse:FedDiverse",
        "uniform": "feddiverse.selection.uniform:Uniform",
        "round_robin": "feddiverse.selection.round_robin:RoundRobin",
        "everyone": "feddiverse.selection.everyone:Everyone",
        "pow_d": "feddiverse.selection.pow_d:PowD",
        "fedpns": "feddiverse.selection.fedpns:FedPNS",
        "hcsfed": "feddiverse.selection.hcsfed:HCSFed",
        "group_balance": "feddiverse.selection.group_balance:GroupBalance",
        "fed_cbs": "feddiverse.selection.fed_cbs:FedCBS",
        "oort": "feddiverse.selection.oort:Oort",
        "label_entropy": "feddiverse.selection.label_entropy:LabelEntropy",
        "hics_fl": "feddiverse.selection.hics_fl:HiCSFL",
        "haccs": "feddiverse.selection.haccs:HACCS",
    },
    "feddiverse.selection.base:Selector",
)
AGGREGATOR = Kind(
    "aggregator",
    {
        "fedavg": "feddiverse.server.aggregation:FedAvg",
        "fedavgm": "feddiverse.server.aggregation:FedAvgM",
        "fednova": "feddiverse.server.aggregation:FedNova",
        "fedadam": "feddiverse.server.aggregation:FedAdam",
        "fedyogi": "feddiverse.server.aggregation:FedYogi",
        "fedadagrad": "feddiverse.server.aggregation:FedAdagrad",
        "feddyn": "feddiverse.server.aggregation:FedDyn",
    },
    "feddiverse.server.aggregation:Aggregator",
)
AVERAGE = Kind(
    "average",
    {
        "mean": "feddiverse.server.averages:Average",
        "clipped_mean": "feddiverse.server.averages:ClippedMean",
        "median": "feddiverse.server.averages:Median",
        "trimmed_mean": "feddiverse.server.averages:TrimmedMean",
        "multi_krum": "feddiverse.server.averages:MultiKrum",
    },
    "feddiverse.server.averages:Average",
)
OBJECTIVE = Kind(
    "objective",
    {
        "cross_entropy": "feddiverse.server.objectives:Objective",
        "feddyn": "feddiverse.server.objectives:FedDyn",
        "moon": "feddiverse.server.objectives:Moon",
    },
    "feddiverse.server.objectives:Objective",
)
ESTIMATOR = Kind(
    "estimator",
    {
        "paper": "feddiverse.estimation.paper:Paper",
        "consensus": "feddiverse.estimation.consensus:Consensus",
        "oracle": "feddiverse.estimation.base:Oracle",
    },
    "feddiverse.estimation.base:Estimator",
)
MODEL = Kind(
    "model",
    {
        "mobilenet": "feddiverse.models.named:mobilenet",
        "cnn": "feddiverse.models.named:cnn",
        "mlp": "feddiverse.models.named:mlp",
    },
)
ENGINE = Kind(
    "engine",
    {"local": "feddiverse.engine.local:open_engine", "flower": "feddiverse.flower.simulation:open_engine"},
)
PAGE = Kind("page", {"discovery": "feddiverse.report.discovery:write"})
SPLIT = Kind(
    "split",
    {
        "iid": "feddiverse.splits.by_rule:iid",
        "shards": "feddiverse.splits.by_rule:shards",
        "dirichlet": "feddiverse.splits.by_rule:dirichlet",
        "design": "feddiverse.splits.by_rule:designed",
    },
)
SOURCE = Kind(
    "source",
    {
        "digits": "feddiverse.data.digits:open_digits",
        "cmnist": "feddiverse.data.cmnist:open_cmnist",
        "spawrious": "feddiverse.data.spawrious:open_spawrious",
        "waterbirds": "feddiverse.data.waterbirds:open_waterbirds",
        "table": "feddiverse.data.table:open_table",
    },
)


def names(kind: Kind) -> list[str]:
    """All names of this kind: ours, then those that installed packages announce."""
    return [*kind.builtin, *sorted(found.name for found in entry_points(group=kind.group))]


def find(kind: Kind, name: str) -> Any:
    """The class (or, of models, splits and sources, the function) of this name."""
    if name.endswith(OBJECT):
        raise UserError(
            f"The {kind.name} {name.removesuffix(OBJECT)} was an object made in Python, and those are not kept: give it"
            f" again there, with {kind.name}=…."
        )
    address = kind.builtin.get(name)
    if address is None:
        announced = [found.value for found in entry_points(group=kind.group) if found.name == name]
        address = announced[0] if announced else name
    module, colon, attribute = address.partition(":")
    if not colon:
        raise UserError(
            f"There is no {kind.name} '{name}'{nearest(name, names(kind))}; choose one of {', '.join(names(kind))}, or"
            " name your own as package.module:Class."
        )
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # one's own file beside the command
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: no path of a package
        raise UserError(f"The {kind.name} '{name}' cannot be imported: {error}.") from error
    _check(kind, found, name)
    return found


def make(kind: Kind, part: Any, settings: Mapping[str, Any], options: Options = {}) -> Any:  # noqa: B006 (only read)
    """The object that `part` (a name, a class or already an object) stands for.

    A constructor gets `options`, and those `settings` that it names.
    """
    if isinstance(part, str):
        maker, name = find(kind, part), part
    elif inspect.isclass(part) or (kind.base is None and callable(part)):
        maker, name = part, name_of(kind, part)
        _check(kind, part, name)
    else:
        if options:
            raise UserError(
                f"The {kind.name} is made already, so '{kind.name}.{next(iter(options))}' cannot reach it: give the"
                " parameter to its constructor."
            )
        _check(kind, type(part), address_of(part))
        return part
    check_options(kind, name, maker, options)
    values = {**_shared(kind, name, maker, settings, options), **options}
    try:
        return maker(**values)
    except (TypeError, ValueError) as error:
        if name in kind.builtin:
            raise
        raise UserError(f"The {kind.name} '{name}' cannot be made: {type(error).__name__}: {error}.") from error


def check_options(kind: Kind, name: str, maker: Any, options: Options) -> None:
    """Refuse options that the constructor does not have."""
    parameters = inspect.signature(maker).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option in options:
        if option not in parameters and not takes_any:
            known = ", ".join(parameters) or "none"
            raise UserError(
                f"The {kind.name} '{name}' has no parameter '{option}'{nearest(option, parameters)}; it has: {known}."
            )


def _shared(kind: Kind, name: str, maker: Any, settings: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """What the constructor asks for of the run's settings."""
    values = {}
    for parameter in inspect.signature(maker).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) or parameter.name in options:
            continue
        if parameter.name in settings:
            value = settings[parameter.name]
            values[parameter.name] = value.make() if isinstance(value, Later) else value
        elif parameter.default is parameter.empty:
            raise UserError(
                f"The {kind.name} '{name}' needs the parameter '{parameter.name}': give it with"
                f" --set {kind.name}.{parameter.name}=…, or in Python make the object yourself."
            )
    return values


def address_of(part: Any) -> str:
    """Where a class, a function or an object's class lives: `package.module:Class`."""
    kind = part if inspect.isclass(part) or inspect.isfunction(part) else type(part)
    return f"{kind.__module__}:{kind.__qualname__}"


def name_of(kind: Kind, part: Any) -> str:
    """What a class, a function or an object is called in a config: the name it is known by, or its address."""
    address = address_of(part)
    name = next((known for known, home in kind.builtin.items() if home == address), address)
    return name if inspect.isclass(part) or inspect.isfunction(part) else name + OBJECT


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean '…'?)` where a known name is near enough to be meant, else nothing."""
    close = closest(name, known)
    return f" (did you mean '{close}'?)" if close else ""


def closest(name: str, known: Iterable[str]) -> str:
    """The known name that is near enough to be meant, or nothing."""
    return next(iter(difflib.get_close_matches(name.lower().replace("-", "_"), list(known), n=1, cutoff=0.65)), "")


def _check(kind: Kind, found: Any, name: str) -> None:
    if kind.base is None:
        if not callable(found):
            raise UserError(f"The {kind.name} '{name}' is no function or class.")
        return
    module, _, attribute = kind.base.partition(":")
    base: type = getattr(importlib.import_module(module), attribute)
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise UserError(
            f"The {kind.name} '{name}' is no subclass of feddiverse.{attribute}: derive it from that class."
        )
