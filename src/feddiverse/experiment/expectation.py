"""How long a study will take: a rough cost per run from counted work, corrected by the runs already done.

The unit is a second of one thread of an EPYC with AVX-512; what is promised is the order of magnitude.
"""

import contextlib
import functools
from collections.abc import Iterable

from feddiverse.data.arrays import NUM_SELECTED
from feddiverse.data.names import parse, split_of
from feddiverse.data.table import Columns, path_of, tally
from feddiverse.errors import UserError
from feddiverse.experiment.config import Config
from feddiverse.experiment.run_directory import read_json
from feddiverse.experiment.study import Planned, StudyDirectory

# Seconds of one thread per trained sample, and per pixel of it, with the layers in C (MobileNetV2's first is for its
# many weights). A forward pass alone is about a third of it.
COST = {"cnn": (0.0, 1.7e-7), "mobilenet": (4e-4, 4.4e-7), "mlp": (0.0, 2.6e-8)}
START_S = 2.0
FORWARD = 1 / 3
SIDE = {"spawrious": 224, "waterbirds": 224, "table": 224}
NUM_TEST = {"digits": 2_800, "cmnist": 10_000, "spawrious": 2_532, "waterbirds": 5_794}


def thread_seconds(config: Config) -> float:
    """Work of one run: training, the selector's own questions, evaluation."""
    samples, clients, chosen, source = _size(config)
    share = 1.0 if config.selector == "everyone" else min(1.0, (config.num_selected or chosen) / clients)
    everyone = config.pretraining_rounds
    trained = samples * (everyone + share * max(config.rounds - everyone, 0)) * config.epochs
    asked = samples * FORWARD * config.rounds if config.selector == "pow_d" else 0.0
    if config.selector == "feddiverse" and config.estimator == "paper":
        asked += clients * config.bias_steps * config.batch_size
    tested = NUM_TEST.get(source, 5_000) * FORWARD * -(-config.rounds // config.evaluate_every)
    return _each(config, source) * (trained + asked + tested)


def forward_seconds(config: Config) -> float:
    """One pass of the model over all training samples, on one thread."""
    samples, _, _, source = _size(config)
    return _each(config, source) * FORWARD * samples


def _size(config: Config) -> tuple[int, int, int, str]:
    """Samples, clients, how many of them a round asks, and the source."""
    try:
        split, source = split_of(config.federation, config.seed), parse(config.federation)[1]
    except UserError:  # a user's own table
        return *_table_size(config.federation, config.columns, config.features), "table"
    return int(split.counts.sum()), len(split.counts), split.num_selected, source


def _each(config: Config, source: str) -> float:
    """Seconds a trained sample."""
    side = 28 if config.features else config.image_size or SIDE.get(source, 28)
    sample, pixel = COST.get(config.model, COST["cnn"])
    return sample + pixel * side**2


@functools.lru_cache(maxsize=8)
def _table_size(federation: str, columns: str, features: str) -> tuple[int, int, int]:
    """Training samples, clients, and how many of them are asked a round."""
    try:
        found = tally(path_of(federation), Columns.of(columns, features))
    except UserError:  # what is wrong with it is told when it is opened
        return 5_000, 25, NUM_SELECTED
    return int(found.counts.sum()), len(found.clients), min(NUM_SELECTED, len(found.clients))


def wall_seconds(config: Config, workers: int) -> float:
    """The same on `workers` threads, with the time to start."""
    return START_S + thread_seconds(config) / max(workers, 1)


def correction(runs: Iterable[Planned], directory: StudyDirectory, workers: int) -> float:
    """Measured over expected seconds of the runs that are done here; 1 before the first."""
    measured = expected = 0.0
    for run in runs:
        with contextlib.suppress(UserError):  # a damaged result says nothing of time
            if result := read_json(directory.run_path(run) / "result.json"):
                measured += float(result.get("seconds", 0))
                expected += wall_seconds(run.config, workers)
    return measured / expected if expected else 1.0
