"""What a run is: one frozen table of settings. Same config and same data, same bits.

How a run is computed (workers, device, engine) is not part of it: it must not change the result.
"""

import inspect
import json
import math
import operator
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from feddiverse import registry
from feddiverse.data.names import FEDERATIONS, full_name
from feddiverse.data.sharing import origin
from feddiverse.errors import UserError

PADDING = ("constant", "edge")
REBALANCE_WEIGHTS = ("groups", "classes", "samples", "auto", "true_groups")

OWN: Any = None
"""Default of a key whose value depends on other keys (`Config.__post_init__` fills it in)."""

PARTS = {
    "selector": registry.SELECTOR, "aggregator": registry.AGGREGATOR, "average": registry.AVERAGE,
    "estimator": registry.ESTIMATOR, "objective": registry.OBJECTIVE, "model": registry.MODEL,
}  # fmt: skip
"""Keys that name a part which may have parameters of its own: `selector.temperature`."""

FEDPROX_MU = 0.1  # the paper's
SHORTHANDS: dict[str, dict[str, Any]] = {
    "fedprox": {"aggregator": "fedavg", "prox_mu": FEDPROX_MU},
    "fedavgm+fedprox": {"aggregator": "fedavgm", "prox_mu": FEDPROX_MU},
    "feddyn": {"aggregator": "feddyn", "objective": "feddyn"},
    "moon": {"aggregator": "fedavg", "objective": "moon"},
}
"""Names for an aggregator together with a client objective: the paper's, and those of methods that are both."""


