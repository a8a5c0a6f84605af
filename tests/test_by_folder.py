"""A table of pictures in Spawrious's layout (`benchmarks.by_folder`): what is trained on is never tested."""

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feddiverse import federation

ROOT = Path(__file__).parent.parent


def make(folder: Path, count: int) -> None:
    """Each picture of a shade of its own: folder 0/ dark, folder 1/ light."""
    shade = 0
    for part in ("0", "1"):
        for location in ("beach", "snow"):
            for breed in ("dachshund", "labrador"):
                there = folder / part / location / breed
                there.mkdir(parents=True)
                for number in range(count):
                    shade = (shade + 1) % 100 + (100 if part == "1" else 0)
                    Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(there / f"{number:05}.png")


def test_one_folder_is_trained_on_the_other_tested(tmp_path: Path) -> None:
    make(tmp_path / "birds" / "spawrious224", 6)
    command = [sys.executable, "-m", "benchmarks.by_folder", tmp_path / "birds" / "spawrious224"]
    subprocess.run([*command, tmp_path / "birds.csv", "--test", "4"], check=True, cwd=ROOT)
    rows = list(csv.DictReader((tmp_path / "birds.csv").read_text().splitlines()))
    assert {(row["split"], row["image"].split("/")[2]) for row in rows} == {("train", "0"), ("test", "1")}
    assert sum(row["split"] == "test" for row in rows) == 4 * 4
    dealt = federation(f"iid(clients=2,samples=8):table:{tmp_path / 'birds.csv'}", image_size=8)
    assert dealt.source.class_names == ("dachshund", "labrador")
    assert dealt.source.attribute_names == ("beach", "snow")
    assert all(dealt.client(client).x.max() < 100 for client in range(2))
    assert dealt.test(0, 16).x.min() >= 100


@pytest.mark.parametrize(
    ("missing", "options", "complaint"),
    [("0", [], "no pictures in 0/"), ("1", [], "no pictures in 1/"), ("", ["--test", "-1"], "at least 1, not -1")],
)
def test_a_folder_that_will_not_do_is_told(tmp_path: Path, missing: str, options: list[str], complaint: str) -> None:
    make(tmp_path, 1)
    if missing:
        shutil.rmtree(tmp_path / missing)
    command = [sys.executable, "-m", "benchmarks.by_folder", tmp_path, tmp_path / "t.csv", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "t.csv").exists()
