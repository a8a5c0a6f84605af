"""Input that once escaped: each of these was a traceback, a hang or gigabytes, and is one sentence now."""

import contextlib
import io
import json
import os
import re
import resource
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from feddiverse import cli
from feddiverse.cli.console import SafeConsole
from feddiverse.data import pictures, table
from feddiverse.data.fetching import fetch
from feddiverse.errors import UserError
from feddiverse.files import safe_cell
from feddiverse.messages import Reply
from feddiverse.models import checkpoint, unpickling
from feddiverse.selection.fedpns import FedPNS
from feddiverse.splits import design

DIGITS = "9" * 4400
NESTED = "[" * 100_000
LONG = "x" * 260
OUT_OF_UTF8 = os.fsdecode(b"\xff\xfe")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that must not work says: one sentence of a user's mistake."""
    argv, sys.argv = sys.argv, ["feddiverse", *arguments]
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = argv
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert said.startswith("feddiverse: ")
    assert "Unexpected" not in said
    assert len(said) < 1100
    assert re.fullmatch(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f]*", said), "nothing a terminal would obey"
    return said


@pytest.mark.parametrize("content", [f"rounds = {DIGITS}\n", f"rounds = {NESTED}", "rounds = \xff"], ids=len)
@pytest.mark.parametrize("command", [("run", "--config"), ("study",)], ids=["run", "study"])
def test_toml_that_cannot_be_read(
    content: str, command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(content.encode("latin-1"))
    assert "is not valid TOML" in told(capsys, *command, str(file))


@pytest.mark.parametrize("content", ["a." * 60_000 + "a = 1", "x = {" + "a." * 60_000 + "a = 1}", "# long\n" * 60_000])
@pytest.mark.parametrize("command", [("run", "--config"), ("study",)], ids=["run", "study"])
def test_toml_that_would_take_minutes_or_all_memory_is_refused_at_once(
    content: str, command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(content)
    started = time.process_time()
    assert "more than" in told(capsys, *command, str(file))
    assert time.process_time() - started < 10


def test_a_file_without_end_is_no_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert "has more than 262,144 bytes" in told(capsys, "run", "--config", "/dev/zero")


@pytest.mark.parametrize("value", [DIGITS, NESTED], ids=["digits", "nested"])
def test_values_that_cannot_be_read(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Config key 'rounds' must be a whole number" in told(capsys, "run", "--set", f"rounds={value}")


@pytest.mark.parametrize("content", ['{"a": 1}', NESTED, '{"name": "quickstart", "runs": [{}]}', "{", '{"runs": NaN}'])
@pytest.mark.parametrize(
    "command", [("report",), ("study", "quickstart", "--dry-run", "--out")], ids=["report", "study"]
)
def test_a_damaged_study(
    content: str, command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.json").write_text(content)
    assert "study.json is damaged" in told(capsys, *command, str(tmp_path))


@pytest.mark.parametrize(
    "command",
    [("measure", LONG), ("measure", f"{LONG}.csv"), ("report", LONG), ("study", f"{LONG}.toml"),
     ("run", "--federation", f"{LONG}.csv"), ("run", "--rounds", "1", "--out", LONG),
     ("run", "--federation", "gsc:waterbirds", "--data-dir", LONG), ("run", "--rounds", "1", "--resume", LONG),
     ("run", "--rounds", "1", "--checkpoint", f"{LONG}.pt"), ("fetch", "mnist", "--from", LONG)],
    ids=lambda command: " ".join(command)[:30],
)  # fmt: skip
def test_names_that_are_too_long(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "xxx" in told(capsys, *command)


@pytest.mark.parametrize("command", [("run", "--rounds", "1", "--out"), ("study", "quickstart", "--out")], ids=len)
def test_a_folder_that_no_text_can_name_is_refused_before_the_work(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is no text in UTF-8" in told(capsys, *command, str(tmp_path / OUT_OF_UTF8))
    assert not list(tmp_path.iterdir())


def test_signs_of_mathematics_in_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    rows = ["client,class,attribute", r"$\bad{$,$\a$,b", "1,b,c", "2,$,b", "2,b,b"]
    file = tmp_path / r"a$\bad{$.csv"
    file.write_text("\n".join(rows))
    argv, sys.argv = sys.argv, ["feddiverse", "measure", str(file), "--plot", str(tmp_path / r"$\x{$.png")]
    try:
        with contextlib.suppress(SystemExit):
            cli.main()
    finally:
        sys.argv = argv
    assert (tmp_path / r"$\x{$.png").stat().st_size > 1000


def test_a_penalty_beyond_all_numbers_takes_all_of_a_chance() -> None:
    selector = FedPNS(fedpns_alpha=1e308, fedpns_beta=5.0)
    theta = np.zeros(2, np.float32)
    selector.choose(1, 5, dict.fromkeys(range(5), 1), lambda *_: iter(()), np.random.default_rng(0))
    vectors = {0: [1, 0], 1: [1, 0], 2: [1, 0], 3: [1, 0], 4: [-1, 0]}
    selector.observe(1, theta, [Reply(k, 1, np.array(v, np.float32), {"steps": 1.0}) for k, v in vectors.items()])
    assert selector.findings() == {"times_flagged": {"4": 1}}
    assert [chance for _, chance, *_ in selector.state()["clients"]] == [1.25, 1.25, 1.25, 1.25, 0.0]


def test_more_attributes_than_can_be_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--selector", "feddiverse", "--set", "num_attributes=100", "--out", str(tmp_path / "run"))
    assert "tells at most 13 attribute values apart, not 100" in told(capsys, "run", *settings)
    assert not (tmp_path / "run").exists()


# Weights.


def pt(path: Path, pickled: bytes) -> Path:
    """A file in PyTorch's format with this program in it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return path


def test_weights_that_take_for_ever_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of tuples within tuples, sixty deep: its hash takes 2⁶⁰ steps."""
    monkeypatch.setattr(unpickling, "SECONDS", 1)
    file = pt(tmp_path / "loop.pt", b"\x80\x02K\x01q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"}h\x00K\x01s.")
    assert file.stat().st_size < 1200
    with pytest.raises(UserError, match=r"loop.pt cannot be read safely .*: reading it takes more time or memory"):
        checkpoint.read(file)


def test_weights_that_would_fill_the_memory_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpickling, "ROOM", 1 << 30)
    file = tmp_path / "huge.pt"
    torch.save({"weight": torch.zeros(1).expand(2 * 10**9)}, file)
    assert file.stat().st_size < 2000
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with pytest.raises(UserError, match=r"huge.pt cannot be read safely"):
        checkpoint.read(file)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < max(before, 2 << 20), "kilobytes"


@pytest.mark.parametrize(
    "content", [b"root:x:0:0:root:/root:/bin/sh\n", b"", b"\x80\x02.", b"PK\x03\x04", b"\x80\x05K\x01."]
)
def test_files_that_are_no_weights(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "passwd").write_bytes(content)
    with pytest.raises(UserError, match=r"passwd cannot be read safely as a dictionary of tensors"):
        checkpoint.read(tmp_path / "passwd")


# Sizes.


def test_a_search_ends_however_many_clients_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(design, "MOST_VISITS", 50)
    found = design.search({"gci": 0.3, "csc": 0.4}, 5000, 50_000, 2, 2, np.random.default_rng(0))
    assert found.counts.sum() == 50_000


def test_a_table_of_too_many_cells_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"{k},{k},{k % 2}\n" for k in range(2500))
    (tmp_path / "wide.csv").write_text(f"client,class,attribute\n{rows}")
    with pytest.raises(UserError, match="2500 clients, 2500 classes and 2 attributes: too many"):
        table.tally(tmp_path / "wide.csv")


def test_a_line_without_end_is_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LONGEST_LINE", 1000)
    (tmp_path / "line.csv").write_text("client,class" + "," * 2000)
    with pytest.raises(UserError, match="is not a CSV"):
        table.tally(tmp_path / "line.csv")


def test_signs_that_no_text_has_are_in_no_table(tmp_path: Path) -> None:
    (tmp_path / "nul.csv").write_bytes(b"client,class,attribute\n\0,a,b\n1,b,c\n")
    with pytest.raises(UserError, match="is not a CSV"):
        table.tally(tmp_path / "nul.csv")


def test_an_unknown_key_beside_a_part_that_is_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Unknown key 'temperature'" in told(capsys, "run", "--set", "temperature=1", "--set", "selector=3")


def test_a_small_file_with_a_huge_picture_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    Image.new("1", (9000, 9000)).save(tmp_path / "huge.png")
    assert (tmp_path / "huge.png").stat().st_size < 100_000
    with pytest.raises(UserError, match="has 81,000,000 pixels: pictures of at most 64,000,000 can be read"):
        pictures.decode(tmp_path / "huge.png", 28)


# Archives and folders.


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("length", [5, 12, 60, 99])
@pytest.mark.parametrize("name", ["mnist", "waterbirds"])
def test_an_archive_cut_near_its_start(name: str, length: int, kind: Any, tmp_path: Path) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode=f"w:{kind}") as archive:
        member = tarfile.TarInfo("train-images-idx3-ubyte")
        member.size = 1000
        archive.addfile(member, io.BytesIO(np.random.default_rng(0).bytes(1000)))
    file = tmp_path / f"cut.tar.{kind}"
    file.write_bytes(whole.getvalue()[:length])
    with pytest.raises(
        UserError, match=r"cut.tar.* (is damaged or incomplete|is neither a folder)|was not found in what"
    ):
        fetch(name, lambda *_: None, file)


@pytest.mark.parametrize("name", ["mnist", "waterbirds", "spawrious"])
def test_links_out_of_a_folder_are_not_followed(name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"of someone else")
    folder = tmp_path / "given"
    place = {
        "mnist": "train-images-idx3-ubyte", "waterbirds": "waterbirds_v1.0/a.png",
        "spawrious": "spawrious224/0/beach/corgi/a.png",
    }[name]  # fmt: skip
    (folder / place).parent.mkdir(parents=True)
    (folder / place).symlink_to(secret)
    if name == "waterbirds":
        (folder / "waterbirds_v1.0/metadata.csv").write_text("img_id,img_filename,y,split,place,place_filename\n")
    with pytest.raises(UserError, match="is a link that leads out of"):
        fetch(name, lambda *_: None, folder)


# What is shown.


def test_names_cannot_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = io.StringIO()
    console = SafeConsole(file=shown, force_terminal=True, width=80)
    console.print("client \x1b[2Jred\x9b31m\x07", style="bold", markup=False, highlight=False)
    text = shown.getvalue()
    assert "client  [2Jred 31m" in text.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert text.count("\x1b") == 2, "of our own style"
    assert "\x9b" not in text
    assert "a [31mb" in told(capsys, "measure", "a\x1b[31mb")


@pytest.mark.parametrize("text", ["=1+1", " =1+1", "\t=1+1", "  @x", "-2", "\xa0+1"])
def test_what_a_spreadsheet_would_compute_is_quoted(text: str) -> None:
    assert safe_cell(text) == f"'{text}"
    assert safe_cell("a =1") == "a =1"


def test_numbers_that_are_none_are_no_json(tmp_path: Path) -> None:
    from feddiverse.experiment.run_directory import read_json

    (tmp_path / "result.json").write_text(json.dumps({"accuracy": float("nan")}))
    with pytest.raises(UserError, match=r"result.json is damaged \(it has a number that is NaN\)"):
        read_json(tmp_path / "result.json")
