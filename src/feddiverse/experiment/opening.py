"""All that a run needs, opened in one place: the federation, the model, the starting weights, the parts.

A config names them; from Python they may be objects instead (`Objects`), which then stand in the place of the name.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from feddiverse import registry, secagg
from feddiverse.data import open_federation
from feddiverse.data.federation import Federation
from feddiverse.errors import UserError
from feddiverse.estimation.balancer import CONFIDENCE, Balancer, Head
from feddiverse.estimation.base import ClassCounts, Estimator
from feddiverse.estimation.consensus import Consensus
from feddiverse.experiment import accounting
from feddiverse.experiment.config import ESTIMATING, PARTS, Config, from_mapping, settings
from feddiverse.messages import PaperTriplet, Summed, Train, Vector
from feddiverse.selection.base import Selector
from feddiverse.selection.limited import limited
from feddiverse.server.aggregation import Aggregator, FedAvg
from feddiverse.server.averages import Average
from feddiverse.server.evaluation import Evaluation, GroupReader
from feddiverse.server.objectives import Objective
from feddiverse.server.privacy import Privacy
from feddiverse.server.rounds import Plan
from feddiverse.server.secagg import SecureSums

if TYPE_CHECKING:  # it brings torch: a run's directory is made before that is loaded
    from feddiverse.models import ModelSpec


@dataclass(frozen=True)
class Objects:
    """What only Python can give: the data itself, a model or its factory, classes or objects of parts."""

    federation: Federation | None = None
    model: Any = None
    parts: dict[str, Any] = field(default_factory=dict)  # "selector", "aggregator", "average", "estimator", "objective"


OPENING = ("image_size", "resize", "data_dir", "columns", "features")
"""Keys that say how a federation is opened: nothing to one that is open."""


def from_arguments(
    federation: str | Federation, given: Mapping[str, Any], settings: Mapping[str, Any], where: str
) -> tuple[Config, Objects]:
    """The config of what a Python function was given, and those objects that it can only name.

    `given`: the model and the parts, each a name, a table of name and parameters, a class, an object, or None.
    """
    if "federation" in settings:
        raise TypeError("federation is given twice")
    named = {key: part for key, part in given.items() if isinstance(part, str | dict)}
    parts = {key: part for key, part in given.items() if part is not None and key not in named}
    named |= {key: registry.name_of(PARTS[key], part) for key, part in parts.items()}
    objects = Objects(model=parts.pop("model", None), parts=parts)
    if not isinstance(federation, Federation):
        return from_mapping({**settings, **named, "federation": federation}, where), objects
    for key in OPENING:
        if key in settings and settings[key] != federation.opened_with.get(key):
            raise UserError(f"{federation!r} is open already: '{key}' is to be given to fd.federation, not here.")
    if "model" not in named and len(federation.source.shape) != 3:
        named["model"] = "mlp"  # the others take pictures
    values = {**federation.opened_with, **settings, **named, "federation": federation.name}
    return from_mapping(values, where), replace(objects, federation=federation)


@dataclass(frozen=True)
class Opened:
    """A config with what its names stand for. Parts are made anew at each call: they keep a run's state."""

    config: Config
    objects: Objects
    federation: Federation
    weights: Path | None  # a file or a run directory to start from

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What constructors of parts may ask for."""
        federation = self.federation
        known = settings(self.config, federation.num_classes, federation.num_attributes, federation.num_selected)
        return {
            **known,
            "num_clients": federation.num_clients,
            "estimator": registry.Later(self.estimator),
            "head_bias": registry.Later(lambda: _head_bias(self.spec)),
        }

    @cached_property
    def spec(self) -> "ModelSpec":
        """The model, as plain data."""
        from feddiverse.models import ModelSpec

        source = self.federation.source
        return ModelSpec(
            self.config.model, self.federation.num_classes, source.shape, source.mean, source.std,
            options=tuple(self.config.parameters("model").items()), factory=self.objects.model,
        )  # fmt: skip

    def initial_theta(self) -> Vector:
        """θ₀."""
        from feddiverse.models import initial_theta

        return initial_theta(self.spec, self.config.seed, self.weights)

    @property
    def assumption(self) -> str:
        """What estimators take for granted where nobody knows the attributes; empty where they are known."""
        if self.federation.attributes_known:
            return ""
        return (
            f"The attributes of {self.federation.name.removeprefix('table:')} are unknown: estimators assume"
            f" {self.settings['num_attributes']} values (another number: num_attributes)."
        )

    def selector(self) -> Selector:
        return limited(self._part("selector"), self.config.coverage)

    def aggregator(self) -> Aggregator:
        return cast(Aggregator, self._part("aggregator"))

    def average(self) -> Average:
        return cast(Average, self._part("average"))

    def objective(self) -> Objective:
        return cast(Objective, self._part("objective"))

    def estimator(self, name: str = "") -> Estimator:
        """The config's estimator, or another one by name."""
        own = not name or name == self.config.estimator
        made = self._part("estimator") if own else registry.make(registry.ESTIMATOR, name, self.settings)
        return cast(Estimator, made)

    def balancer(self) -> Balancer | None:
        """What makes hidden groups count equally, where the config asks for it. It reads with θ₀."""
        config = self.config
        if not (config.rebalance or config.draw == "balanced"):
            return None
        kinds = {"groups": "consensus", "auto": "consensus", "true_groups": "oracle"}
        part = kinds.get(config.rebalance_weights, ClassCounts)
        if part == "oracle" and not self.federation.attributes_known:
            raise UserError(
                f"rebalance_weights is 'true_groups', but nobody knows the attributes of {self.federation.name}: choose"
                " groups."
            )
        estimator: Estimator = registry.make(registry.ESTIMATOR, part, {**self.settings, "confidence": CONFIDENCE})
        return Balancer(
            estimator, self.initial_theta(), config.seed,
            dimensions=config.rebalance_dimensions, weights=config.rebalance_weights, head=config.rebalance_head,
            reading=config.rebalance_reading, exact_counts=not config.privacy_epsilon, views=_views(config),
        )  # fmt: skip

    def evaluation(self, engine: Any) -> Evaluation:
        """On the server's test set, on what clients hold out, or both; with hidden groups where nobody knows them."""
        federation, holds_out = self.federation, self.config.holdout > 0
        has_test_set, known = len(federation.test_ids) > 0, federation.test_attributes_known
        ask_test_set = engine.ask_test_set if has_test_set and not known else None
        reader = None
        if self.config.estimate_groups and (holds_out or ask_test_set is not None):
            estimator: Consensus = registry.make(registry.ESTIMATOR, "consensus", self.settings)
            reader = GroupReader(estimator, self.initial_theta(), ask_test_set)
        return Evaluation(
            engine.evaluate if has_test_set else None, known, held_out=holds_out, share=self.config.holdout,
            reader=reader, ask_test_set=ask_test_set, num_classes=federation.num_classes, seed=self.config.seed,
        )  # fmt: skip

    def head(self) -> Head:
        """Where in θ the last layer is."""
        from feddiverse.models import build

        weight, bias, dimensions = build(self.spec).head()
        return Head(weight, bias, self.spec.num_classes, dimensions)

    def _part(self, key: str) -> Any:
        part = self.objects.parts.get(key, getattr(self.config, key))
        made = registry.make(PARTS[key], part, self.settings, self.config.parameters(key))
        return copy.deepcopy(made) if made is part else made  # a run keeps its state to itself

    @property
    def privacy(self) -> Privacy:
        """What clients protect of what they send."""
        return privacy_of(self.config)

    @property
    def plan(self) -> Plan:
        config = self.config
        return Plan(
            train=Train(
                seed=config.seed,
                round=0,
                epochs=config.epochs,
                batch_size=config.batch_size,
                lr=config.lr,
                momentum=config.momentum,
                weight_decay=config.weight_decay,
                prox_mu=config.prox_mu,
                flip=config.flip,
                crop_padding=config.crop_padding,
                padding=config.padding,
                set_aside=config.set_aside if config.rebalance else 0.0,
            ),
            rounds=config.rounds,
            num_selected=self.settings["num_selected"],
            evaluate_every=config.evaluate_every,
            pretraining_rounds=config.pretraining_rounds,
            pretraining=FedAvg(config.weighting),
            balanced_draws=config.draw == "balanced",
            evaluate_rebalanced_every=config.evaluate_rebalanced_every,
            head=self.head() if config.rebalance else None,
            test_attributes_known=self.federation.test_attributes_known,
            privacy=self.privacy,
        )


