"""What clients differ in, as strips of pictures for a report: `discover` on the runs' own federation."""

import os
from collections.abc import Callable

import numpy as np

from feddiverse.errors import RunError, UserError
from feddiverse.experiment.config import Config
from feddiverse.experiment.discovery import discover
from feddiverse.experiment.expectation import forward_seconds
from feddiverse.experiment.finished import Run
from feddiverse.report.discovery import pictures_of
from feddiverse.report.page import Hidden
from feddiverse.report.results import Results

SECONDS = 20.0  # that a report may take for it, unless it was asked for
KEYS = ("model", "checkpoint", "image_size", "data_dir", "columns", "features", "num_attributes")


def look(results: Results, *, asked: bool, tell: Callable[[str], None] = lambda what: None) -> dict[str, Hidden]:
    """Column → strips, where the source has pictures, they are here, and an attribute is seen in them.

    `asked`: of a user's own pictures too, and however long it takes; else only where it is a matter of seconds.
    """
    found = {}
    for column in results.columns:
        runs = [run for row in results.rows for run in results.at(row, column).values()]
        if runs and (asked or _goes_unasked(runs[0].config)) and (hidden := _look(runs[0], tell)):
            found[column] = hidden
    return found


def _goes_unasked(config: Config) -> bool:
    if config.federation.startswith("table:") or ":table:" in config.federation:
        return False
    return forward_seconds(config) / (os.cpu_count() or 1) < SECONDS


def _look(run: Run, tell: Callable[[str], None]) -> Hidden | None:
    """Data that have moved or changed since the run are not shown, nor are models that only a program had."""
    config = run.config
    settings = {key: getattr(config, key) for key in KEYS}
    try:
        seen = discover(config.federation, seed=config.seed, tell=tell, **settings)
    except (UserError, RunError):
        return None
    if not seen.seen or not np.array_equal(seen.federation.counts, run.counts):
        return None
    strips = pictures_of(seen)
    return Hidden(seen.headline, strips, seen.attribute_names) if strips else None
