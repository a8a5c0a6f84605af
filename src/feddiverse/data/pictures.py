"""Picture files decoded once into a memory-mapped uint8 array in the cache, known by their content and size.

Hashing gigabytes at every start would cost more than it gives: a folder whose names, sizes and times of change are
as before is taken to be as before; anything else is hashed anew, and decoded anew only if its content is new.
"""

import contextlib
import hashlib
import io
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from feddiverse.data import cache
from feddiverse.data.federation import Ids
from feddiverse.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
_ENDS_AT_65535 = ("PNG", "PPM")  # formats whose values in Pillow's mode I have 16 bits
_MOST_PIXELS = 64_000_000
_LARGE = threading.Lock()
_BITS_PER_SAMPLE = 258  # TIFF's tag


class MappedPixels:
    """A raw uint8 array in a file, opened at first use and shared between processes by the operating system.

    It pickles as its path, so handing it to a worker copies no picture.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], offset: int) -> None:
        self.path, self.shape, self.offset = path, shape, offset
        self._array: NDArray[np.uint8] | None = None

    @classmethod
    def of_npy(cls, path: Path) -> "MappedPixels":
        """The array of an `.npy` file."""
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return cls(path, array.shape, array.offset)

    def __getitem__(self, rows: Ids) -> NDArray[np.uint8]:
        if self._array is None:
            self._array = np.memmap(self.path, np.uint8, "r", self.offset, self.shape)
        return np.asarray(self._array[rows])

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_array": None}


def decoded(root: Path, files: Sequence[str], size: int, resize: int = 0) -> tuple[MappedPixels, str]:
    """The pictures `files` below `root` as [n, 3, size, size], and the SHA-256 of their content; `resize`: see
    `decode`."""
    if not 8 <= size <= 4096:
        raise UserError(f"Pictures of {size} pixels a side cannot be used: choose an image size from 8 to 4096.")
    if resize and not size <= resize <= 4096:
        raise UserError(
            f"Pictures scaled to {resize} pixels a side have no middle of {size}: choose resize from {size} to 4096."
        )
    folder = cache.home() / "pictures"
    remembered = folder / f"{_stat_digest(root, files)}.sha256"
    content = _read_text(remembered) or _content(root, files)
    target = folder / (f"{content[:32]}-{size}-of-{resize}.npy" if resize else f"{content[:32]}-{size}.npy")
    if not _is_whole(target, len(files)):
        _decode(root, files, size, resize, target)
    if not remembered.is_file():
        with cache.partial() as scratch:
            (scratch / "content").write_text(content)
            os.replace(scratch / "content", remembered)
    return MappedPixels.of_npy(target), content


def decode(path: Path, size: int, resize: int = 0) -> NDArray[np.uint8]:
    """One picture as [3, size, size]: the largest square in its middle, scaled.

    With `resize`, as most code for Waterbirds does it: the whole picture is scaled to a square of that side (which may
    change its proportions), and the middle of that is cut out.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(path.read_bytes())) as picture, _room_for(picture, path):
            colours = _eight_bits(picture, path).convert("RGB")
            if resize:
                start = round((resize - size) / 2)
                scaled = colours.resize((resize, resize), Image.Resampling.BILINEAR)
                square = scaled.crop((start, start, start + size, start + size))
            else:
                square = ImageOps.fit(colours, (size, size), Image.Resampling.BICUBIC)
        return np.asarray(square, np.uint8).transpose(2, 0, 1)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} cannot be read as a picture ({type(error).__name__}).") from error


@contextlib.contextmanager
def _room_for(picture: "Image", path: Path) -> Iterator[None]:
    """Refuse what is too large, and decode one large picture at a time: a small file can hold a huge picture."""
    pixels = picture.width * picture.height
    if pixels > _MOST_PIXELS:
        raise UserError(f"{path} has {pixels:,} pixels: pictures of at most {_MOST_PIXELS:,} can be read; scale it.")
    with _LARGE if pixels > _MOST_PIXELS // 16 else contextlib.nullcontext():
        yield


def _eight_bits(picture: "Image", path: Path) -> "Image":
    """Greys of 12 or 16 bits scaled to 8: Pillow's own conversion cuts them off at 255, and turns them white."""
    from PIL import Image

    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in _ENDS_AT_65535):
        bits = getattr(picture, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))[0]
        return Image.fromarray((np.asarray(picture) >> (bits - 8)).astype(np.uint8))
    if picture.mode in ("I", "F"):
        raise UserError(f"{path} has greys of 32 bits or with a sign, whose white is unknown: save it with 8 or 16.")
    return picture


def _decode(root: Path, files: Sequence[str], size: int, resize: int, target: Path) -> None:
    with cache.partial() as scratch, (scratch / "pictures.npy").open("wb") as out:
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(files), 3, size, size)}
        np.lib.format.write_array_header_1_0(out, header)
        for picture in _each(files, "Decoding pictures", lambda name: decode(root / name, size, resize)):
            out.write(picture.tobytes())  # written in order: a full disk is an error here, not a crash in the map
        out.flush()
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(scratch / "pictures.npy", target)


def _content(root: Path, files: Sequence[str]) -> str:
    """SHA-256 over the SHA-256 of each file, in order."""
    digest = hashlib.sha256()
    for part in _each(files, "Checking pictures", lambda name: hashlib.sha256((root / name).read_bytes()).digest()):
        digest.update(part)
    return digest.hexdigest()


def _stat_digest(root: Path, files: Sequence[str]) -> str:
    """What tells at a glance that nothing changed: names, sizes, times of change."""
    digest = hashlib.sha256(str(root.resolve()).encode())
    for name in files:
        try:
            status = (root / name).stat()
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            raise UserError(f"The picture {root / name} is missing.") from error
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"The picture {root / name} is not a file: name a picture file in its place.")
        digest.update(f"\n{name} {status.st_size} {status.st_mtime_ns}".encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def _each(files: Sequence[str], what: str, work: Callable[[str], T]) -> Iterator[T]:
    """`work` of every file in order, on all cores (decoding and hashing release Python's lock), with a bar."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        batches = (files[i : i + 512] for i in range(0, len(files), 512))  # so that few results wait at a time
        results = (result for batch in batches for result in pool.map(work, batch))
        yield from track(
            results, what, total=len(files), console=console, transient=True, disable=not console.is_terminal
        )


def _is_whole(path: Path, num_pictures: int) -> bool:
    """Whether the array is there with every picture; a damaged one is decoded again."""
    try:
        return MappedPixels.of_npy(path).shape[0] == num_pictures
    except (OSError, ValueError, EOFError):
        return False


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
