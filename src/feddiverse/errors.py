"""The two ways a command can end badly: the user's mistake, or ours."""

import shlex
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
"""The versions that were tried together: there in the repository, not where a wheel was installed."""


class UserError(Exception):
    """What the user can mend. The message is one sentence: what is wrong, where, what to do. Exit code 2.

    >>> import feddiverse as fd
    >>> try:
    ...     fd.counts_of("digits-gcs")
    ... except UserError as error:
    ...     print(error)
    There is no federation 'digits-gcs' (did you mean 'digits-gsc'?). See: feddiverse federations.
    """


class RunError(Exception):
    """What went wrong although the user did nothing wrong, told in one sentence. Exit code 1.

    >>> issubclass(RunError, Exception)
    True
    """


def how_to_install(extra: str) -> str:
    """What to type where a library is missing that only some need. pip adds it to the package that is there."""
    tried = f"--constraint {shlex.quote(str(CONSTRAINTS))} " if CONSTRAINTS.is_file() else ""
    return f"pip install {tried}'feddiverse[{extra}]'"


LONGEST_TEXT = 300  # characters of what others say that are shown


def as_text(value: object) -> str:
    """What a client says or a file holds, fit for a log or a terminal: one line, printable, and not too long.

    >>> as_text("red\\x1b[31m alert")
    'red [31m alert'
    """
    try:
        text = str(value)
    except ValueError:  # of an integer of more than 4,300 digits
        text = f"a very long {type(value).__name__}"
    return printable(text[:LONGEST_TEXT]).replace("\n", " ")


def printable(text: str) -> str:
    """The text without what a terminal would obey instead of showing it; line breaks stay.

    >>> printable("\\x1b[2J")
    ' [2J'
    """
    return "".join(character if character.isprintable() or character == "\n" else " " for character in text)
