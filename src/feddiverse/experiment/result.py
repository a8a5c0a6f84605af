"""What a run gives back: its history, its numbers, and the trained model, in memory or read from a run directory."""

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike, NDArray

from feddiverse.data.arrays import as_samples
from feddiverse.errors import UserError, as_text
from feddiverse.experiment.records import check_history, worst_class_of, worst_in_words
from feddiverse.experiment.run_directory import (
    check_config,
    read_checkpoint,
    read_config,
    read_json,
    read_rebalanced,
    read_records,
)
from feddiverse.messages import Vector

if TYPE_CHECKING:  # none of them is needed to look at numbers
    import pandas
    from matplotlib.figure import Figure
    from torch import nn

    from feddiverse.models.export import TrainedModel


HEADS = ("trained", "rebalanced")


@dataclass(frozen=True)
class Result:
    """A trained federation. Accuracies are those of the last evaluation; None where there was no test set.

    `worst_group_accuracy` is None too where nobody knows the attributes of test samples: see `worst_class_accuracy`.

    >>> import feddiverse as fd
    >>> result = fd.train("digits-gsc", rounds=1, num_selected=2, workers=1)
    >>> result.predict(fd.federation("digits-gsc").test(0, 3).x).shape
    (3,)
    """

    summary: dict[str, Any]  # what `result.json` says
    history: list[dict[str, Any]]  # one record a round, as `rounds.jsonl` has them
    theta: Vector
    about: dict[str, Any]  # what `model.json` says
    triplets: dict[str, Any] = field(default_factory=dict)
    factory: Any = None
    run_dir: Path | None = None
    rebalanced_theta: Vector | None = None  # θ with its last layer solved anew

    @classmethod
    def read(cls, path: str | Path, model: Any = None) -> "Result":
        """The finished run in a directory; `model` as in `load_model`."""
        path = Path(path).expanduser()
        config = read_config(path)  # says so if there is no run
        summary = read_json(path / "result.json")
        if summary is None:
            raise UserError(f"The run in {path} is not finished: go on with 'feddiverse run --resume {path}'.")
        about = read_json(path / "model.json") or _about_of_old(path)
        found = read_json(path / "triplets.json") or {}
        history, theta = read_records(path), _trained_theta(path)
        if summary.get("rounds", 0) < len(history):
            raise UserError(f"The run in {path} is being trained further: go on with 'feddiverse run --resume {path}'.")
        try:
            check_history(history, summary)
            check_config(config, summary)
            if digest(theta) != summary["theta_sha256"]:
                raise ValueError("its weights are not those that its result tells of")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"The run in {path} is damaged ({as_text(error)}); delete it and run it again.") from error
        changed = read_rebalanced(path) if summary.get("rebalanced") else None
        summary["run_dir"] = str(path)
        return cls(summary, history, theta, about, found, model, path, changed)

    @property
    def accuracy(self) -> float | None:
        accuracy: float | None = self.summary["accuracy"]
        return accuracy

    @property
    def worst_group_accuracy(self) -> float | None:
        worst: float | None = self.summary["worst_group_accuracy"]
        return worst

    @property
    def worst_class_accuracy(self) -> float | None:
        return worst_class_of(self.summary)

    @property
    def rebalanced(self) -> dict[str, Any] | None:
        """What the head solved anew does: `worst_group_accuracy`, `accuracy`, `groups`, …; None where there is none.

        `accuracy` and the like, `history` and `theta` are those of the trained head. `model`, `predict` and `save` are
        of the rebalanced one where there is one: those of the trained are `trained.model` and so on.
        """
        return self.summary.get("rebalanced")

    @property
    def trained(self) -> "Result":
        """The same run with its head as it was trained."""
        return replace(self, summary={**self.summary, "rebalanced": None}, rebalanced_theta=None)

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Accuracy of each (class, attribute)."""
        return self.summary["groups"] or []

    @property
    def theta_sha256(self) -> str:
        """Same settings and same data, same digest."""
        return str(self.summary["theta_sha256"])

    @property
    def config(self) -> dict[str, Any]:
        """Every setting of the run."""
        return dict(self.summary["config"])

    @cached_property
    def model(self) -> "nn.Module":
        """The trained model, in evaluation mode, with its rebalanced head if there is one.

        It takes samples as `predict` prepares them: normalised floats.
        """
        return self._usable.module

    @cached_property
    def _usable(self) -> "TrainedModel":
        from feddiverse.models.export import rebuild

        theta = self.theta if self.rebalanced_theta is None else self.rebalanced_theta
        return rebuild({**self.about, "theta_sha256": digest(theta)}, theta, self.factory)

    def predict(self, x: ArrayLike) -> NDArray[Any]:
        """The class of each sample, as the labels were given. `x` is as in training: uint8 pictures or floats."""
        return self._usable.predict(as_samples(x))

    def save(self, path: str | Path) -> Path:
        """Write the model as named tensors (safetensors), with class names, shape and normalisation."""
        return self._usable.save(Path(path).expanduser())

    def to_pandas(self) -> "pandas.DataFrame":
        """The history as a table, a row a round; each group's accuracy in a column of its own."""
        import pandas

        rows = []
        for record in self.history:
            flat = {key: value for key, value in record.items() if key not in ("groups", "traffic", "rebalanced")}
            if solved := record.get("rebalanced"):
                flat |= {f"rebalanced_{key}": solved[key] for key in ("accuracy", "worst_group_accuracy")}
            flat |= {f"group {self._name(group)}": group["accuracy"] for group in record["groups"] or []}
            rows.append(flat)
        return pandas.DataFrame(rows)

    def plot(self) -> "Figure":
        """Accuracy over rounds: the worst group (or class, where groups are unknown), the mean, and each group."""
        from matplotlib import rc_context

        from feddiverse.experiment.shown import ShownFigure

        tested = [record for record in self.history if record["accuracy"] is not None]
        figure = ShownFigure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot(xlabel="round", ylabel="accuracy", ylim=(0, 1))
        at = [record["round"] for record in tested]
        for place, group in enumerate(tested[-1]["groups"] if tested else []):
            values = [record["groups"][place]["accuracy"] for record in tested]
            axes.plot(at, values, linewidth=0.8, alpha=0.6, label=self._name(group))
        axes.plot(at, [record["accuracy"] for record in tested], color="grey", linestyle="--", label="all")
        known = self.worst_group_accuracy is not None
        worst: list[Any] = [record["worst_group_accuracy"] if known else worst_class_of(record) for record in tested]
        axes.plot(at, worst, color="black", linewidth=2, label="worst group" if known else "worst class")
        with rc_context({"text.parse_math": False}):  # a $ in a name is a $
            axes.legend(loc="lower right", fontsize="small")
        return figure

    def _name(self, group: dict[str, Any]) -> str:
        """`5–9 · red`; where nobody knows the attributes of test samples `5–9`."""
        known = self.worst_group_accuracy is not None
        attribute = self.about["attribute_names"][group["attribute"] :][: int(known)]
        return " · ".join(map(str, [self.about["class_names"][group["class"]], *attribute]))

    def __repr__(self) -> str:
        worst = worst_in_words(self.summary) or "not evaluated"
        if self.rebalanced and self.rebalanced["groups"]:
            worst += f", rebalanced {worst_in_words(self.rebalanced)}"
        return f"Result({worst}, {len(self.history)} rounds, θ {self.theta_sha256[:8]})"


