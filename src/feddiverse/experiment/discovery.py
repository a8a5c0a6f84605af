"""What clients differ in, without labels: the consensus protocol on data that lie here, read sample by sample.

For a person who has the data: the local process looks at its own samples. Over a network nothing of this leaves a
client but what the protocol sends (docs/estimators.md).
"""

import csv
import io
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse import files, registry
from feddiverse.data.federation import Federation, Ids
from feddiverse.engine.local import LocalEngine
from feddiverse.engine.machine import one_blas_thread
from feddiverse.errors import RunError
from feddiverse.estimation.consensus import WEAK, Consensus
from feddiverse.experiment.config import Config
from feddiverse.experiment.estimating import pretrain
from feddiverse.experiment.opening import Opened, from_arguments, open_run
from feddiverse.experiment.truth import TruthKept, attribute_accuracy
from feddiverse.heterogeneity import METRICS, Counts, measure, triplet
from feddiverse.server.meter import Meter

Floats = NDArray[np.float64]

CONFIDENT = 0.9  # posterior from which a sample counts as read with confidence


@dataclass(frozen=True)
class Discovery:
    """What the clients of a federation were found to differ in. Rows are all training samples, client after client.

    `strength`: how far clients differ, relative to the farthest that chance alone gives (None: too few to compare).
    `separation`: how many standard deviations the attribute's values are apart (None: nothing is seen). Where nothing
    is seen, all attributes are 0 and all confidences 0.

    >>> import feddiverse as fd
    >>> rng = np.random.default_rng(0)
    >>> site = np.repeat(["north", "south", "east", "west"], 50)
    >>> hidden = rng.random(200) < np.repeat([0.1, 0.4, 0.6, 0.9], 50)
    >>> x = rng.normal(size=(200, 3)) + 6 * hidden[:, None]
    >>> found = fd.discover(fd.Federation.from_arrays(x, rng.integers(0, 2, 200), site), workers=1)
    >>> found.seen, found.counts.shape, len(found.attributes)
    (True, (4, 2, 2), 200)
    """

    federation: Federation
    config: Config
    client: Ids  # [n]
    sample: Ids  # [n]: ids in the source's train pool
    y: Ids  # [n]
    attributes: Ids  # [n]
    confidence: Floats  # [n]
    coordinates: Floats  # [n, q]: along the directions
    centres: Floats  # [Y, A, q]: where the attribute's values lie there
    strength: float | None
    separation: float | None
    warnings: tuple[str, ...]
    evaluation_only: dict[str, Any]

    def __repr__(self) -> str:
        return f"Discovery({self.federation.name}: {self.headline})"

    @property
    def seen(self) -> bool:
        """Whether there is an attribute to be seen at all."""
        return self.separation is not None

    @property
    def num_attributes(self) -> int:
        """Attribute values that are told apart."""
        return int(self.centres.shape[1])

    @property
    def attribute_names(self) -> tuple[str, ...]:
        """Values have numbers for names: what they mean is for a person to see."""
        return tuple(f"a{value}" for value in range(self.num_attributes))

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the classes are called."""
        return tuple(map(str, self.federation.source.class_names))

    @property
    def counts(self) -> Counts:
        """[client, class, attribute]: estimated; of a client that did not answer, zeros."""
        counts = np.zeros((self.federation.num_clients, self.federation.num_classes, self.num_attributes), np.int64)
        np.add.at(counts, (self.client, self.y, self.attributes), 1)
        return counts

    @property
    def metrics(self) -> dict[str, float | None]:
        """The six metrics of the estimated tables; None where they hang on an attribute that is not seen."""
        counts = self.counts
        six = measure(counts[counts.sum(axis=(1, 2)) > 0]).six.tolist()
        return {
            name: value if self.seen or name in ("gci", "cci") else None
            for name, value in zip(METRICS, six, strict=True)
        }

    @property
    def confident_share(self) -> float | None:
        """Share of samples whose attribute has a posterior of `CONFIDENT` or more."""
        return float((self.confidence >= CONFIDENT).mean()) if self.seen else None

    @property
    def headline(self) -> str:
        """What was found, in one sentence."""
        if self.strength is None:
            return "No hidden attribute can be seen: there are too few clients or samples to compare."
        times = f"{self.strength:.1f}" if self.strength < 100 else f"{self.strength:,.0f}"
        if self.confident_share is None:
            return (
                "No hidden attribute is seen: clients differ no more than chance explains"
                f" ({times} times as strongly as chance; above {WEAK:g} would count)."
            )
        what = "one hidden attribute" + (f" of {self.num_attributes} values" if self.num_attributes > 2 else "")
        return (
            f"Clients differ in {what}: seen {times} times as strongly as chance;"
            f" {_percent(self.confident_share)} of samples are read with confidence."
        )

    def positions(self) -> Floats:
        """[n]: where each sample lies on the line from the first value to the last, on which values are most spread."""
        centres = self.centres.mean(axis=0)  # [A, q]
        centred = centres - centres.mean(axis=0)
        line = np.linalg.svd(centred)[2][0]
        if (centred[-1] - centred[0]) @ line < 0:
            line = -line
        return np.asarray(self.coordinates @ line)

    def report(self) -> dict[str, Any]:
        """What `discovery.json` says."""
        counts = self.counts
        names, sizes = self.federation.names, counts.sum(axis=(1, 2))
        clients = [
            {
                "name": names[k],
                "samples": int(sizes[k]),
                "counts": counts[k].tolist(),
                "triplet": triplet(counts[k]).tolist() if self.seen else None,
            }
            for k in np.flatnonzero(sizes).tolist()
        ]
        told = {
            "federation": self.federation.name,
            "headline": self.headline,
            "seen": self.seen,
            "strength": self.strength,
            "chance_reaches": WEAK,
            "separation": self.separation,
            "confident_share": self.confident_share,
            "confident_from": CONFIDENT,
            "mean_confidence": float(self.confidence.mean()) if self.seen else None,
            "samples": len(self.y),
            "classes": list(self.class_names),
            "attributes": list(self.attribute_names) if self.seen else [],
            "metrics": self.metrics,
            "clients": clients,
            "warnings": list(self.warnings),
            "settings": self.config.plain(),
        }
        return told | ({"evaluation_only": self.evaluation_only} if self.evaluation_only else {})

    def save(self, folder: str | Path, *, pictures: bool = True) -> Path:
        """Write `attributes.csv`, `discovery.json` and the page `index.html`, which shows samples if `pictures`."""
        folder = Path(folder).expanduser()
        page = registry.find(registry.PAGE, "discovery")(self, pictures=pictures)
        with files.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        files.write(folder / "attributes.csv", self._table().encode())
        files.write_json(folder / "discovery.json", self.report())
        files.write(folder / "index.html", page.encode())
        return folder

    def names_of_samples(self) -> list[str]:
        """[n]: the picture's file where there is one, else the sample's number."""
        named = getattr(self.federation.source, "train_files", None)
        return [str(named[i]) if named else str(i) for i in self.sample.tolist()]

    def _table(self) -> str:
        """One row a sample. Where nothing is seen, attribute and confidence are empty."""
        out = io.StringIO()
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(
            ["image" if hasattr(self.federation.source, "train_files") else "sample",
             "client", "class", "attribute", "confidence"]
        )  # fmt: skip
        clients, classes = (
            [files.safe_cell(name) for name in names] for names in (self.federation.names, self.class_names)
        )
        columns = zip(self.names_of_samples(), self.client, self.y, self.attributes, self.confidence, strict=True)
        for name, k, y, a, confidence in columns:
            read = [f"a{a}", f"{confidence:.4f}"] if self.seen else ["", ""]
            rows.writerow([files.safe_cell(name), clients[k], classes[y], *read])
        return out.getvalue()


def discover(
    federation: str | Federation = "digits-gsc",
    model: Any = None,
    *,
    attributes: int = 2,
    pretraining_rounds: int = 0,
    workers: int = 0,
    device: str = "auto",
    tell: Callable[[str], None] = lambda what: None,
    **settings: Any,
) -> Discovery:
    """Find what the clients of a federation differ in, without labels of it (docs/discover.md).

    `federation` is a name, a CSV or a `Federation`; `attributes` how many values to tell apart; `pretraining_rounds`
    of FedAvg with every client come first. `model` sees the samples: a name, an `nn.Module` or a function that makes
    one (default: the config's own; rows of numbers are taken as they are). Other settings are those of `fd.train`.

    >>> import feddiverse as fd
    >>> found = fd.discover("digits-gsc", workers=1)
    >>> found.strength > 4, found.evaluation_only["attribute_accuracy"] > 0.95
    (True, True)
    """
    settings |= {"num_attributes": attributes, "pretraining_rounds": pretraining_rounds}
    if isinstance(federation, Federation) and model is None and _is_rows(federation):
        model = columns
    config, objects = from_arguments(federation, {"model": model}, settings, "the arguments of discover")
    tell("reading the data")
    opened = open_run(config, objects)
    if model is None and _is_rows(opened.federation):
        opened = replace(opened, objects=replace(objects, model=columns), weights=None)
    return _discover(opened, workers, device, tell)


def _is_rows(federation: Federation) -> bool:
    return federation.source.mean is None and len(federation.source.shape) == 1


def columns(num_classes: int, shape: tuple[int, ...]) -> Any:
    """A model whose features are the numbers themselves: what is found is then a direction among columns."""
    from torch import nn

    return nn.Linear(shape[0], num_classes)


def _discover(opened: Opened, workers: int, device: str, tell: Callable[[str], None]) -> Discovery:
    federation, config = opened.federation, opened.config
    estimator: Consensus = opened.estimator("consensus")  # type: ignore[assignment]
    estimator.remembered = True
    engine: LocalEngine = registry.find(registry.ENGINE, "local")(opened, workers, device)
    with one_blas_thread(), closing(engine):
        theta = pretrain(opened, engine, tell)
        tell("comparing clients")
        truth = TruthKept(engine)
        meter = Meter(truth, opened.privacy)
        found = estimator.estimate(config.pretraining_rounds + 1, engine.clients, meter.with_theta(theta))
        if not found:
            why = " ".join(meter.warnings())
            raise RunError(f"No client of {federation.name} could be read. {why}".rstrip())
        read = sorted(found)
        memories = [engine.memory(k) for k in read]
    lost = len(federation.names) - len(read)
    warnings = [*estimator.warnings, *meter.warnings()]
    if lost:
        missing = next(name for k, name in enumerate(federation.names) if k not in found)
        warnings.append(f"{lost} of {federation.num_clients} clients are left out, the first of them {missing}.")
    seen = estimator.separation is not None
    reading = estimator.reading or {"centres": np.zeros((federation.num_classes, 1, 1), np.float32)}
    ids = [federation.client_ids[k] for k in read]
    sample = np.concatenate(ids)
    return Discovery(
        federation=federation,
        config=config,
        client=np.repeat(read, [len(part) for part in ids]),
        sample=sample,
        y=federation.source.train_y[sample],
        attributes=np.concatenate([memory["attribute"] for memory in memories]),
        confidence=np.concatenate([memory["confidence"] for memory in memories]) if seen else np.zeros(len(sample)),
        coordinates=np.concatenate([memory["coordinates"] for memory in memories]).astype(np.float64),
        centres=reading["centres"].astype(np.float64),
        strength=estimator.strength,
        separation=estimator.separation,
        warnings=tuple(warnings),
        evaluation_only={"attribute_accuracy": attribute_accuracy(truth.confusion)}
        if seen and truth.confusion is not None
        else {},
    )


def folder_of(name: str) -> str:
    """A folder's name for a federation's: of a table that of its file."""
    if name.startswith("table:"):
        name = Path(name.removeprefix("table:")).stem
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "federation"


def _percent(share: float) -> str:
    """Never 100 % unless it is all."""
    return f"{min(100 * share, 99.9 if share < 1 else 100):.{0 if share == 1 or share < 0.99 else 1}f} %"
