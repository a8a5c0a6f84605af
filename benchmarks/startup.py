"""How long a user waits before something happens: `python -m benchmarks.startup`.

Each command is launched in turn, several times. `--help` is to answer within 0.3 s, `measure` within 1 s; a run's first
round is timed with the peers (`peers/race.py`). Processor seconds stand beside wall seconds.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe

RESULT = Path(__file__).parent / "results" / "startup.json"
COMMANDS: dict[str, tuple[list[str], float | None]] = {  # arguments, the goal in seconds
    "feddiverse --help": (["--help"], 0.3),
    "feddiverse measure spawrious-gsc": (["measure", "spawrious-gsc"], 1.0),
    "feddiverse federations": (["federations"], 1.0),
}
TURNS = 7


def run(*, quick: bool = False) -> dict[str, Any]:
    """All figures, also written to `results/startup.json`."""
    feddiverse = str(Path(sys.executable).parent / "feddiverse")
    python = {"python -c pass": [sys.executable, "-c", "pass"]}  # the floor
    commands = python | {name: [feddiverse, *arguments] for name, (arguments, _) in COMMANDS.items()}
    wall: dict[str, list[float]] = {name: [] for name in commands}
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(2 if quick else TURNS + 1):
        for name, command in commands.items():
            before, start = os.times(), time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds, after = time.perf_counter() - start, os.times()
            if turn:  # the first turn reads the files from the disk
                wall[name].append(seconds)
                cpu[name].append(after[2] + after[3] - before[2] - before[3])
    result = {
        "machine": describe(),
        "commands": {
            name: {
                "seconds": statistics.median(wall[name]),
                "seconds_min": min(wall[name]),
                "seconds_max": max(wall[name]),
                "cpu_seconds": statistics.median(cpu[name]),
                "goal": COMMANDS[name][1] if name in COMMANDS else None,
            }
            for name in commands
        },
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    print(json.dumps(run(quick="--quick" in sys.argv), indent=1))
