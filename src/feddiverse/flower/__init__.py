"""Flower: the same loop on many machines (`apps`, `simulation`), and FedDiverse inside your own Flower app.

>>> from flwr.serverapp.strategy import FedAvg
>>> strategy = FedDiverse(FedAvg(fraction_train=0.4), num_classes=10)  # in server_app.py
>>> from flwr.clientapp import ClientApp
>>> app = answer_questions(ClientApp(), lambda message, context: (features, labels), num_classes=10)  # in client_app.py

Names are loaded when they are used: importing this package alone imports nothing of Flower.
"""

import importlib
from typing import Any

_WHERE = {
    "FedDiverse": "strategy",
    "Selecting": "strategy",
    "answer_questions": "answers",
    "features_of": "answers",
    "CountsPartitioner": "partitioner",
    "measure_partitioner": "partitioner",
}
__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'feddiverse.flower' has no attribute {name!r}")
    return getattr(importlib.import_module(f"feddiverse.flower.{_WHERE[name]}"), name)
