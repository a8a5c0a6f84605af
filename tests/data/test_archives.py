"""Archives that are damaged or hostile are refused, and nothing of them gets out."""

import errno
import gzip
import io
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from feddiverse.data import archives
from feddiverse.errors import UserError


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for info, content in members:
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return path


def tar_with(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        fine = (tarfile.TarInfo("a.png"), b"fine")
        return tar_of(folder / "x.tgz", fine, (info, b"" if link or kind != tarfile.REGTYPE else b"evil"))

    return make


def zip_with(name: str, mode: int = 0, content: bytes = b"evil") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as out:
            out.writestr("a.png", b"fine")
            out.writestr(info, content, zipfile.ZIP_DEFLATED)
        return folder / "x.zip"

    return make


def lying_zip(folder: Path) -> Path:
    """A zip whose table promises a small file, but which unpacks to a large one."""
    path = zip_with("b.png", content=bytes(5 << 20))(folder)
    path.write_bytes(path.read_bytes().replace((5 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    return path


HOSTILE = {
    "tar up": tar_with("../evil.png"),
    "tar up inside": tar_with("x/../../evil.png"),
    "tar absolute": tar_with("/tmp/evil.png"),
    "tar link": tar_with("evil.png", tarfile.SYMTYPE, "/etc/passwd"),
    "tar hard link": tar_with("evil.png", tarfile.LNKTYPE, "../../secret"),
    "tar device": tar_with("evil.png", tarfile.CHRTYPE),
    "tar pipe": tar_with("evil.png", tarfile.FIFOTYPE),
    "tar windows": tar_with("C:\\evil.png"),
    "tar twice": tar_with("a.png"),
    "zip up": zip_with("../evil.png"),
    "zip absolute": zip_with("/tmp/evil.png"),
    "zip windows": zip_with("..\\evil.png"),
    "zip link": zip_with("evil.png", stat.S_IFLNK | 0o777),
    "zip bomb": zip_with("b.png", content=bytes(80 << 20)),
    "lying zip": lying_zip,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_refused(tmp_path: Path, kind: str) -> None:
    (made := tmp_path / "made").mkdir()
    target = tmp_path / "deep" / "er" / "target"
    target.mkdir(parents=True)
    archive = HOSTILE[kind](made)
    with pytest.raises(UserError, match=r"refused|damaged"):
        archives.extract_all(archive, target, suffixes={".png"}, limit_bytes=1 << 30, report=lambda *_: None)
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and made not in path.parents]
    assert all(target in path.parents and path.name != "evil.png" for path in outside)
    assert sum(path.stat().st_size for path in outside) < 2 << 20


def test_what_is_asked_for_is_taken(tmp_path: Path) -> None:
    members = [("set/0/a.png", b"one"), ("set/run.sh", b"no"), ("set/metadata.csv", b"y")]
    tar = tar_of(tmp_path / "x.tgz", *((tarfile.TarInfo(name), content) for name, content in members))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as out:
        for name, content in members:
            out.writestr(name, content)
    for archive in (tar, tmp_path / "x.zip"):
        target = tmp_path / f"{archive.name}.out"
        seen: list[int] = []
        archives.extract_all(
            archive, target, suffixes={".png", ".csv"}, limit_bytes=100, report=lambda _, n, __, s=seen: s.append(n)
        )
        found = {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*.*")}
        assert found == {"set/0/a.png": b"one", "set/metadata.csv": b"y"}
        assert seen == [3, 4]
        archives.extract_named(archive, tmp_path / f"{archive.name}.named", {"a.png": 3})
        assert [path.name for path in (tmp_path / f"{archive.name}.named").iterdir()] == ["a.png"]


def test_limits_hold(tmp_path: Path) -> None:
    tar = tar_of(tmp_path / "x.tgz", (tarfile.TarInfo("a.png"), bytes(1000)), (tarfile.TarInfo("b.png"), bytes(1000)))
    with pytest.raises(UserError, match="more than 500 bytes"):
        archives.extract_named(tar, tmp_path / "named", {"a.png": 500})
    with pytest.raises(UserError, match="more than"):
        archives.extract_all(tar, tmp_path / "all", suffixes={".png"}, limit_bytes=1500, report=lambda *_: None)
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(10 << 20)))
    with pytest.raises(UserError, match="more than 1000 bytes"):
        archives.gunzip(tmp_path / "x.gz", tmp_path / "x", 1000)


def zip_with_a_name_in_no_alphabet(folder: Path) -> Path:
    path = zip_with("\u00e4.png")(folder)
    path.write_bytes(path.read_bytes().replace("\u00e4".encode(), b"\xff\xff"))
    return path


def bz2_that_was_altered(folder: Path) -> Path:
    (folder / "noise.png").write_bytes(np.random.default_rng(0).bytes(1 << 20))  # longer than one block of bz2
    path = Path(shutil.make_archive(str(folder / "x"), "bztar", folder, "noise.png"))
    whole = bytearray(path.read_bytes())
    whole[-5000:-4000] = bytes(1000)
    path.write_bytes(whole)
    return path


@pytest.mark.parametrize(
    "make",
    [tar_with("long" * 75 + ".png"), tar_with("a.png/b/c.png"), zip_with_a_name_in_no_alphabet, bz2_that_was_altered],
)
def test_what_no_disk_or_library_bears_is_told_as_damage(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with pytest.raises(UserError, match="damaged"):
        archives.extract_all(
            make(tmp_path), tmp_path / "out", suffixes={".png"}, limit_bytes=1 << 30, report=lambda *_: None
        )


def test_a_full_disk_is_not_the_archives_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archives, "copy", full)
    with pytest.raises(OSError, match="No space left"):
        archives.extract_named(tar_with("b.png")(tmp_path), tmp_path / "out", {"b.png": 100})


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.04, 0.4, 0.9])
@pytest.mark.parametrize("kind", ["tgz", "zip"])
def test_truncated_archives_are_refused(tmp_path: Path, kind: str, keep: float) -> None:
    noise = np.random.default_rng(0).bytes(5000)
    archive = zip_with("noise.png", content=noise)(tmp_path)
    if kind == "tgz":
        archive = tar_of(tmp_path / "x.tgz", (tarfile.TarInfo("noise.png"), noise))
    archive.write_bytes(archive.read_bytes()[: int(keep * archive.stat().st_size)])
    with pytest.raises(UserError, match="damaged"):
        archives.extract_named(archive, tmp_path / "out", {"noise.png": 10_000})


def test_a_truncated_or_altered_gzip_file_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(np.random.default_rng(0).bytes(5000))
    for number, content in enumerate((whole[:2000], whole[:3000] + b"xx" + whole[3002:], b"no gzip file")):
        (tmp_path / f"{number}.gz").write_bytes(content)
        with pytest.raises(UserError, match="damaged"):
            archives.gunzip(tmp_path / f"{number}.gz", tmp_path / f"{number}", 10_000)


@pytest.mark.parametrize("kind", ["tar", "gztar", "bztar", "xztar"])
def test_a_tar_cut_short_anywhere_is_refused(kind: str, tmp_path: Path) -> None:
    """tarfile takes a header cut short, or a compressed stream that just stops, for the end of the archive."""
    inside = tmp_path / "inside"
    inside.mkdir()
    for number in range(4):
        (inside / f"{number}.png").write_bytes(bytes(np.random.default_rng(number).integers(0, 256, 700, np.uint8)))
    packed = Path(shutil.make_archive(str(tmp_path / "packed"), kind, inside))
    content = packed.read_bytes()
    limits = {"suffixes": {".png"}, "limit_bytes": 1 << 20, "report": lambda *_: None}
    archives.extract_all(packed, tmp_path / "whole", **limits)
    assert len(list((tmp_path / "whole").iterdir())) == 4
    last_picture = content.rstrip(b"\0") if kind == "tar" else content  # a plain tar's padding may be cut
    for number, length in enumerate(range(600, len(last_picture) - 1, 97)):
        packed.write_bytes(content[:length])
        with pytest.raises(UserError, match="damaged or incomplete"):
            archives.extract_all(packed, tmp_path / f"cut{number}", **limits)
