"""What a run is: one flat, frozen table of settings. Same config and same data, same bits.

How a run is computed (workers, device, engine) is not part of it: it must not change the result.
"""

import difflib
import json
import math
import operator
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from feddiverse.errors import UserError
from feddiverse.server.aggregation import AGGREGATORS

OWN: Any = None
"""Default of a key whose value depends on the federation or the optimizer (`Config.__post_init__` fills it in)."""


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
    """Every setting of a run; out-of-range values and wrong types are refused with the key named (FACTS: the paper)."""

    federation: str = _key("digits-gsc", "named federation, `split:source`, or `table:FILE.csv`")
    seed: int = _key(0, "keys all randomness", low=0)
    rounds: int = _key(OWN, "model updates T, pre-training included", low=1)
    num_selected: int = _key(0, "clients a round; 0: the federation's own", low=0)
    selector: str = _key("uniform", "who is asked each round: a known name or `package.module:Class`")
    optimizer: str = _key("fedavgm", "how updates are combined", choices=tuple(AGGREGATORS))
    estimator: str = _key("consensus", "how triplets come about: paper, consensus or oracle")
    pretraining_rounds: int = _key(1, "T0: FedAvg rounds with every client, where the selector wants them", low=0)
    model: str = _key(OWN, "mobilenet, cnn, or `package.module:factory`")
    checkpoint: str = _key("", "weights to start from: a file, `none`; empty: ImageNet for mobilenet")
    image_size: int = _key(0, "pixels a side; 0: the source's own", low=0)
    data_dir: str = _key("", "where fetched data lies; empty: the cache folder")
    epochs: int = _key(1, "local epochs", low=1)
    batch_size: int = _key(28, "local batch size", low=1)
    lr: float = _key(OWN, "local learning rate", above=0)
    momentum: float = _key(0.9, "local momentum", low=0, below=1)
    weight_decay: float = _key(0.0, "local weight decay", low=0)
    prox_mu: float = _key(0.1, "FedProx's µ (fedprox optimizers only)", low=0)
    weighting: str = _key(OWN, "clients' weights in the average", choices=("equal", "samples"))
    server_lr: float = _key(OWN, "server step η (every optimizer but fedavg and fedprox)", above=0)
    server_momentum: float = _key(0.95, "FedAvgM's and FedNova's β", low=0, below=1)
    server_beta1: float = _key(0.9, "FedAdam's and FedYogi's β₁", low=0, below=1)
    server_beta2: float = _key(0.99, "FedAdam's and FedYogi's β₂", low=0, below=1)
    server_tau: float = _key(0.001, "FedOpt's adaptivity τ", above=0)
    evaluate_every: int = _key(OWN, "rounds between evaluations; the last is always evaluated", low=1)
    coverage: float = _key(0.0, "feddiverse's guard against asking the same few clients; 0: the paper's rule", low=0)
    pow_d_candidates: int = _key(0, "pow_d's d; 0: every client", low=0)
    fedpns_alpha: float = _key(2.0, "FedPNS α", above=0)
    fedpns_beta: float = _key(0.7, "FedPNS β", low=0)
    hcsfed_clusters: int = _key(3, "HCSFed's clusters", low=1)
    hcsfed_rate: float = _key(1e-5, "HCSFed's compression rate", above=0, high=1)
    gce_q: float = _key(0.3, "paper estimator: q of generalised cross-entropy", above=0, high=1)
    bias_steps: int = _key(50, "paper estimator: steps of the biased model", low=1)
    attribute_steps: int = _key(10, "paper estimator: steps of the attribute classifier", low=1)
    consensus_dimensions: int = _key(256, "consensus estimator: dimensions features are projected to", low=1)
    num_attributes: int = _key(0, "attribute values assumed by estimators; 0: the federation's", low=0)

    def __post_init__(self) -> None:
        own = _own_defaults(self.federation, self.optimizer)
        for key in fields(self):
            value = getattr(self, key.name)
            value = own[key.name] if value is OWN else value
            object.__setattr__(self, key.name, _checked(key.name, key.type, value, key.metadata))


KEYS = {key.name: key for key in fields(Config)}


def _own_defaults(federation: Any, optimizer: Any) -> dict[str, Any]:
    """The paper's settings; quick ones that train a small model from scratch for digits (FACTS.md, section 4)."""
    digits = isinstance(federation, str) and (federation.startswith("digits") or federation.endswith(":digits"))
    adaptive = optimizer in ("fedadam", "fedyogi", "fedadagrad")
    return {
        "rounds": 100 if digits else 200,
        "model": "cnn" if digits else "mobilenet",
        "lr": 0.02 if digits else 0.001,
        "evaluate_every": 5 if digits else 10,
        "weighting": "samples" if optimizer == "fednova" else "equal",  # FedNova's formula weighs by |D_k|/|D|
        "server_lr": 0.01 if adaptive else 0.1,  # an adaptive step has about the size of η in every coordinate
    }


LARGEST = 2**63 - 1
_INSIDE = {"at least": operator.ge, "above": operator.gt, "at most": operator.le, "below": operator.lt}


def _checked(name: str, type_: Any, value: Any, rule: Mapping[str, Any]) -> Any:
    """The value in its key's type, or a `UserError` that names the key."""
    if type(value) is int and not -LARGEST <= value <= LARGEST:
        raise UserError(f"Config key '{name}' is too large a number.")
    if type_ is float and type(value) is int:
        value = float(value)
    if type(value) is not type_:
        kinds = {int: "a whole number", float: "a number", str: "text"}
        raise UserError(f"Config key '{name}' must be {kinds[type_]}, not {value!r}.")
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


def from_mapping(values: Mapping[str, Any], where: str = "") -> Config:
    """A config from keys and values; an unknown key fails and names the nearest known one."""
    for name in values:
        if name not in KEYS:
            near = difflib.get_close_matches(name, KEYS, n=1, cutoff=0.0)[0]
            raise UserError(f"Unknown key '{name}' in {where or 'the config'}; did you mean '{near}'?")
    try:
        return Config(**values)
    except UserError as error:
        raise UserError(f"In {where}: {error}" if where else str(error)) from None


def read_toml(path: Path) -> dict[str, Any]:
    """The keys a TOML file sets."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"Cannot read the config file {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"The config file {path} is not valid TOML: {error}.") from error


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
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:  # no TOML, or a number of thousands of digits
        return text
    return parsed["value"] if len(parsed) == 1 else text


def to_toml(config: Config) -> str:
    """The config as a TOML file that `read_toml` reads back."""
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in asdict(config).items()]
    return "".join(lines).replace("\x7f", "\\u007f")  # all that JSON lets through and TOML does not


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Which keys differ, as `key (a's value, not b's)`."""
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    return [f"{name} ({a.get(name)!r}, not {b.get(name)!r})" for name in names]


def settings(config: Config, num_classes: int, num_attributes: int, num_selected: int) -> dict[str, Any]:
    """All keys for the `build` functions of aggregators, selectors and estimators, the federation's own filled in."""
    return {
        **asdict(config),
        "num_classes": num_classes,
        "num_attributes": config.num_attributes or num_attributes,
        "num_selected": config.num_selected or num_selected,
        "evaluation": True,  # estimators also compare themselves with the truth, which decides nothing
    }
