"""FedDiverse: measure how skewed a federation is, and select clients that complement each other.

Public names are imported when first used, so that measuring never waits for torch.
"""

from importlib import import_module
from typing import Any

_HOME_OF = {
    "Config": "feddiverse.experiment.config",
    "Federation": "feddiverse.federation",
    "LocalEngine": "feddiverse.engine.local",
    "Reply": "feddiverse.messages",
    "RunError": "feddiverse.errors",
    "Samples": "feddiverse.federation",
    "Selector": "feddiverse.server.selection.base",
    "Task": "feddiverse.messages",
    "UserError": "feddiverse.errors",
    "attribute_imbalance": "feddiverse.heterogeneity",
    "class_imbalance": "feddiverse.heterogeneity",
    "counts_of": "feddiverse.splits",
    "execute": "feddiverse.experiment.run",
    "load_federation": "feddiverse.data",
    "measure": "feddiverse.heterogeneity",
    "spurious_correlation": "feddiverse.heterogeneity",
    "triplet": "feddiverse.heterogeneity",
}

__all__ = ["__version__", *_HOME_OF]

__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from feddiverse._version import VERSION

        return VERSION
    if name not in _HOME_OF:
        raise AttributeError(f"module 'feddiverse' has no attribute '{name}'")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
