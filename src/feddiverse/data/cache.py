"""The cache folder, and how anything gets into it: whole or not at all."""

import contextlib
import ctypes
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse.errors import UserError

_PARTIAL = "partial-"
_ABANDONED_S = 24 * 3600.0


def home() -> Path:
    """`FEDDIVERSE_HOME`, else the platform's cache folder. It may not exist yet."""
    if chosen := os.environ.get("FEDDIVERSE_HOME"):
        return Path(chosen).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("feddiverse", appauthor=False)


@contextmanager
def partial() -> Iterator[Path]:
    """A fresh folder on the cache's own disk to prepare something in; what is not moved out of it vanishes.

    A process that was killed leaves its folder behind: the next one removes it.
    """
    parent = home()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for old in parent.glob(f"{_PARTIAL}*"):
            if _is_abandoned(old):
                shutil.rmtree(old, ignore_errors=True)
        prefix = f"{_PARTIAL}{socket.gethostname()}-{os.getpid()}-"
        folder = tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise UserError(
            f"The cache folder {parent} cannot be written ({error.strerror}): set FEDDIVERSE_HOME to one that can."
        ) from error
    with folder as path:
        yield Path(path)


def _is_abandoned(folder: Path) -> bool:
    """Whether the process that made it is gone; of another machine or system we can tell only after a day."""
    with contextlib.suppress(OSError, ValueError, OverflowError):  # a name of another form is not ours to remove
        host, pid, _ = folder.name.removeprefix(_PARTIAL).rsplit("-", 2)
        if host == socket.gethostname() and os.name == "posix":
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                return True
            return False
        return time.time() - folder.stat().st_mtime > _ABANDONED_S
    return False


def publish(folder: Path, target: Path) -> None:
    """Move a finished folder to its place in one step, in place of an older one. Others may do so at the same time."""
    for attempt in range(100):
        try:
            os.rename(folder, target)
            return
        except OSError:
            if attempt == 99:
                raise
        # Something is there already: it is to vanish with the folder we came from.
        if _exchange(folder, target):
            return
        with contextlib.suppress(FileNotFoundError):
            os.rename(target, folder.parent / f"older-{attempt}")


def _exchange(a: Path, b: Path) -> bool:
    """Swap two folders in one step, so that nobody ever finds nothing there. False where the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return renameat2 is not None and renameat2(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an `.npy` file in one step. Read it back with `np.load(allow_pickle=False)`."""
    with partial() as folder:
        np.save(folder / path.name, array, allow_pickle=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder / path.name, path)
