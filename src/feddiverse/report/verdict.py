"""How skewed is skewed: the six metrics among those of known federations, what each means, what has helped there."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from feddiverse.heterogeneity import METRICS
from feddiverse.report.statistics import Difference, in_points

IID = "iid"
NONE, SOME = 0.02, 0.2  # below: nothing to speak of; from: a good deal
CLASS_PART = ("gci", "cci")

NAMES = {
    "gci": "class imbalance, all data",
    "gai": "attribute imbalance, all data",
    "gsc": "spurious correlation, all data",
    "cci": "class imbalance, mean of clients",
    "cai": "attribute imbalance, mean of clients",
    "csc": "spurious correlation, mean of clients",
}
MEANING = {  # none, some, a good deal
    "gci": (
        "All classes are about equally frequent.",
        "Some classes are rarer: a model leans a little to the others.",
        "Some classes are rare: a model leans to the frequent ones.",
    ),
    "gai": (
        "All values of the attribute are about equally frequent.",
        "Some values of the attribute are rarer.",
        "Some values of the attribute are rare: there is little to learn from with them.",
    ),
    "gsc": (
        "Over all data the attribute says nothing about the class.",
        "Over all data the attribute tells the class in part: a model may learn it in its place.",
        "Over all data the attribute tells the class: a model will learn it in its place.",
    ),
    "cci": (
        "Every client has all classes alike.",
        "Clients have some classes more than others.",
        "Clients have mostly some of the classes: their updates pull apart.",
    ),
    "cai": (
        "Every client has all values of the attribute alike.",
        "Clients have some values of the attribute more than others.",
        "Clients have mostly one value of the attribute each.",
    ),
    "csc": (
        "Within clients the attribute says nothing about the class.",
        "Within clients the attribute tells the class in part.",
        "Within clients the attribute tells the class: local training learns it.",
    ),
}


@dataclass(frozen=True)
class Placed:
    """A metric with its place among known federations; `value` is None where attributes are unknown."""

    metric: str
    value: float | None
    known: Mapping[str, float]
    says: str

    @property
    def label(self) -> str:
        return self.metric.upper()

    @property
    def name(self) -> str:
        return NAMES[self.metric]

    @property
    def among(self) -> str:
        """`more than 5 of the 7, as spawrious-gai`."""
        if self.value is None:
            return ""
        seven = [value for name, value in self.known.items() if name != IID]
        if self.value < NONE:
            return f"as even as {IID}"
        lower = sum(value < self.value - 1e-5 for value in seven)
        nearest = min((abs(value - self.value), name) for name, value in self.known.items())
        like = f", like {nearest[1]}" if nearest[0] < NONE else ""
        rank = "more than any" if lower == len(seven) else "less than any" if not lower else f"more than {lower}"
        return f"{rank} of the paper’s {len(seven)}{like}"

    def bar(self, width: int = 21) -> str:
        """The same as text: `│` known federations, `●` this one, on a line from 0 to 1."""
        cells = ["·"] * width
        for value in self.known.values():
            cells[round(value * (width - 1))] = "│"
        if self.value is not None:
            cells[round(self.value * (width - 1))] = "●"
        return "".join(cells)


@dataclass(frozen=True)
class Verdict:
    """All six, and what helped on the known federation that is most alike."""

    placed: tuple[Placed, ...]
    nearest: str
    helped: tuple[str, ...]


@cache
def _file() -> dict[str, Any]:
    """Made by `python -m benchmarks.evidence`."""
    content: dict[str, Any] = json.loads(files("feddiverse.report").joinpath("evidence.json").read_text("utf-8"))
    return content


def known() -> dict[str, dict[str, float]]:
    """The six metrics of an iid federation and of the paper's seven."""
    found: dict[str, dict[str, float]] = _file()["known"]
    return found


def judge(six: Iterable[float], *, attributes_known: bool = True) -> Verdict:
    """From the six metrics, in the order of `METRICS`."""
    mine = dict(zip(METRICS, map(float, six), strict=True))
    seen = METRICS if attributes_known else CLASS_PART
    placed = tuple(
        Placed(
            metric,
            mine[metric] if metric in seen else None,
            {name: values[metric] for name, values in known().items()},
            _meaning(metric, mine) if metric in seen else "Unknown: samples have no attributes.",
        )
        for metric in METRICS
    )
    distances = {
        name: float(np.linalg.norm([values[metric] - mine[metric] for metric in seen]))
        for name, values in known().items()
    }
    nearest = min(distances, key=lambda name: distances[name])
    return Verdict(placed, _alike(nearest, distances[nearest], attributes_known), tuple(_helped(nearest)))


def _meaning(metric: str, six: Mapping[str, float]) -> str:
    value = six[metric]
    says = MEANING[metric][0 if value < NONE else 1 if value < SOME else 2]
    if metric == "csc" and value >= SOME > six["gsc"]:
        says = "Within clients the attribute tells the class, but not the same way everywhere."
    return says


def _alike(nearest: str, distance: float, attributes_known: bool) -> str:
    how = "Like" if distance < 0.05 else "Nearest to" if distance < 0.3 else "Unlike all known federations; nearest is"
    part = "" if attributes_known else ", by classes alone"
    return f"{how} {nearest}{part} (distance {distance:.2f})."


def _helped(nearest: str) -> list[str]:
    """What our own results say of the split, in sentences."""
    if nearest == IID:
        return ["Clients are alike, so it matters little which of them are asked."]
    found = [each for each in _file()["results"] if nearest in each["federations"]]
    if not found:
        return [f"We have no results on {nearest}."]
    return [_sentence(each) for each in found]


def _sentence(each: Mapping[str, Any]) -> str:
    differences = {
        method: Difference(mean / 100, None if low is None else low / 100, None if high is None else high / 100, n)
        for method, (mean, low, high, n) in each["differences"].items()
    }
    listed = ", ".join(f"{method} {in_points(difference)}" for method, difference in differences.items())
    sure = [method for method, difference in differences.items() if difference.is_sure]
    end = f"Beyond the noise, each by itself: {', '.join(sure)}." if sure else "Nothing is beyond the noise."
    return f"On {each['on']}, {each['against']}: {listed}. {end}"
