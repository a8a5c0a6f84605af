"""What is worth committing of a study: `python -m benchmarks.keep STUDY RESULTS [--brief]`.

Its tables, and of every finished run what makes the tables again and lets another study take it over
(`feddiverse study … --reuse RESULTS`): never checkpoints. `--brief`: one line of numbers a run instead.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from feddiverse.experiment.study import copy_run

TABLES = ("*.md", "*.csv")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keep", description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--brief", action="store_true", help="numbers only, no run directories")
    given = parser.parse_args()
    keep(given.study, given.results, brief=given.brief)


def keep(study: Path, results: Path, *, brief: bool = False) -> None:
    """Copy what is worth keeping of the study directory into `results`."""
    results.mkdir(parents=True, exist_ok=True)
    for pattern in TABLES:
        for table in (study / "tables").glob(pattern):
            shutil.copy(table, results)
    done = sorted(path.parent for path in study.glob("runs/*/result.json"))
    if brief:
        commands = json.loads((study / "study.json").read_text())["commands"]
        content = {"commands": commands, "runs": [_numbers(run) for run in done]}
        (results / "runs.json").write_text(json.dumps(content, indent=1) + "\n")
        return
    shutil.copy(study / "study.json", results)
    for run in done:
        copy_run(run, results / "runs" / run.name)


def _numbers(run: Path) -> dict[str, Any]:
    result = json.loads((run / "result.json").read_text())
    shown = ("worst_group_accuracy", "accuracy", "rounds", "seconds", "theta_sha256")
    return {
        "run": run.name,
        **{key: result[key] for key in shown},
        "effective_clients": result["selection"]["effective_clients"],
        "config": result["config"],
    }


if __name__ == "__main__":
    main()
