"""Files that are either as they were or as they should be, never in between; and cells that are what they seem."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from feddiverse.errors import UserError

LOCK = ".lock"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a full disk, a read-only folder and their like into one sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"Cannot write {path}: {error.strerror or error}; what was there is kept. "
            "Make room or choose another folder, then run the same command again."
        ) from error


def write(path: Path, data: bytes) -> None:
    """Replace a file in one step: readers, and we after a crash, see the old content or the new."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name itself must survive a power cut
        finally:
            os.close(folder)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file by a JSON object, without the numbers that only Python takes for JSON."""
    write(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def take_lock(folder: Path, what: str) -> FileLock:
    """Hold a folder, made if need be, as long as this process lives, and by no worker forked from it; a second process
    is told. Its `release` may come from another thread."""
    check_name(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, blocking=False, thread_local=False, fallback_to_soft=False)
        try:
            lock.acquire()
        except Timeout:
            raise UserError(f"Another process is working on the {what} in {folder}; wait for it, or end it.") from None
    return lock


def check_name(path: Path) -> None:
    """Refuse a path that no text can hold, before hours of work are to be written there."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"The path {str(path)!r} is no text in UTF-8: choose another.") from None


def safe_cell(text: str) -> str:
    """A text that a spreadsheet would take for a formula is quoted, since names come from data."""
    return "'" + text if text[:1] in {"\t", "\r"} or text.lstrip()[:1] in {"=", "+", "-", "@"} else text
