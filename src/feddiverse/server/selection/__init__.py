"""Client selection by name. Adding a selector is one new file and one line in `SELECTORS`."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from feddiverse.errors import UserError
from feddiverse.server import estimation
from feddiverse.server.selection.base import Selector
from feddiverse.server.selection.everyone import Everyone
from feddiverse.server.selection.fed_cbs import FedCBS
from feddiverse.server.selection.feddiverse import FedDiverse
from feddiverse.server.selection.fedpns import FedPNS
from feddiverse.server.selection.group_balance import GroupBalance
from feddiverse.server.selection.hcsfed import HCSFed
from feddiverse.server.selection.label_entropy import LabelEntropy
from feddiverse.server.selection.oort import Oort
from feddiverse.server.selection.pow_d import PowD
from feddiverse.server.selection.round_robin import RoundRobin
from feddiverse.server.selection.uniform import Uniform

SELECTORS: dict[str, type[Selector]] = {
    "feddiverse": FedDiverse,
    "uniform": Uniform,
    "round_robin": RoundRobin,
    "everyone": Everyone,
    "pow_d": PowD,
    "fedpns": FedPNS,
    "hcsfed": HCSFed,
    "group_balance": GroupBalance,
    "fed_cbs": FedCBS,
    "oort": Oort,
    "label_entropy": LabelEntropy,
}


def build(name: str, settings: Mapping[str, Any]) -> Selector:
    """The selector `name`, or your own as `package.module:Class`, given those settings its constructor names.

    A constructor that names `estimator` gets the estimator itself, built by the setting's name.
    """
    selector = SELECTORS.get(name) or _import(name)
    values = {}
    for parameter in inspect.signature(selector).parameters.values():
        if parameter.name == "estimator":
            values["estimator"] = estimation.build(settings["estimator"], settings)
        elif parameter.name in settings:
            values[parameter.name] = settings[parameter.name]
        elif parameter.default is parameter.empty:
            raise UserError(f"Selector {name!r} needs the setting {parameter.name!r}, which is not given.")
    return selector(**values)


def _import(name: str) -> type[Selector]:
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(sorted(SELECTORS))
        raise UserError(f"Unknown selector {name!r}: choose one of {known}, or name your own as package.module:Class.")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: no path of a package
        raise UserError(f"Selector {name!r} cannot be imported: {error}.") from None
    if not (isinstance(found, type) and issubclass(found, Selector)):
        raise UserError(f"Selector {name!r} is no subclass of feddiverse.server.selection.base.Selector.")
    return found
