"""The command line: one file a command. Heavy imports happen inside commands, so that `--help` is instant."""

import logging
import os
import sys
import sysconfig
import traceback
from pathlib import Path

import typer
import typer.core

from feddiverse.cli import (
    compare,
    discover,
    estimate,
    federations,
    fetch,
    measure,
    model,
    overhead,
    rebalance,
    report,
    run,
    study,
)
from feddiverse.errors import RunError, UserError, printable

LONGEST = 1000  # characters of a sentence that are shown: it may quote what was given

# Plain help: drawing boxes takes twice as long as all the rest of `--help`.
typer.core.HAS_RICH = False
app = typer.Typer(
    name="feddiverse",
    help="Measure how skewed a federation is, and select clients that complement each other.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    suggest_commands=False,  # Click does
)
for command in (
    measure.measure,
    discover.discover,
    fetch.fetch,
    run.run,
    rebalance.rebalance,
    model.predict,
    model.export,
    estimate.estimate,
    overhead.overhead,
    compare.compare,
    study.study,
    report.report,
):
    app.command()(command)
app.add_typer(federations.app, name="federations")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"feddiverse {version('feddiverse')}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    pass


def main() -> None:
    """Run a command; tell mistakes in one sentence on stderr (exit 2: the user's, exit 1: ours)."""
    logging.getLogger("feddiverse").addHandler(logging.NullHandler())  # commands show what a run says themselves
    logging.getLogger("feddiverse.engine").addHandler(_Told())  # which cannot wait for the end of a round
    try:
        app()
    except UserError as error:
        _fail(str(error), 2)
    except RunError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("Interrupted.", 130)
    except OSError as error:  # a name too long, a disk that is full: whatever was not foreseen where it happened
        named = f" {error.filename}" if error.filename else ""
        _fail(f"Cannot read or write{named}: {error.strerror or error}.", 2)
    except UnicodeEncodeError as error:
        _fail(f"{error.object!r} is no text in UTF-8: give another name.", 2)
    except MemoryError:
        _fail("There is not enough memory for this; use less data, a smaller model or fewer workers.", 1)
    except RecursionError:
        _fail("What was given is nested too deeply to be read.", 2)
    except Exception as error:
        if os.environ.get("FEDDIVERSE_DEBUG"):
            raise
        what, how = f"{type(error).__name__}: {error}", "(set FEDDIVERSE_DEBUG=1 for the traceback)"
        if place := _in_own_part(error):
            _fail(f"Your own code failed in {place}: {what} {how}.", 2)
        _fail(f"Unexpected {what} {how}.", 1)


def _in_own_part(error: Exception) -> str | None:
    """Where a user's own selector, aggregator, estimator or model raised this, or called what did; None if none did."""
    libraries = [Path(__file__).parent.parent, *map(Path, sysconfig.get_paths().values())]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and not any(file.is_relative_to(library) for library in libraries):
            return f"{frame.name} ({file.name}, line {frame.lineno})"
    return None


class _Told(logging.Handler):
    """Shows a warning at once, above any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        from feddiverse.cli.console import err

        err.say(f"Warning: {record.getMessage()}", whole=True)


def _fail(sentence: str, code: int) -> None:
    sys.stdout.flush()
    if len(sentence) > LONGEST:
        sentence = f"{sentence[: LONGEST - 250]} … {sentence[-240:]}"
    typer.echo(f"feddiverse: {printable(sentence)}", err=True)
    raise SystemExit(code)
