"""Texts: tables, names, settings, studies; right ones with some of it changed."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzzing.harness import Rng, command
from feddiverse.cli.run import _settings
from feddiverse.experiment.config import KEYS
from feddiverse.experiment.opening import check_names
from feddiverse.experiment.train import carry_out

ODD = [
    "",
    " ",
    "0",
    "-1",
    "1e308",
    "-1e308",
    "nan",
    "inf",
    "1_000",
    "٣",
    "½",
    "9" * 30,
    "9" * 4400,
    "0x10",
    "true",
    "null",
    "=1+1",
    " =cmd()",
    "@x",
    "\x1b[31m",
    "\x07",
    "\x00",
    "\x9b2J",
    "'",
    '"',
    '""',
    ",",
    ";",
    "\t",
    "\n",
    "\r",
    "[red]",
    "$x_{$",
    "../../etc/passwd",
    "/etc/passwd",
    "a" * 300,
    "é",
    "e\u0301",
    "𝟜",
    "\u202e",
    "\ufeff",
    "\ud800",
    "[" * 2000,
    "{" * 2000,
    "%s",
    "{}",
    "{0.__class__}",
    "a:b",
    "table:x.csv",
    "()",
    "(",
    ")",
    "=",
    "==",
    "~",
    "*",
    "0.5",
    "1",
    "2",
    "3",
]


def odd(rng: Rng) -> str:
    return ODD[int(rng.integers(len(ODD)))]


def one_of(rng: Rng, options: Any) -> Any:
    options = list(options)
    return options[int(rng.integers(len(options)))]


def mutated(rng: Rng, data: bytes, most: int = 4) -> bytes:
    """Bytes with some changed, cut out, repeated, or put in."""
    for _ in range(int(rng.integers(1, most + 1))):
        if not data:
            return rng.bytes(5)
        start, end = sorted(rng.integers(0, len(data) + 1, 2).tolist())
        end = min(end, start + int(rng.integers(1, 50)))
        match int(rng.integers(5)):
            case 0:
                data = data[:start] + rng.bytes(max(end - start, 1)) + data[end:]
            case 1:
                data = data[:start] + data[end:]
            case 2:
                data = data[:end] + data[start:end] * int(rng.integers(1, 30)) + data[end:]
            case 3:
                data = data[:start] + odd(rng).encode(errors="surrogatepass") + data[start:]
            case 4:
                data = data[:start] if rng.integers(8) == 0 else data
    return data


def csv_table(rng: Rng, folder: Path) -> None:
    """`feddiverse measure FILE.csv`."""
    header = ["client", "class", "attribute", "split", "count", "image"][: int(rng.integers(2, 7))]
    header = [odd(rng) if rng.random() < 0.05 else name for name in header]
    rows = [header]
    for _ in range(int(rng.integers(0, 30))):
        row = [
            f"c{rng.integers(4)}",
            f"y{rng.integers(3)}",
            f"a{rng.integers(2)}",
            "train",
            str(rng.integers(9)),
            "x.png",
        ]
        row = [odd(rng) if rng.random() < 0.02 else value for value in row[: len(header)]]
        rows.append(row if rng.random() > 0.01 else row[:-1])
    comma, line = one_of(rng, [",", ",", ",", ";", "\t"]), one_of(rng, ["\n", "\n", "\r\n", "\r"])
    text = line.join(comma.join(row) for row in rows)
    data = text.encode(errors="surrogatepass")
    file = folder / "table.csv"
    file.write_bytes(mutated(rng, data) if rng.random() < 0.5 else data)
    options = ["--count", "count"] if "count" in header and rng.random() < 0.5 else []
    options += ["--label", odd(rng).replace("\0", "")] if rng.random() < 0.1 else []
    options += ["--json"] if rng.random() < 0.3 else []
    command("measure", str(file), *options)


SPLITS = [
    "digits-gsc", "gai:digits", "iid(clients=5,samples=100):digits", "shards(clients=6,per_client=2):digits",
    "dirichlet(alpha=0.3,clients=20):digits", "design(gsc=0.3,clients=6,samples=120):digits", "cmnist-gsc",
    "design(like=cmnist-gsc):digits", "dirichlet(alpha=0.1,clients=4,samples=40,classes=3,attributes=4):cmnist",
]  # fmt: skip
NUMBERS = ["0", "1", "2", "7", "1000", "100000", "10000000", "10000001", "-3", "0.5", "1e-9", "1e308", "nan", "inf", ""]


def federation_name(rng: Rng, folder: Path) -> None:
    """`feddiverse measure NAME`."""
    name = one_of(rng, SPLITS)
    match int(rng.integers(4)):
        case 0:
            name = mutated(rng, name.encode(), 2).decode(errors="replace")
        case 1 if "=" in name:
            options = name[name.index("(") + 1 : name.index(")")].split(",")
            place = int(rng.integers(len(options)))
            options[place] = f"{options[place].split('=')[0]}={one_of(rng, NUMBERS)}"
            name = f"{name[: name.index('(')]}({','.join(options)}){name[name.index(')') + 1 :]}"
        case 2:
            name = name.replace(":", odd(rng), 1) if ":" in name else name + odd(rng)
        case _:
            name = odd(rng) + name if rng.random() < 0.5 else name + odd(rng)
    name = name.replace("\0", "")
    command("measure", "--seed", str(rng.integers(10)), "--", name)


def value_for(rng: Rng, key: str) -> str:
    """A value as TOML has it: right, extreme or of another kind."""
    kind = KEYS[key].type if key in KEYS else str
    texts = [json.dumps(odd(rng).encode(errors="replace").decode()), '""', "[1]", "{a = 1}", "1979-05-27", "true"]
    numbers = [
        "0",
        "1",
        "-1",
        "3",
        "0.5",
        "1e-300",
        "1e308",
        "inf",
        "nan",
        "9223372036854775807",
        "9223372036854775808",
    ]
    if rng.random() < 0.02:
        return one_of(rng, ["9" * 4400, "[" * 3000, "{a=" * 500, '"' + "\\u0000" + '"'])
    return str(one_of(rng, texts if (kind is str) != (rng.random() < 0.2) else numbers))


def settings(rng: Rng, folder: Path) -> None:
    """What `feddiverse run` makes of a config file and `--set`, up to the moment at which it would train."""
    keys = [one_of(rng, KEYS) for _ in range(int(rng.integers(1, 5)))]
    keys = [odd(rng) if rng.random() < 0.05 else one_of(rng, ["", "", "selector.", "estimator."]) + k for k in keys]
    lines = [f"{key} = {value_for(rng, key)}\n" for key in keys]
    file = folder / "config.toml"
    data = "".join(lines).encode(errors="surrogatepass")
    file.write_bytes(mutated(rng, data, 2) if rng.random() < 0.3 else data)
    assignments = [f"{one_of(rng, KEYS)}={value_for(rng, 'lr')}" for _ in range(int(rng.integers(0, 3)))]
    config, _ = _settings({}, file if rng.random() < 0.8 else None, assignments, None, None)
    check_names(config)


GRID = """title = "Does the guard help?"
seeds = [0, 1]
baseline = "uniform"
[base]
rounds = 3
[rows.uniform]
selector = "uniform"
[rows.diverse]
selector = "feddiverse"
coverage = 1.5
[columns.GSC]
federation = "digits-gsc"
[columns.GAI]
federation = "gai:digits"
"""


def study_file(rng: Rng, folder: Path) -> None:
    """`feddiverse study FILE.toml --dry-run`."""
    text = GRID
    if rng.random() < 0.6:
        lines = text.splitlines()
        place = int(rng.integers(1, len(lines)))
        key = lines[place].split(" = ")[0]
        lines[place] = one_of(rng, ["", f"{key} = {value_for(rng, 'lr')}", f"[{key}]", lines[place] * 2, odd(rng)])
        text = "\n".join(lines)
    data = text.encode(errors="surrogatepass")
    (folder / "grid.toml").write_bytes(mutated(rng, data, 2) if rng.random() < 0.6 else data)
    command("study", str(folder / "grid.toml"), "--dry-run", "--out", str(folder / "study"))


EXTREME: dict[str, list[Any]] = {
    "lr": [1e-30, 1e3, 1e30, 1e308],
    "momentum": [0.0, 0.999999],
    "weight_decay": [1e30],
    "batch_size": [1, 10**6, 2**62],
    "epochs": [3],
    "prox_mu": [1e30, 1e-300],
    "server_lr": [1e-300, 1e30, 1e308],
    "server_momentum": [0.9999],
    "num_selected": [1, 10**6, 2**62],
    "evaluate_every": [2**62],
    "pretraining_rounds": [0, 3, 2**62],
    "fedpns_alpha": [1e308, 1e-300],
    "fedpns_beta": [1e308],
    "hcsfed_clusters": [10**6],
    "hcsfed_rate": [1.0, 1e-300],
    "gce_q": [1e-300, 1.0],
    "consensus_dimensions": [1, 2, 2**40],
    "num_attributes": [1, 2, 12, 100],
    "server_tau": [1e-300, 1e300],
    "pow_d_candidates": [1, 2**62],
    "coverage": [1e308, 1e-300],
    "crop_padding": [14, 10**6],
    "rebalance": [True],
    "draw": ["balanced"],
    "weighting": ["samples"],
    "rebalance_dimensions": [1],
}
SELECTORS = ["feddiverse", "uniform", "pow_d", "fedpns", "hcsfed", "group_balance", "fed_cbs", "oort", "label_entropy",
             "hics_fl", "haccs", "round_robin"]  # fmt: skip
AGGREGATORS = ["fedavgm", "fedavg", "fednova", "fedadam", "fedyogi", "fedadagrad", "feddyn"]


def extreme_run(rng: Rng, folder: Path) -> None:
    """Two rounds of a small federation under settings at the edge of what is allowed."""
    values: dict[str, Any] = {
        "federation": "dirichlet(alpha=0.3,clients=5,samples=60):digits", "rounds": 2, "num_selected": 2,
        "selector": one_of(rng, SELECTORS), "aggregator": one_of(rng, AGGREGATORS),
        "estimator": one_of(rng, ["consensus", "paper", "oracle"]), "seed": int(rng.integers(2**31)),
    }  # fmt: skip
    for key in rng.permutation(list(EXTREME))[: int(rng.integers(1, 4))].tolist():
        values[key] = one_of(rng, EXTREME[key])
    from feddiverse.experiment.config import from_mapping

    with np.errstate(all="ignore"):
        carry_out(from_mapping(values), out=folder / "run", workers=1, device="cpu")
