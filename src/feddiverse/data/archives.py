"""Taking files out of archives that may be damaged or hostile.

Only plain files are taken, only below the folder they are meant for, and never more bytes than announced beforehand:
absolute paths, `..`, links, devices and decompression bombs are refused, and a refusal ends the extraction.
"""

import bz2
import errno
import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Protocol, cast

from feddiverse.errors import UserError

Report = Callable[[str, int, int | None], None]
"""`report(what, done, total)`: what is being done, bytes done so far, bytes in all if known."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


_CHUNK = 1 << 20
_LARGEST_RATIO = 50  # pictures hardly shrink, idx files fivefold; beyond this it is a bomb
_DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, NotImplementedError
)  # fmt: skip
_OUR_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)  # no fault of the archive


def is_archive(path: Path) -> bool:
    """Whether it is one, be it damaged: what is wrong with it is told when it is read."""
    if not path.is_file():
        return False
    try:
        return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)
    except _DAMAGED:  # it begins as one
        return True


def extract_named(archive: Path, folder: Path, sizes: dict[str, int]) -> None:
    """Take the files whose last name is in `sizes`, wherever in the archive they lie, up to these sizes."""
    with _reading(archive):
        for name, stream in _members(archive):
            wanted = sizes.get(name.name)
            if wanted is not None:
                copy(stream, folder / name.name, wanted)


def extract_all(archive: Path, folder: Path, *, suffixes: Collection[str], limit_bytes: int, report: Report) -> None:
    """Take every file with one of these suffixes, keeping its path below `folder`, `limit_bytes` at most in all."""
    done = 0
    with _reading(archive):
        for name, stream in _members(archive):
            if name.suffix.lower() in suffixes:
                done += copy(stream, folder.joinpath(*name.parts), limit_bytes - done)
                report(f"Unpacking {archive.name}", done, None)


def gunzip(packed: Path, target: Path, limit_bytes: int) -> None:
    """Unpack one gzip file, `limit_bytes` at most."""
    with _reading(packed), gzip.open(packed) as stream:
        copy(stream, target, limit_bytes)


def copy(stream: Readable, target: Path, limit_bytes: int) -> int:
    """Copy a stream into a new file; a stream that does not end within the limit is refused."""
    target.parent.mkdir(parents=True, exist_ok=True)
    done = 0
    with target.open("xb") as out:
        while chunk := stream.read(_CHUNK):
            done += len(chunk)
            if done > limit_bytes:
                raise UserError(f"An archive was refused: {target.name} holds more than {limit_bytes} bytes.")
            out.write(chunk)
    return done


@contextmanager
def _reading(archive: Path) -> Iterator[None]:
    """Say in one sentence what the libraries say of a damaged archive in words of their own."""
    try:
        yield
    except FileExistsError as error:
        raise UserError(f"The archive {archive.name} was refused: it holds a file twice.") from error
    except _DAMAGED as error:
        if getattr(error, "errno", None) in _OUR_DISK:
            raise
        raise UserError(f"The archive {archive.name} is damaged or incomplete ({error}).") from error


def _members(archive: Path) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Plain files with their safe relative names; anything else but folders is refused."""
    total = 0
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if info.is_dir():
                    continue
                kind = stat.S_IFMT(info.external_attr >> 16)
                name = _safe(archive, info.filename, kind in (0, stat.S_IFREG) and not info.flag_bits & 1)
                total = _add(archive, total, info.file_size)
                with packed.open(info) as stream:
                    yield name, stream
        return
    with _open(archive) as stream:
        tail = _Tail(stream)
        with tarfile.open(fileobj=tail, mode="r|") as packed_tar:  # type: ignore[call-overload]  # it only reads
            for member in packed_tar:  # as a stream: nothing is trusted before it is reached
                if member.isdir():
                    continue
                name = _safe(archive, member.name, member.isreg())
                total = _add(archive, total, member.size)
                content = packed_tar.extractfile(member)
                assert content is not None  # it is a regular file
                with content:
                    yield name, content
        while chunk := tail.read(_CHUNK):
            total = _add(archive, total, len(chunk))
        if any(tail.last):
            raise tarfile.ReadError("it ends too early")


class _Tail:
    """Remembers the last block read. tarfile takes a header cut short for the end of the archive; a whole archive
    ends in blocks of zeros."""

    def __init__(self, stream: Readable) -> None:
        self.stream, self.last = stream, b"?"

    def read(self, size: int, /) -> bytes:
        chunk = self.stream.read(size)
        if chunk:
            self.last = (self.last + chunk)[-tarfile.BLOCKSIZE :]
        return chunk


def _open(archive: Path) -> IO[bytes]:
    """The tar file inside, whose decompressor tells when its own end is missing."""
    with archive.open("rb") as stream:
        start = stream.read(6)
    for magic, opener in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open)):
        if start.startswith(magic):
            return cast(IO[bytes], opener(archive))
    return archive.open("rb")


def _safe(archive: Path, name: str, is_plain: bool) -> PurePosixPath:
    path = PurePosixPath(name)
    inside = name and "\\" not in name and ":" not in name and "\0" not in name
    if not (is_plain and inside and not path.is_absolute() and ".." not in path.parts):
        raise UserError(f"The archive {archive.name} was refused: it holds {name!r}, which is no plain file inside it.")
    return path


def _add(archive: Path, total: int, size: int) -> int:
    if total + size > _LARGEST_RATIO * archive.stat().st_size + _CHUNK:
        raise UserError(
            f"The archive {archive.name} was refused: it swells to more than {_LARGEST_RATIO} times its size."
        )
    return total + size
