"""What a person sees of a run: a bar on a terminal, a line per evaluated round elsewhere; always on stderr."""

import shlex
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, TextColumn

from feddiverse.cli.console import counted, err, out, progress
from feddiverse.experiment.config import Config
from feddiverse.experiment.records import incomplete_in_words, worst_class_of, worst_in_words
from feddiverse.experiment.run_directory import read_json

NAMED = 3  # clients of a round


class Live:
    """Shows each round's record: round, loss, worst group (or class, where groups are unknown), who was asked, time
    left."""

    def __init__(self, config: Config, directory: Path):
        self._config, self._rounds, self._directory = config, config.rounds, directory
        self._federation: dict[str, Any] | None = None
        self._done = 0
        self._worst = ""
        self._seconds: list[float] = []
        self._progress = progress(TextColumn("{task.description}"), BarColumn())
        self._task = self._progress.add_task(f"preparing {escape(str(directory))} …", total=config.rounds)

    def __enter__(self) -> "Live":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, record: dict[str, Any]) -> None:
        """One more round."""
        evaluated = record["accuracy"] is not None
        self._done = record["round"]
        self._seconds.append(record["seconds"])
        if evaluated:
            self._worst = worst_in_words(record) + self._which(record)
        first = len(self._seconds) == 1  # a log should not be silent until the first evaluation
        if first and not err.is_terminal:
            config, federation = self._config, self._config.federation.removeprefix("table:")
            err.say(
                f"{federation} with {config.selector} selection, {counted(config.rounds, 'round')}, evaluated "
                f"every {config.evaluate_every}; all of it goes to {self._directory}",
                whole=True,
            )
        for warning in record["warnings"]:
            err.say(f"Warning: {warning}", whole=True)
        line = self._line(record)
        self._progress.update(self._task, description=escape(line), completed=self._done)
        if not err.is_terminal and (evaluated or first):
            err.say(line, whole=True)

    def _line(self, record: dict[str, Any]) -> str:
        recent = self._seconds[-20:]
        left = (self._rounds - self._done) * sum(recent) / len(recent)
        parts = [f"round {self._done}/{self._rounds}"]
        if record["train_loss"] is not None:
            parts.append(f"loss {record['train_loss']:.4f}")
        if self._worst:
            parts.append(self._worst)
        if record["accuracy"] is not None:
            parts.append(f"accuracy {record['accuracy']:.1%}")
        parts.append(self._asked(record["selected"]))
        return "  ".join([*parts, f"{clock(left)} left"])

    def _about(self) -> dict[str, Any]:
        """`federation.json`, which is there from the first round on."""
        if self._federation is None:
            self._federation = read_json(self._directory / "federation.json") or {}
        return self._federation

    def _asked(self, clients: list[int]) -> str:
        """`asked Basel, Bern, Chur and 6 more`; clients without names by their numbers."""
        names = self._about().get("client_names") or []
        if len(clients) == len(names) > NAMED:
            return f"asked all {len(clients)}"
        named = [names[k] if k < len(names) else str(k) for k in clients[:NAMED]]
        more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
        return f"asked {', '.join(named)}{more}"

    def _which(self, record: dict[str, Any]) -> str:
        """` (5–9, red)`: which group is the worst."""
        about, groups = self._about(), [g for g in record.get("groups") or [] if g["accuracy"] is not None]
        if record["worst_group_accuracy"] is None or not about.get("attribute_names"):
            return ""
        worst = min(groups, key=lambda group: group["accuracy"])
        return f" ({about['class_names'][worst['class']]}, {about['attribute_names'][worst['attribute']]})"

    def interrupted(self) -> None:
        """Say how to go on."""
        self._progress.stop()
        err.say(
            f"feddiverse: Interrupted after round {self._done} of {self._rounds}; "
            f"go on with: feddiverse run --resume {self._directory}",
            whole=True,
        )

    def finished(self, result: dict[str, Any]) -> None:
        """The result, on stdout."""
        if not self._done:
            out.say(f"{self._directory} is finished already; its result:")
        for warning in result.get("warnings", ()):
            err.say(f"Warning: {warning}", whole=True)
        took = f"after {counted(result['rounds'], 'round')} in {clock(result['seconds'])}"
        out.say(f"{reached(result)} {took}; see {result['run_dir']}.", whole=True)
        if said := incomplete_in_words(result.get("incomplete") or []):
            out.say(said, whole=True)
        if result.get("rebalanced"):
            out.say(f"With the rebalanced head: {reached(result['rebalanced'])}.")
        out.say(f"Next: feddiverse report {shlex.quote(str(result['run_dir']))}", whole=True)


def reached(result: dict[str, Any]) -> str:
    """The accuracies, as far as they are known."""
    if result["accuracy"] is None:
        return "Trained, but not evaluated,"
    accuracy = f"accuracy {result['accuracy']:.2%}"
    if result["worst_group_accuracy"] is not None:
        return f"Worst-group accuracy {result['worst_group_accuracy']:.2%}, {accuracy}"
    where = "attributes of the test set are unknown"
    if (held_out := result.get("held_out")) and held_out["groups"] == result["groups"]:
        where = "on samples that clients hold out"
        if held_out["worst_client"] is not None:
            worst_client = held_out.get("worst_client_name", held_out["worst_client"])
            accuracy += f", worst client {held_out['worst_client_accuracy']:.2%} ({worst_client})"
    if (estimated := result.get("worst_estimated_group_accuracy")) is not None:
        accuracy = f"worst estimated group {estimated:.2%}, {accuracy}"
    return f"Worst-class accuracy {worst_class_of(result):.2%} ({where}), {accuracy}"


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