def _key(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A config key: its default, what it means, and its range (`above` and `below` exclude the bound) or values."""
    bounds = {"at least": low, "above": above, "at most": high, "below": below}
    return field(default=default, metadata={"help": help, "bounds": bounds, "choices": choices})


@dataclass(frozen=True)
class Config:
    """Every setting of a run; out-of-range values and wrong types are refused with the key named.

    `options` are parameters of parts beyond these keys: `(("selector", (("temperature", 3),)),)`, or a mapping of
    mappings, which becomes that. Defaults are the paper's where it says something.

    >>> Config(federation="digits-gsc").lr, Config(federation="cmnist-gsc").lr
    (0.02, 0.001)
    """

    federation: str = _key("digits-gsc", "named federation, `split:source`, or a table `FILE.csv`")
    seed: int = _key(0, "keys all randomness", low=0)
    rounds: int = _key(OWN, "model updates T, pre-training included", low=1)
    num_selected: int = _key(0, "clients a round; 0: the federation's own", low=0)
    selector: str = _key("uniform", "who is asked each round: a known name or `package.module:Class`")
    aggregator: str = _key("fedavgm", "how updates are combined: a known name or `package.module:Class`")
    average: str = _key("mean", "what the aggregator averages: all updates (mean), or so that few liars cannot choose")
    objective: str = _key("cross_entropy", "what clients minimise: cross_entropy, feddyn, moon; FedProx: `prox_mu`")
    estimator: str = _key("consensus", "how triplets come about: paper, consensus, oracle or `package.module:Class`")
    pretraining_rounds: int = _key(OWN, "T0: rounds of plain FedAvg with every client before the first choice", low=0)
    model: str = _key(OWN, "mobilenet, cnn, mlp, or `package.module:factory`")
    checkpoint: str = _key("", "weights to start from: a file, a run directory, `none`; empty: ImageNet for mobilenet")
    image_size: int = _key(0, "pixels a side; 0: the source's own", low=0)
    resize: int = _key(0, "side photos are scaled to, then their middle is cut out; 0: the source's own", low=0)
    flip: bool = _key(OWN, "train on pictures mirrored at random")
    crop_padding: int = _key(OWN, "train on pictures shifted at random by up to so many pixels", low=0)
    padding: str = _key("constant", "what a shifted picture shows at its side: black, or its rim", choices=PADDING)
    data_dir: str = _key("", "where fetched data lies; empty: the cache folder")
    columns: str = _key("", "a table's columns by other names: `class=diagnosis,client=hospital`")
    features: str = _key("", "a table's columns of numbers, in place of pictures: `age,weight`")
    epochs: int = _key(1, "local epochs", low=1)
    batch_size: int = _key(28, "local batch size", low=1)
    lr: float = _key(OWN, "local learning rate", above=0)
    momentum: float = _key(0.9, "local momentum", low=0, below=1)
    weight_decay: float = _key(0.0, "local weight decay", low=0)
    prox_mu: float = _key(0.0, "FedProx's µ in the client's objective, with any aggregator; 0: none", low=0)
    weighting: str = _key(OWN, "clients' weights in the average", choices=("equal", "samples"))
    server_lr: float = _key(OWN, "server step η (every aggregator but fedavg)", above=0)
    server_momentum: float = _key(0.95, "FedAvgM's and FedNova's β", low=0, below=1)
    server_beta1: float = _key(0.9, "FedAdam's and FedYogi's β₁", low=0, below=1)
    server_beta2: float = _key(0.99, "FedAdam's and FedYogi's β₂", low=0, below=1)
    server_tau: float = _key(0.001, "FedOpt's adaptivity τ", above=0)
    evaluate_every: int = _key(OWN, "rounds between evaluations; the last is always evaluated", low=1)
    holdout: float = _key(0.0, "share of its own samples that each client keeps for evaluation only", low=0, below=1)
    estimate_groups: bool = _key(True, "have hidden groups read where test samples' are unknown, to tell the worst")
    draw: str = _key(
        "plain", "how clients draw samples: plain, or balanced over hidden groups", choices=("plain", "balanced")
    )
    rebalance: bool = _key(OWN, "solve the last layer anew at the end, every hidden group of equal weight")
    set_aside: float = _key(
        0.0, "rebalance: share of samples not trained on until it is decided whose features are better", low=0, below=1
    )
    rebalance_weights: str = _key("auto", "rebalance: what counts equally", choices=REBALANCE_WEIGHTS)
    rebalance_head: str = _key(
        "ridge", "rebalance: how the layer is solved: ours, or as Fed3R or CCVR do", choices=("ridge", "fed3r", "ccvr")
    )
    rebalance_reading: str = _key(
        "start", "rebalance: the model that reads the hidden groups", choices=("start", "final")
    )
    rebalance_dimensions: int = _key(2048, "rebalance: features beyond so many are projected at random", low=1)
    rebalance_views: int = _key(
        0, "rebalance: changed copies of each picture that the layer is solved from too (by flip, crop_padding)",
        low=0, high=100,
    )  # fmt: skip
    evaluate_rebalanced_every: int = _key(
        0, "rounds between evaluations with the last layer solved anew as well; 0: only at the end, if at all", low=0
    )
    coverage: float = _key(0.0, "nobody is chosen more than so many times as often as uniformly; 0: no bound", low=0)
    smoothing: float = _key(0.0, "feddiverse: added to triplets before normalising; 0: the paper's rule", low=0)
    loss_quantile: float = _key(1.0, "pow_d, oort: losses above this quantile count as it; 1: all", above=0, high=1)
    pow_d_candidates: int = _key(0, "pow_d's d; 0: every client", low=0)
    fedpns_alpha: float = _key(2.0, "FedPNS α", above=0)
    fedpns_beta: float = _key(0.7, "FedPNS β", low=0)
    hcsfed_clusters: int = _key(3, "HCSFed's clusters", low=1)
    hcsfed_rate: float = _key(1e-5, "HCSFed's compression rate", above=0, high=1)
    gce_q: float = _key(0.3, "paper estimator: q of generalised cross-entropy", above=0, high=1)
    bias_steps: int = _key(50, "paper estimator: steps of the biased model", low=1)
    attribute_steps: int = _key(10, "paper estimator: steps of the attribute classifier", low=1)
    consensus_dimensions: int = _key(256, "consensus estimator: dimensions features are projected to", low=1)
    num_attributes: int = _key(0, "attribute values assumed by estimators; 0: the federation's, or 2", low=0)
    privacy_epsilon: float = _key(0.0, "ε of the noise on each table of counts that leaves a client; 0: none", low=0)
    privacy_clip: float = _key(0.0, "length to which clients cut their updates; 0: as they are", low=0)
    privacy_noise: float = _key(0.0, "noise on updates: its deviation as a multiple of privacy_clip", low=0)
    privacy_delta: float = _key(1e-5, "δ for which the ε of updates is told", above=0, below=1)
    secure_sums: bool = _key(False, "hide clients' parts of sums from the server (secure aggregation, docs/trust.md)")
    secure_threshold: float = _key(
        2 / 3, "secure sums: share of a client's neighbours that must stay to the end", above=0.5, high=1
    )
    secure_neighbours: int = _key(20, "secure sums: clients that each client shares masks with", low=2)
    secure_bits: int = _key(32, "secure sums: binary places of the fixed point", low=0, high=52)
    options: Any = field(default=(), metadata={"help": "parameters of parts beyond these keys"})

    def __post_init__(self) -> None:
        own = _own_defaults(self)
        for name, key in KEYS.items():
            value = getattr(self, name)
            value = own.get(name) if value is OWN else value
            object.__setattr__(self, name, _checked(name, key.type, value, key.metadata))
        object.__setattr__(self, "options", _frozen(dict(self.options)))
        if self.evaluate_rebalanced_every and not self.rebalance:
            raise UserError("'evaluate_rebalanced_every' evaluates what 'rebalance' solves: set rebalance to true.")
        if self.rebalance_views and not (self.flip or self.crop_padding):
            raise UserError("'rebalance_views' shows pictures changed by 'flip' or 'crop_padding': set one of them.")
        if self.draw == "balanced" and self.rebalance_weights not in BY_GROUP:
            raise UserError(
                "'draw' is balanced over hidden groups, but 'rebalance_weights' is"
                f" '{self.rebalance_weights}': choose {' or '.join(BY_GROUP)}, or draw plainly."
            )

    def parameters(self, part: str) -> dict[str, Any]:
        """The part's own parameters beyond the keys: `parameters("selector")`."""
        return dict(dict(self.options).get(part, ()))

    def plain(self) -> dict[str, Any]:
        """Keys and values as JSON and TOML have them; a part with parameters is a table with its `name`."""
        values = {name: getattr(self, name) for name in KEYS}
        for part in dict(self.options):
            values[part] = {"name": values[part], **self.parameters(part)}
        return values

    @property
    def effective(self) -> "Config":
        """Equal for configs that give the same bits: how to rebalance does not count where nothing is rebalanced."""
        if self.rebalance or self.draw == "balanced":
            return self
        unused: dict[str, Any] = {name: key.default for name, key in KEYS.items() if name.startswith("rebalance_")}
        return replace(self, **unused)


KEYS = {key.name: key for key in fields(Config) if key.name != "options"}


def _own_defaults(config: Config) -> dict[str, Any]:
    """The paper's settings; for digits and arrays in memory quick ones, which train a small model from scratch."""
    name = origin(config.federation) if isinstance(config.federation, str) else ""
    small = name.startswith("digits") or name.endswith(":digits") or is_in_memory(name) or bool(config.features)
    birds = name == "waterbirds-dist" or name.endswith(":waterbirds")  # flipped and shifted as released
    side = config.image_size if type(config.image_size) is int and config.image_size > 0 else 224
    selector, aggregator = (str(part).removesuffix(registry.OBJECT) for part in (config.selector, config.aggregator))
    adaptive = aggregator in ("fedadam", "fedyogi", "fedadagrad")
    return {
        "rounds": 100 if small else 200,
        "model": "mlp" if config.features else "cnn" if small else "mobilenet",
        "lr": 0.02 if small else 0.001,
        "evaluate_every": 5 if small else 10,
        "flip": birds,
        "crop_padding": round(side * 24 / 224) if birds else 0,
        "weighting": "samples" if aggregator == "fednova" else "equal",  # its formula weighs by |D_k|/|D|
        "server_lr": 0.01 if adaptive else 0.1,  # an adaptive step has about the size of η in every coordinate
        "pretraining_rounds": 1 if selector in ESTIMATING else 0,
        "rebalance": bool(config.evaluate_rebalanced_every),
    }


def is_in_memory(federation: str) -> bool:
    """Whether this is the name of no data that could be opened, but of arrays that a program has."""
    return ":" not in federation and federation not in FEDERATIONS


BY_GROUP = ("groups", "auto", "true_groups")
"""Values of `rebalance_weights` under which a hidden attribute comes into it."""

ESTIMATING = ("feddiverse", "group_balance")
"""Selectors that ask for triplets, and so want a model that has seen the data once."""


def _frozen(options: Mapping[str, Any]) -> Any:
    """Options as tuples: a config can be a key of a dictionary."""
    return tuple((part, tuple(dict(values).items())) for part, values in options.items() if dict(values))


LARGEST = 2**63 - 1
_INSIDE = {"at least": operator.ge, "above": operator.gt, "at most": operator.le, "below": operator.lt}


def _checked(name: str, type_: Any, value: Any, rule: Mapping[str, Any]) -> Any:
    """The value in its key's type, or a `UserError` that names the key."""
    if isinstance(value, np.generic):
        value = value.item()
    if type_ is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if type(value) is int and not -LARGEST <= value <= LARGEST:
        raise UserError(f"Config key '{name}' is too large a number.")
    if type_ is float and type(value) is int:
        value = float(value)
    if type(value) is not type_:
        kinds = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        raise UserError(f"Config key '{name}' must be {kinds[type_]}, not {value!r}.")
    if type_ is bool:
        return value
    if type_ is str:
        if any("\ud800" <= c <= "\udfff" for c in value):  # bytes that are no text, as the command line passes them on
            raise UserError(f"Config key '{name}' must be text in UTF-8, not {value!r}.")
        if rule["choices"] and value not in rule["choices"]:
            raise UserError(f"Config key '{name}' must be one of {', '.join(rule['choices'])}, not {value!r}.")
        return value
    bounds = {word: bound for word, bound in rule["bounds"].items() if bound is not None}
    if not all(_INSIDE[word](value, bound) for word, bound in bounds.items()) or not math.isfinite(value):
        wanted = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items())
        raise UserError(f"Config key '{name}' must be {wanted}, not {value!r}.")
    return value


