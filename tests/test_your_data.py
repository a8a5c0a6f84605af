"""docs/your-data.md, done as it says, from the table to the report."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "your-data.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def write_scans(folder: Path) -> None:
    """Rings and crosses on a light or dark ground, which the table does not mention."""
    rng = np.random.default_rng(0)
    (folder / "scans").mkdir()
    lines = ["image,class,client,split"]
    down, across = np.mgrid[-10:10, -10:10]
    for i in range(160):
        cross, dark, is_test = i % 2, int(rng.random() < 0.5), i >= 120
        shape = np.minimum(abs(down), abs(across)) < 2 if cross else abs(np.hypot(down, across) - 6) < 2
        picture = rng.normal(60 if dark else 190, 10, (20, 20)) + shape * (60 if dark else -60)
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(folder / "scans" / f"{i}.png")
        site = "" if is_test else ("north", "south")[dark] if rng.random() < 0.8 else "west"
        lines.append(f"scans/{i}.png,{'cross' if cross else 'round'},{site},{'test' if is_test else 'train'}")
    (folder / "scans.csv").write_text("\n".join(lines))


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    write_scans(tmp_path)
    shutil.copy(ROOT / "examples" / "hospitals.py", tmp_path)
    environment = {**os.environ, "FEDDIVERSE_HOME": str(tmp_path / "cache")}
    commands = [line for block in blocks("console") for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE)]
    said: dict[str, subprocess.CompletedProcess[str]] = {}
    for line in commands:
        program, *words = shlex.split(line)
        start = ["-m", "feddiverse"] if program == "feddiverse" else []
        said[line] = run([*start, *words], tmp_path, environment)
    assert "unknown" in said["feddiverse measure scans.csv --plot scans.png"].stdout
    assert (tmp_path / "scans.png").read_bytes().startswith(b"\x89PNG")

    result = json.loads((tmp_path / "runs/scans/result.json").read_text("utf-8"))
    assert set(result["selection"]["by_name"]) == {"north", "south", "west"}
    assert result["worst_group_accuracy"] is None
    trained = next(done for line, done in said.items() if "--out runs/scans" in line)
    assert "estimators assume 2 values" in trained.stderr
    assert "Worst-class accuracy" in trained.stdout
    assert "Who was asked how often" in (tmp_path / "runs/scans/report.html").read_text("utf-8")

    result = json.loads((tmp_path / "runs/patients/result.json").read_text("utf-8"))
    assert "village" in result["selection"]["by_name"]
    assert result["worst_class_accuracy"] > 0.75  # of 143 real tumours
    report = (tmp_path / "studies/compare-patients/report.html").read_text("utf-8")
    assert "Who was asked how often" in report
    assert "Where nobody labelled the groups" in report
    compared = next(done for line, done in said.items() if line.startswith("feddiverse compare"))
    assert "4 runs in studies/compare-patients, about " in compared.stderr
    assert all(method in compared.stdout for method in ("Uniform random", "pow-d", "FedDiverse, balanced"))

    held_out = json.loads((tmp_path / "runs/holdout/result.json").read_text("utf-8"))["held_out"]
    assert held_out["worst_client_name"] in ("city", "university", "coast", "hills")  # not the village of one patient
    assert (tmp_path / "discover/scans/index.html").is_file()

    printed = run(["-c", blocks("python")[0]], tmp_path, environment).stdout
    assert f"worst class {result['worst_class_accuracy']:.3f}" in printed  # the same run as the command's
    assert "village" in printed


def run(arguments: list[str], folder: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(arguments)}: {done.stderr}")
    return done