def load_run(path: str | Path, model: Any = None) -> Result:
    """The finished run in a directory, as `fd.train` gave it. `model` as in `load_model`.

    >>> import tempfile
    >>> import feddiverse as fd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = fd.train("digits-gsc", rounds=1, num_selected=2, workers=1, out=f"{folder}/run")
    ...     fd.load_run(f"{folder}/run").theta_sha256 == made.theta_sha256
    True
    """
    return Result.read(path, model)


def load_model(path: str | Path, model: Any = None, *, head: str = "") -> "nn.Module":
    """The trained model of a run directory, or of a file that `Result.save` or `feddiverse export` wrote.

    `model`: the factory or module, where the run's was an object, or is not found by its name. `head`: of a run,
    `trained` or `rebalanced`; by default the rebalanced one if there is one.

    >>> import tempfile
    >>> import feddiverse as fd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = fd.train("digits-gsc", rounds=1, num_selected=2, workers=1).save(f"{folder}/model.safetensors")
    ...     type(fd.load_model(path)).__name__
    'CNN'
    """
    return open_model(path, model, head).module


def open_model(path: str | Path, model: Any = None, head: str = "") -> "TrainedModel":
    """`load_model` with what is needed to feed it: `predict`, `probabilities`, class names."""
    from feddiverse.models.export import read, rebuild

    path = Path(path).expanduser()
    if path.is_dir():
        read_config(path)  # says so if there is no run
        about, theta = read_json(path / "model.json") or _about_of_old(path), theta_of(path, head)
        return rebuild({**about, "theta_sha256": digest(theta)}, theta, model)
    if not path.is_file():
        raise UserError(f"There is no run directory and no exported model {path}.")
    if head:
        raise UserError(f"{path} is one model: a head can be chosen of a run directory, or when that is exported.")
    return read(path, model)


def digest(theta: Vector) -> str:
    """SHA-256 of θ."""
    return hashlib.sha256(theta.astype("<f4").tobytes()).hexdigest()


def theta_of(path: Path, head: str = "") -> Vector:
    """Of a run's model, with its `trained` or `rebalanced` head; by default the rebalanced one if there is one."""
    if head not in ("", *HEADS):
        raise UserError(f"A model's head is {' or '.join(HEADS)}, not '{head}'.")
    there = bool((read_json(path / "result.json") or {}).get("rebalanced"))
    if head == "rebalanced" and not there:
        raise UserError(f"The run in {path} has no rebalanced head: make one with 'feddiverse rebalance {path}'.")
    return read_rebalanced(path) if there and head != "trained" else _trained_theta(path)


def _trained_theta(path: Path) -> Vector:
    snapshot = read_checkpoint(path)
    if snapshot is None:
        raise UserError(f"The run in {path} has no checkpoint, so its model is not there.")
    return snapshot.theta


def _about_of_old(path: Path) -> dict[str, Any]:
    """`model.json` of a run from before there was one."""
    config, made = read_config(path), read_json(path / "federation.json")
    if made is None or made["source"] not in ("digits", "cmnist", "waterbirds", "spawrious"):
        raise UserError(f"The run in {path} does not say what its model is; run it again.")
    digits = made["source"] in ("digits", "cmnist")
    size = 28 if digits else config.image_size or 224
    mean, std = ((0.1307,) * 3, (0.3081,) * 3) if digits else ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    names = made["class_names"]
    return {
        "model": config.model, "num_classes": len(names), "shape": [3, size, size], "mean": mean, "std": std,
        "classes": list(range(len(names))), "class_names": names, "attribute_names": made["attribute_names"],
    }  # fmt: skip


__all__ = ["Result", "load_model", "load_run"]