OTHER_NAMES = {
    "learning_rate": "lr", "local_lr": "lr", "client_lr": "lr", "local_epochs": "epochs", "num_epochs": "epochs",
    "batch": "batch_size", "clients_per_round": "num_selected", "clients": "num_selected", "dataset": "federation",
    "num_rounds": "rounds", "mu": "prox_mu", "strategy": "aggregator", "server_learning_rate": "server_lr",
    "beta": "server_momentum", "t0": "pretraining_rounds", "attributes": "num_attributes",
}  # fmt: skip
"""What people call our keys elsewhere: suggested where they do so here."""


def from_mapping(values: Mapping[str, Any], where: str = "") -> Config:
    """A config from keys and values; an unknown key fails and names the nearest known one.

    A part's own parameters come as a table (`selector = {name = "mine:Mine", temperature = 3}`) or as dotted keys
    (`selector.temperature`). Configs from before aggregator and objective were two keys (`optimizer`) are understood.
    """
    keys, options = _parts(_resolved(values), where)
    for name in keys:
        if name not in KEYS:
            hint = _hint(name, keys)
            raise UserError(f"Unknown key '{name}' in {where or 'the config'}{hint}; see docs/running.md.")
    try:
        return Config(**keys, options=options)
    except UserError as error:
        raise UserError(f"In {where}: {error}" if where else str(error)) from None


