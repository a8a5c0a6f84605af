"""What a run told of its clients, as ε: of tables by adding up, of updates by opacus' accountant (docs/trust.md).

Towards the server, which sees every table and every update of every client. Whoever sees less, such as the model alone,
is told no more.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

from feddiverse.errors import UserError, how_to_install
from feddiverse.experiment.config import Config

Record = Mapping[str, Any]

REPLACED = 2.0
"""How far apart, in units of the clipping length, two updates can be: any two points of a ball."""

ORDERS = [1 + 10 ** (power / 20) for power in range(-80, 101)]
"""Rényi orders to try, from 1.0001 to 100,001: for weak noise and for strong."""


def check_installed() -> None:
    """Say what to install where the accountant is missing."""
    if find_spec("opacus") is None:
        raise UserError(
            f"privacy_noise needs opacus, whose accountant tells ε: pip install opacus, or {how_to_install('privacy')}."
        )


def spent(config: Config, history: Iterable[Record]) -> dict[str, Any]:
    """What `result.json` says of privacy; empty where nothing was protected.

    Of the client that told most: `tables` (ε for one sample replaced by another), `updates` (ε at δ for all samples of
    a client replaced by others). None: told without noise.
    """
    if not (config.privacy_epsilon or config.privacy_clip or config.secure_sums):
        return {}
    tables: Counter[int] = Counter()
    updates: Counter[int] = Counter()
    for record in history:
        tables.update({int(client): number for client, number in record.get("tables", {}).items()})
        # Runs from before this was recorded: all who trained. (HCSFed's clients also send a compressed update.)
        told_here = record.get("updates") or dict.fromkeys(record["selected"], 1)
        updates.update({int(client): number for client, number in told_here.items()})
    told: dict[str, Any] = {"secure_sums": config.secure_sums, "tables": None, "updates": None}
    if config.privacy_epsilon:
        most = max(tables.values(), default=0)
        told["tables"] = {"epsilon": most * config.privacy_epsilon, "tables_of_a_client": most}
    if config.privacy_noise:
        most = max(updates.values(), default=0)
        epsilon = epsilon_of_updates(config.privacy_noise, most, config.privacy_delta)
        told["updates"] = {"epsilon": epsilon, "delta": config.privacy_delta, "updates_of_a_client": most}
    return told


def epsilon_of_updates(noise: float, num_updates: int, delta: float) -> float:
    """ε at δ of so many updates, each cut to a ball and sent with Gaussian noise of `noise` times its radius.

    >>> round(epsilon_of_updates(noise=20.0, num_updates=1, delta=1e-5), 2)
    0.42
    """
    if not num_updates:
        return 0.0
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(noise / REPLACED, 1.0, num_updates)]  # the server knows who was asked: no luck in that
    return float(accountant.get_epsilon(delta, alphas=ORDERS))