def open_run(config: Config, objects: Objects | None = None) -> Opened:
    """Open what the config names. Mistakes are told before anything slow starts: names, then data, then weights."""
    objects = objects or Objects()
    check_names(config, objects)
    check_privacy(config)
    if objects.federation is None and config.federation == "arrays":
        raise UserError(
            "The data of this run were arrays in memory: go on with it in Python, by the same fd.train(…, out=…)."
        )
    federation = objects.federation or open_federation(
        config.federation, config.seed,
        image_size=config.image_size, resize=config.resize, data_dir=config.data_dir,
        columns=config.columns, features=config.features, needs_test_set=not config.holdout,
    )  # fmt: skip
    if config.holdout and not federation.held_out:
        federation = federation.with_holdout(config.holdout, config.seed)
    if (config.flip or config.crop_padding) and (federation.source.mean is None or len(federation.source.shape) != 3):
        raise UserError(
            f"flip and crop_padding change pictures, but the samples of {federation.name} are floats of shape"
            f" {federation.source.shape}: set flip to false and crop_padding to 0."
        )
    if config.num_selected > federation.num_clients:
        raise UserError(
            f"num_selected is {config.num_selected}, but {federation.name} has {federation.num_clients} clients:"
            f" choose at most {federation.num_clients}."
        )
    if config.estimator == "oracle" and "estimator" not in objects.parts and not federation.attributes_known:
        raise UserError(
            f"The estimator 'oracle' tells true attributes, but nobody knows those of {federation.name}: choose"
            " another, such as consensus."
        )
    return Opened(config, objects, federation, starting_weights(config))