def _hint(name: str, keys: Mapping[str, Any]) -> str:
    """What an unknown key may have meant: a parameter of one of the parts, another word for a key, or one like it."""
    for part, kind in PARTS.items():
        try:
            named = isinstance(keys.get(part), str)
            parameters = inspect.signature(registry.find(kind, keys[part])).parameters if named else {}
        except (UserError, TypeError, ValueError):  # what is wrong with the part is told when its key is looked at
            continue
        if name in parameters:
            return f" (did you mean '{part}.{name}'?)"
    words = {**{key: key for key in KEYS}, **OTHER_NAMES}
    near = registry.closest(name, words)
    return f" (did you mean '{words[near]}'?)" if near else ""


def _resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Shorthands and the keys of older configs, as today's keys."""
    keys = dict(values)
    if isinstance(keys.get("privacy"), Mapping):  # a table of a TOML file
        keys |= {f"privacy.{name}": value for name, value in keys.pop("privacy").items()}
    keys = {name.replace("privacy.", "privacy_"): value for name, value in keys.items()}
    if isinstance(keys.get("federation"), str):
        keys["federation"] = full_name(keys["federation"])
    if "optimizer" in keys:
        is_old = {"gce_q", "hcsfed_rate"} <= keys.keys()  # a whole config from before there were aggregators
        combined = keys.pop("optimizer")
        if "aggregator" in keys and keys["aggregator"] != combined:
            raise UserError(
                f"'optimizer' ({combined}) is another word for 'aggregator' ({keys['aggregator']}): give one."
            )
        keys["aggregator"] = combined
        if is_old and "fedprox" not in str(combined):
            keys["prox_mu"] = 0.0  # it had its default where it was not used
        if is_old and keys.get("selector") not in ESTIMATING:
            keys["pretraining_rounds"] = 0  # likewise
        if is_old:
            keys = {"flip": False, "crop_padding": 0, **keys}
    shorthand = SHORTHANDS.get(keys["aggregator"]) if isinstance(keys.get("aggregator"), str) else None
    if shorthand:
        own = {name: keys[name] for name in ("prox_mu", "objective") if keys.get(name)}
        keys = {**keys, **shorthand, **own}
    recipe = keys.pop("recipe", "")
    for name in str(recipe).split("+") if recipe else ():
        if name not in RECIPES:
            choice = f"{', '.join(RECIPES)}, two of them as in balanced+robust"
            raise UserError(f"There is no recipe '{name}'; choose {choice}, or leave it out.")
        keys = {**RECIPES[name](keys), **keys}
    if keys.get("objective") == "fedprox":
        keys = {**keys, "objective": "cross_entropy", "prox_mu": keys.get("prox_mu") or FEDPROX_MU}
    return keys


