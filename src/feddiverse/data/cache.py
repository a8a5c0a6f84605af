"""The cache folder, and how anything gets into it: whole or not at all."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PARTIAL = "partial-"
_ABANDONED_S = 24 * 3600.0


def home() -> Path:
    """`FEDDIVERSE_HOME`, else the platform's cache folder. It may not exist yet."""
    if chosen := os.environ.get("FEDDIVERSE_HOME"):
        return Path(chosen).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("feddiverse", appauthor=False)


@contextmanager
def partial(near: Path | None = None) -> Iterator[Path]:
    """A fresh folder on the cache's own disk to prepare something in; what is not moved out of it vanishes.

    A process that was killed leaves its folder behind: the next one sweeps it away after a day.
    """
    parent = near or home()
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.glob(f"{_PARTIAL}*"):
        if time.time() - old.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, target: Path) -> None:
    """Move a finished folder to its place in one step, in place of an older one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        os.replace(target, folder.parent / "replaced")
    os.replace(folder, target)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an `.npy` file in one step. Read it back with `np.load(allow_pickle=False)`."""
    with partial() as folder:
        np.save(folder / path.name, array, allow_pickle=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder / path.name, path)