def _views(config: Config) -> dict[str, Any]:
    """How samples are shown changed where the last layer is solved: as in training; empty where they are not."""
    if not config.rebalance_views:
        return {}
    changes = {key: getattr(config, key) for key in ("flip", "crop_padding", "padding")}
    return {"views": config.rebalance_views, **changes}


def privacy_of(config: Config) -> Privacy:
    """What the keys `privacy_*` and `secure_*` ask for."""
    sums = SecureSums(config.secure_threshold, config.secure_neighbours, config.secure_bits)
    return Privacy(
        config.privacy_epsilon, config.privacy_clip, config.privacy_noise, sums if config.secure_sums else None
    )


def check_privacy(config: Config) -> None:
    """Refuse what would protect nothing, and what needs a library that is not there."""
    if config.secure_sums:
        secagg.check_installed()
    if config.privacy_noise and not config.privacy_clip:
        raise UserError("privacy_noise is a multiple of privacy_clip, which is 0: set privacy_clip as well.")
    if config.privacy_noise:
        accounting.check_installed()
    balances = config.rebalance or config.draw == "balanced"
    selector, estimator = (part.removesuffix(registry.OBJECT) for part in (config.selector, config.estimator))
    asked = {"consensus": Summed, "paper": PaperTriplet}.get(estimator) if selector in ESTIMATING else None
    for kind in (asked, Summed if balances else None):
        if kind is not None:
            privacy_of(config).check(kind, hidden=kind is Summed and config.secure_sums)


def check_names(config: Config, objects: Objects | None = None) -> None:
    """Refuse parts, parameters and federations that do not exist. Data may still be missing."""
    objects = objects or Objects()
    if objects.federation is None and config.federation != "arrays":
        _check_federation(config)
    known = settings(config, num_classes=2, num_attributes=2, num_selected=1)
    known |= {"num_clients": 1, "head_bias": slice(0, 2)}
    for key, kind in PARTS.items():
        if key not in objects.parts and not (key == "model" and objects.model is not None):
            found = registry.find(kind, getattr(config, key))
            registry.check_options(kind, getattr(config, key), found, config.parameters(key))
    later = registry.Later(lambda: _estimator(config, objects, known))
    if "selector" not in objects.parts:
        registry.make(registry.SELECTOR, config.selector, {**known, "estimator": later}, config.parameters("selector"))
    for key in ("aggregator", "average", "objective"):
        if key not in objects.parts:
            registry.make(PARTS[key], getattr(config, key), known, config.parameters(key))
    if config.parameters("estimator") and "estimator" not in objects.parts:
        later.make()


def _check_federation(config: Config) -> None:
    """Refuse a name that nothing answers to, and a table without the columns it needs."""
    from feddiverse.data.names import parse, split_of
    from feddiverse.data.table import Columns, path_of, read_table

    has_own_clients = config.federation.startswith("table:")
    if not has_own_clients:
        split_of(config.federation, config.seed)
    source = config.federation if has_own_clients else parse(config.federation)[1]
    if source.startswith("table"):
        path, columns = path_of(source), Columns.of(config.columns, config.features)
        if read_table(path, config.seed, columns, not config.holdout).clients is None and has_own_clients:
            raise UserError(
                f"{path} has no column '{columns.client}': deal it to clients by a split, such as 'gsc:table:{path}',"
                " or name the column with --client."
            )
    elif config.columns or config.features:
        raise UserError(f"'columns' and 'features' are about a table, but the federation is {config.federation}.")


def _head_bias(spec: "ModelSpec") -> slice:
    from feddiverse.models import build

    return build(spec).head_bias


def _estimator(config: Config, objects: Objects, known: dict[str, Any]) -> Any:
    part = objects.parts.get("estimator", config.estimator)
    return registry.make(registry.ESTIMATOR, part, known, config.parameters("estimator"))


def starting_weights(config: Config) -> Path | None:
    """What a run starts from: the file or run directory given; for `mobilenet` the fetched ImageNet weights; None: from
    scratch."""
    if config.checkpoint == "none":
        return None
    if config.checkpoint:
        path = Path(config.checkpoint).expanduser()
        if path.name == "checkpoint.safetensors" and (path.parent / "model.json").is_file():
            path = path.parent  # a run's own file: what its numbers are is written beside it
        if not (path.is_file() or (path / "checkpoint.safetensors").is_file()):
            raise UserError(f"There is no checkpoint file and no finished run {path}; give another with --checkpoint.")
        return path
    if config.model != "mobilenet":
        return None
    from feddiverse.data.sources import find

    if fetched := find("mobilenet"):
        return fetched
    raise UserError(
        "The model 'mobilenet' starts from ImageNet weights, which are not on this machine: run 'feddiverse fetch "
        "mobilenet', give a file with --checkpoint FILE, or start from scratch with --checkpoint none."
    )