ROBUST: dict[str, Any] = {"average": "clipped_mean", "coverage": 1.5, "smoothing": 0.02, "loss_quantile": 0.75}
"""The recipe `robust`: bounds on what one client can do to the model and to the choice of clients (docs/trust.md)."""


VIEWS = 4  # each costs a pass over the training samples


def _balanced(given: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe `balanced`: hidden groups count equally in training and in the last layer, rare pictures are shown
    shifted (photos mirrored too), lest they be learnt by heart, and samples set aside tell whether training helped."""
    federation, side = origin(str(given.get("federation", ""))), given.get("image_size") or 224
    keys: dict[str, Any] = {"draw": "balanced", "rebalance": True, "set_aside": 0.2}
    if not federation or federation.startswith("digits") or federation.endswith(("digits", "cmnist", "cmnist-gsc")):
        return {**keys, "crop_padding": 2, "padding": "edge", "rebalance_views": VIEWS}
    if is_in_memory(federation) or given.get("features"):
        return keys  # they may be no pictures: say flip and crop_padding yourself
    return {**keys, "flip": True, "crop_padding": side // 10, "padding": "edge", "rebalance_views": VIEWS}


RECIPES: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "balanced": _balanced,
    "auto": _balanced,  # its name from when `rebalance_weights` was not auto by itself
    "robust": lambda given: ROBUST,
}
"""Names for several keys together, chosen by what else is given (docs/rebalance.md, docs/trust.md)."""


def _parts(values: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Keys without those of parts, and the parts' own parameters; one that is a key of ours becomes that key."""
    keys: dict[str, Any] = {}
    options: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        part, dot, parameter = name.partition(".")
        if part in PARTS and (dot or isinstance(value, Mapping)):
            table = {parameter: value} if dot else dict(value)
            if "name" in table:
                keys[part] = table.pop("name")
            for own, setting in table.items():
                if not isinstance(setting, str | int | float | bool):
                    raise UserError(f"'{part}.{own}' in {where or 'the config'} must be text, a number, true or false.")
                if own in KEYS and own not in PARTS:
                    keys[own] = setting
                else:
                    options.setdefault(part, {})[own] = setting
        else:
            keys[name] = value
    return keys, options


MOST_TOML = 1 << 18  # bytes of a config or study file: the longest of ours has some thousands
MOST_DOTS = 1000  # in a line of it: the time that `tomllib` takes for a dotted key grows with the square of its parts


def read_toml(path: Path) -> dict[str, Any]:
    """The keys a TOML file sets."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_TOML + 1)
        return _parsed(data)
    except OSError as error:
        raise UserError(f"Cannot read the config file {path}: {error.strerror}.") from error
    except RecursionError:
        raise UserError(f"The config file {path} is not valid TOML: it is nested too deeply.") from None
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise UserError(f"The config file {path} is not valid TOML: {error}.") from error


def _parsed(data: bytes) -> dict[str, Any]:
    """TOML of bounded size. What is none raises `ValueError` or `RecursionError`."""
    if len(data) > MOST_TOML:
        raise ValueError(f"it has more than {MOST_TOML:,} bytes")
    if any(line.count(b".") > MOST_DOTS for line in data.splitlines()):
        raise ValueError(f"a line of it has more than {MOST_DOTS:,} dots")
    return tomllib.loads(data.decode("utf-8"))


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Keys and values of `key=value` texts; a value is read as TOML (`3`, `0.1`, `"text"`), else as plain text."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise UserError(f"'--set {assignment}' is not of the form key=value.")
        values[name.strip()] = _value(text.strip())
    return values


def _value(text: str) -> Any:
    try:
        parsed = _parsed(f"value = {text}".encode())
    except (ValueError, RecursionError):  # no TOML, a number of thousands of digits, or thousands of brackets
        return text
    return parsed["value"] if len(parsed) == 1 else text


def to_toml(config: Config) -> str:
    """The config as a TOML file that `read_toml` reads back: keys first, then a table for each part with parameters."""
    plain = config.plain()
    lines = [_line(name, value) for name, value in plain.items() if not isinstance(value, dict)]
    for part, table in plain.items():
        if isinstance(table, dict):
            lines += [f"\n[{part}]\n", *(_line(name, value) for name, value in table.items())]
    return "".join(lines)


def _line(name: str, value: Any) -> str:
    text = f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
    return text.replace("\x7f", "\\u007f")  # all that JSON lets through and TOML does not


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Which keys differ, as `key (a's value, not b's)`."""
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    return [f"{name} ({a.get(name)!r}, not {b.get(name)!r})" for name in names]


def settings(config: Config, num_classes: int, num_attributes: int, num_selected: int) -> dict[str, Any]:
    """What the constructors of parts can ask for: every key, the federation's own values filled in."""
    return {
        **{name: getattr(config, name) for name in KEYS},
        "num_classes": num_classes,
        "num_attributes": config.num_attributes or (num_attributes if num_attributes > 1 else 2),
        "num_selected": config.num_selected or num_selected,
    }
