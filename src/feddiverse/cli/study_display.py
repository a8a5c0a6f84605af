"""What a person sees of a study under way: a bar over all runs with the time left; off a terminal, a line a run."""

import time
from collections.abc import Callable, Container
from typing import Any

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from feddiverse.cli.console import counted, err, out, progress
from feddiverse.experiment.config import Config
from feddiverse.experiment.expectation import correction, wall_seconds
from feddiverse.experiment.study import Planned, Study, StudyDirectory, by_reason


def show_grid(
    study: Study, directory: StudyDirectory, workers: int, elsewhere: Container[Config] = (), at_once: int = 1
) -> None:
    """The grid, what of it is done (here, or `elsewhere`: to be taken over), and how long the rest will take.

    `workers`: those of each run of `at_once`.
    """
    factor = correction(study.runs, directory, workers)
    table = Table(title=study.title)
    table.add_column("run", overflow="fold")  # whole names, on several lines if need be
    for head in ("rounds", "expected", "state"):
        table.add_column(head, no_wrap=True)
    left = 0.0
    for run in study.runs:
        state = "done" if directory.is_done(run) else "to take over" if run.config.effective in elsewhere else "to do"
        seconds = factor * wall_seconds(run.config, workers) if state == "to do" else 0.0
        left += seconds
        table.add_row(run.name, str(run.config.rounds), duration(seconds) if seconds else "", state)
    out.print(table)
    out.say(how_long(study, directory, workers, at_once, left), whole=True)


def how_long(study: Study, directory: StudyDirectory, workers: int, at_once: int = 1, left: float | None = None) -> str:
    """How many runs there are and how long those to do will take, in a sentence."""
    factor = correction(study.runs, directory, workers)
    if left is None:
        left = factor * sum(wall_seconds(run.config, workers) for run in study.runs if not directory.is_done(run))
    measured = "corrected by the runs done here" if factor != 1 else "a rough guess until the first run is done"
    runs, on = counted(len(study.runs), "run"), counted(workers, "worker")
    on = f"{on} each, {at_once} at once" if at_once > 1 else on
    return f"{runs} in {directory.path}, about {duration(left / at_once)} left on {on} ({measured})."


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


class Display:
    """Progress over expected seconds, so that long and short runs count as what they cost."""

    def __init__(self, study: Study, directory: StudyDirectory, workers: int, num_taken: int, at_once: int = 1):
        self._expected = {run.name: wall_seconds(run.config, workers) for run in study.runs}
        self._to_do = [run for run in study.runs if not directory.is_done(run)]
        self._rounds = {run.name: run.config.rounds for run in self._to_do}
        self._total = sum(self._expected[run.name] for run in self._to_do)
        self._over = 0.0  # expected seconds of the runs that are over, well or not
        self._parts: dict[str, float] = {}  # and of what has been done of those under way
        self._made = 0.0  # expected seconds of the rounds made in this sitting
        self._finished = 0
        self._began = time.monotonic()
        self._run_began: dict[str, float] = {}
        self.failures: dict[str, str] = {}
        done = len(study.runs) - len(self._to_do)
        taken = f" ({num_taken} taken from other studies)" if num_taken else ""
        err.say(how_long(study, directory, workers, at_once), whole=True)
        if done:
            err.say(f"{done} of {len(study.runs)} runs are done already{taken}.")
        self._progress = progress(
            TextColumn("{task.fields[count]}"), BarColumn(), TimeElapsedColumn(),
            TextColumn("left {task.fields[left]}"), TextColumn("{task.fields[now]}"),
        )  # fmt: skip
        self._task = self._progress.add_task("", total=max(self._total, 1e-9), count=self._count(), left="?", now="")

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._progress.stop()
        if kind is KeyboardInterrupt:
            err.say("Interrupted. Give the same command again to go on.")

    def on_round(self, run: Planned) -> Callable[[dict[str, Any]], None]:
        """To be called with each round's record of a run."""
        self._run_began[run.name] = time.monotonic()
        rounds = self._rounds[run.name]

        def show(record: dict[str, Any]) -> None:
            a_round = self._expected[run.name] / rounds
            self._made += a_round
            self._parts[run.name] = a_round * record["round"]
            self._update(f"{run.name} · round {record['round']}/{rounds}")

        return show

    def finished(self, run: Planned, why: str | None) -> None:
        """A run is over, well or not."""
        self._over += self._expected[run.name]
        self._parts.pop(run.name, None)
        self._finished += 1
        is_news = why not in (None, *self.failures.values())
        if why is not None:
            self.failures[run.name] = why
        self._update(run.name)
        if not err.is_terminal:
            state = f"in {duration(time.monotonic() - self._run_began[run.name])}" if why is None else "FAILED"
            err.say(f"{self._count()} {run.name} {state}, left about {self._left()}", whole=True)
        if is_news:  # said at once: it may be what all the others fail for
            err.say(f"  {run.name}: {why}", whole=True)

    def show_failures(self) -> None:
        """At the end, on stderr."""
        err.say(f"{counted(len(self.failures), 'run')} failed; give the same command again to retry:")
        for why, who in by_reason(self.failures).items():
            err.say(f"  {who}: {why}", whole=True)

    @property
    def _completed(self) -> float:
        return self._over + sum(self._parts.values())

    def _update(self, now: str) -> None:
        self._progress.update(self._task, completed=self._completed, count=self._count(), left=self._left(), now=now)

    def _count(self) -> str:
        return f"{self._finished}/{len(self._to_do)} runs"

    def _left(self) -> str:
        """By the pace of the rounds made in this sitting: others cost no time now, nor do runs that fail at once."""
        if self._made <= 0:
            return "?"
        return duration((self._total - self._completed) * (time.monotonic() - self._began) / self._made)
