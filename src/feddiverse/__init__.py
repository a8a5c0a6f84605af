"""FedDiverse: measure how skewed a federation is, and select clients that complement each other.

Public names are imported when first used, so that measuring never waits for torch.
"""

from importlib import import_module
from typing import Any

_HOME_OF = {
    "Aggregator": "feddiverse.server.aggregation",
    "Config": "feddiverse.experiment.config",
    "Discovery": "feddiverse.experiment.discovery",
    "Estimator": "feddiverse.estimation.base",
    "Federation": "feddiverse.data.federation",
    "LocalEngine": "feddiverse.engine.local",
    "Reply": "feddiverse.messages",
    "Result": "feddiverse.experiment.result",
    "RunError": "feddiverse.errors",
    "Samples": "feddiverse.data.federation",
    "Selector": "feddiverse.selection.base",
    "Task": "feddiverse.messages",
    "UserError": "feddiverse.errors",
    "attribute_imbalance": "feddiverse.heterogeneity",
    "class_imbalance": "feddiverse.heterogeneity",
    "counts_of": "feddiverse.data.names",
    "discover": "feddiverse.experiment.discovery",
    "federation": "feddiverse.data",
    "load_model": "feddiverse.experiment.result",
    "load_run": "feddiverse.experiment.result",
    "measure": "feddiverse.heterogeneity",
    "rebalance": "feddiverse.experiment.rebalancing",
    "spurious_correlation": "feddiverse.heterogeneity",
    "train": "feddiverse.experiment.train",
    "triplet": "feddiverse.heterogeneity",
}
_NAME_THERE = {"federation": "open_federation"}

__all__ = ["__version__", *_HOME_OF]

__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("feddiverse")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'feddiverse' has no attribute '{name}'")
    return getattr(import_module(_HOME_OF[name]), _NAME_THERE.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)
