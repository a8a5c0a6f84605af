"""Comparison with the truth, which only an experiment knows: estimated triplets, and what data choices pooled.

For evaluation only: nothing here decides anything, and the server never sees it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feddiverse.heterogeneity import Counts, triplet
from feddiverse.messages import EVALUATION_ONLY, Engine, PaperTriplet, Plain, Reply, Task, Vector
from feddiverse.server.replies import Door

DIMENSIONS = ("ci", "ai", "sc")


def best_naming(confusion: NDArray[np.float64]) -> NDArray[np.int64]:
    """`rows` such that `confusion[rows]` has most on its diagonal: which estimated attribute is which true one."""
    from scipy.optimize import linear_sum_assignment  # half a second, which a run without estimates need not wait for

    estimated, true = linear_sum_assignment(confusion, maximize=True)
    rows: NDArray[np.int64] = estimated[np.argsort(true)]
    return rows


def attribute_accuracy(confusion: NDArray[np.float64] | None) -> float | None:
    """Share of samples whose attribute was read right, under the best one-to-one naming of [estimated, true]."""
    if confusion is None or confusion.sum() == 0:
        return None
    return float(np.trace(confusion[best_naming(confusion)]) / confusion.sum())


def correlation(estimated: ArrayLike, true: ArrayLike) -> float | None:
    """Pearson's r, or None where it is undefined because one side does not vary."""
    e, t = np.asarray(estimated, dtype=np.float64), np.asarray(true, dtype=np.float64)
    e, t = e - e.mean(), t - t.mean()
    norm = np.sqrt((e @ e) * (t @ t))
    # A spread of rounding errors is no spread.
    return None if norm < 1e-12 * len(e) else float(np.clip(e @ t / norm, -1, 1))


def compare(
    triplets: Mapping[int, ArrayLike],
    counts: NDArray[np.int64],
    confusion: NDArray[np.float64] | None = None,
    attributes_known: bool = True,
) -> dict[str, Any]:
    """Estimated triplets against those of the true `counts` [client, class, attribute], over the estimated clients.

    Gives `r` and `mae` (each `ci ai sc`), `attribute_accuracy`, and in `undefined` the reason for every None in `r`.
    Where attributes are unknown, only CI can be compared, which labels tell.
    """
    ids = sorted(triplets)
    estimated = np.array([triplets[k] for k in ids], dtype=np.float64).reshape(len(ids), 3)
    true = triplet(counts[ids]) if ids else np.empty((0, 3))
    r: dict[str, float | None] = dict.fromkeys(DIMENSIONS)
    mae: dict[str, float | None] = dict.fromkeys(DIMENSIONS)
    undefined = {}
    for i, name in enumerate(DIMENSIONS):
        if not ids:
            undefined[name] = "no client was estimated"
            continue
        if not (attributes_known or name == "ci"):
            undefined[name] = "the true attributes are unknown"
            continue
        mae[name] = float(np.abs(estimated[:, i] - true[:, i]).mean())
        r[name] = correlation(estimated[:, i], true[:, i])
        if r[name] is None:
            constant = "truth" if np.ptp(true[:, i]) < 1e-9 else "estimate"
            undefined[name] = f"the {constant} is the same for all clients"
    return {
        "r": r,
        "mae": mae,
        "attribute_accuracy": attribute_accuracy(confusion),
        "undefined": undefined,
        "truth": {
            k: t.tolist() if attributes_known else [float(t[0]), None, None] for k, t in zip(ids, true, strict=True)
        },
    }


class TruthKept(Door):
    """A door that takes what replies say of the truth out of them, and adds it up.

    `confusion`: [estimated attribute, true attribute] over all samples seen so far; None where nobody knows the truth.
    """

    def __init__(self, engine: Engine, state: Plain | None = None) -> None:
        super().__init__(engine)
        kept = (state or {}).get("confusion")
        self.confusion: NDArray[np.float64] | None = None if kept is None else np.asarray(kept, np.float64)

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        """The engine's `ask`, its replies without what is for evaluation only."""
        for reply in super().ask(task, theta, clients):
            truth = {name: n for name, n in reply.metrics.items() if name.startswith(EVALUATION_ONLY)}
            if truth and reply.failure is None:
                self._add(task, truth)
                reply = replace(reply, metrics={name: n for name, n in reply.metrics.items() if name not in truth})
            yield reply

    def _add(self, task: Task, truth: Mapping[str, float]) -> None:
        where = np.array([name.removeprefix(EVALUATION_ONLY).split(".") for name in truth], dtype=np.int64)
        known = 2 if self.confusion is None else len(self.confusion)
        part = np.zeros([max(known, where.max() + 1)] * 2)
        part[tuple(where.T)] = list(truth.values())
        if isinstance(task, PaperTriplet):  # what a client calls attribute 0 or 1 is its own business
            part = part[best_naming(part)]
        if self.confusion is not None:
            part[:known, :known] += self.confusion
        self.confusion = part

    def state(self) -> Plain:
        """What must be remembered between rounds."""
        return {} if self.confusion is None else {"confusion": self.confusion}


@dataclass(frozen=True)
class SelectionStatistics:
    """Of T rounds over K clients."""

    times_chosen: NDArray[np.int64]  # [K]
    effective_clients: float  # exp of the entropy of the shares of choices: K if all alike, 1 if always the same one
    pooled: NDArray[np.int64]  # [T, class, attribute]: samples of each group at the chosen clients
    smallest_share: NDArray[np.float64]  # [T]: the smallest group's share of that round's samples; 1/(Y·A) is balance

    def summary(self) -> dict[str, float]:
        """The few numbers for a table."""
        return {
            "clients_chosen": float((self.times_chosen > 0).sum()),
            "effective_clients": self.effective_clients,
            "most_often": float(self.times_chosen.max(initial=0)),
            "smallest_share_mean": float(self.smallest_share.mean()) if len(self.smallest_share) else 0.0,
        }


def statistics(selected: Sequence[Sequence[int]], counts: Counts) -> SelectionStatistics:
    """From the ids chosen in each round and the federation's counts [K, class, attribute]."""
    num_clients = len(counts)
    times = np.bincount(np.array([i for ids in selected for i in ids], np.int64), minlength=num_clients)
    shares = times[times > 0] / max(1, times.sum())
    groups = counts.shape[1:]
    pooled = np.array([counts[list(ids)].sum(axis=0) for ids in selected], np.int64).reshape(-1, *groups)
    samples = pooled.sum(axis=(1, 2))
    return SelectionStatistics(
        times_chosen=times,
        effective_clients=float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else 0.0,
        pooled=pooled,
        smallest_share=pooled.min(axis=(1, 2)) / np.maximum(samples, 1),
    )
