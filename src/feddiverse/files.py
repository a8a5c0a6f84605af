"""Files that are either as they were or as they should be, never in between."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from feddiverse.errors import UserError


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
