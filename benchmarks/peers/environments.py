"""A virtual environment for each peer, made from its PyPI release. The CPU build of torch goes in first and by itself,
so that nothing asks for a CUDA build afterwards."""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "peers"
TORCH = "torch==2.13.0"
PACKAGES: dict[str, tuple[str, ...]] = {
    "flower": ("flwr[simulation]==1.41.0", "ray==2.55.1"),
    "pfl": ("pfl==0.6.0",),
    "flgo": ("flgo==0.4.4",),
    "fluke": ("fluke-fl==0.8.1",),
}


class CannotInstall(Exception):
    """pip could not make the environment; the message is pip's own last word."""


def python_of(environment: str | None) -> Path:
    """The interpreter of a peer's environment, made if it is not there yet; None: the one that runs us."""
    if environment is None:
        return Path(sys.executable)
    folder = CACHE / environment
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join((TORCH, *PACKAGES[environment]))
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        for packages in ((TORCH,), PACKAGES[environment]):
            _install(python, packages)
        stamp.write_text(wanted)
    return python


def _install(python: Path, packages: tuple[str, ...]) -> None:
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise CannotInstall(said[-1] if said else f"pip ended with {done.returncode}")
