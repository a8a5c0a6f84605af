"""A run at the paper's size, Waterbirds at 224 px, with decoding, evaluation and memory: `python -m benchmarks --only
photographs`.

The pictures are made up (noise, blurred, as JPEG), in the official layout, numbers and size: what they show does not
change the time. Four rounds are run, and 200 are reckoned from them.
"""

import csv
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.machine import describe
from benchmarks.peers.launch import launch

RESULT = Path(__file__).parent / "results" / "photographs.json"
COUNTS = {  # split → pictures of (class, place), as in the official set; 0 train, 1 validation, 2 test
    0: {(0, 0): 3498, (0, 1): 184, (1, 0): 56, (1, 1): 1057},
    1: {(0, 0): 467, (0, 1): 466, (1, 0): 133, (1, 1): 133},
    2: {(0, 0): 2255, (0, 1): 2255, (1, 0): 642, (1, 1): 642},
}
SIZE = (500, 375)  # most pictures of the birds it is made from
ROUNDS, EVALUATE_EVERY, ALL_ROUNDS = 4, 10, 200
LIMIT_MB = 4_000


def run(*, quick: bool = False) -> dict[str, Any]:
    """All figures, also written to `results/photographs.json`. `quick`: a hundredth of the pixels."""
    side, machine = 32 if quick else 224, describe()
    with tempfile.TemporaryDirectory(prefix="feddiverse-photographs-") as name:
        folder = Path(name)
        make_pictures(folder / "waterbirds", (50, 38) if quick else SIZE)
        command = [
            str(Path(sys.executable).parent / "feddiverse"), "run", "--federation", "waterbirds-dist",
            "--selector", "feddiverse", "--data-dir", str(folder / "waterbirds"), "--image-size", str(side),
            "--rounds", str(ROUNDS), "--set", f"evaluate_every={ROUNDS}", "--checkpoint", "none",
            "--out", str(folder / "run"),
        ]  # fmt: skip
        records = folder / "run" / "rounds.jsonl"
        env = {"FEDDIVERSE_HOME": str(folder / "cache")}  # so that pictures are decoded
        found = launch(command, records, ROUNDS, log=folder / "log.txt", env=env, with_memory=True)
        pretraining, first, plain, last = (json.loads(line)["seconds"] for line in records.read_text().splitlines())
    result = {
        "machine": machine,
        "side": side,
        "decoding_s": found.first_round_s - pretraining,
        "pretraining_s": pretraining,
        "estimating_s": first - plain,
        "round_s": plain,
        "evaluation_s": last - plain,
        "peak_mb": found.peak_mb,
        "peak_own_mb": found.peak_own_mb,
        "limit_mb": LIMIT_MB,
    }
    whole = found.first_round_s + result["estimating_s"] + (ALL_ROUNDS - 1) * plain
    result["whole_run_s"] = whole + ALL_ROUNDS / EVALUATE_EVERY * result["evaluation_s"]
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return result


def make_pictures(root: Path, size: tuple[int, int]) -> None:
    """A folder like the official one: metadata.csv and its JPEGs."""
    rng = np.random.default_rng(0)
    root.mkdir()
    with (root / "metadata.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["img_id", "img_filename", "y", "split", "place", "place_filename"])
        number = 0
        for split, groups in COUNTS.items():
            for (y, place), count in groups.items():
                for _ in range(count):
                    noise = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8))
                    noise.resize(size, Image.Resampling.BICUBIC).save(root / f"{number}.jpg", quality=90)
                    table.writerow([number, f"{number}.jpg", y, split, place, ""])
                    number += 1


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
