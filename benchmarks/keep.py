"""What is worth committing of a study: `python -m benchmarks.keep STUDY RESULTS`.

Its tables, and `study.jsonl.gz`: all finished runs in one small file, from which `feddiverse report RESULTS` makes the
tables again and `feddiverse study … --reuse RESULTS` takes runs over. STUDY may also be a single run's directory.
"""

import argparse
from pathlib import Path
from typing import Any

from feddiverse import files
from feddiverse.experiment import finished, packed
from feddiverse.experiment.run_directory import read_json
from feddiverse.report import tables
from feddiverse.report.results import load
from feddiverse.report.table import to_csv, to_markdown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keep", description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("results", type=Path)
    given = parser.parse_args()
    keep(given.study, given.results)


def keep(study: Path, results: Path) -> None:
    """Put what is worth keeping of a study directory, or of a run's, into `results`."""
    results.mkdir(parents=True, exist_ok=True)
    about = _without_place(read_json(study / "study.json") or {}, study, results.name)
    runs = [finished.read(path) for path in finished.find(study)]
    packed.write(results, about, runs)
    if not about:
        return
    for table in tables.all_tables(load(results)):  # of what was kept, which rounds seconds
        if not table.name.startswith("asked"):  # whom each round asked is in the file
            files.write(results / f"{table.name}.md", to_markdown(table).encode())
            files.write(results / f"{table.name}.csv", to_csv(table).encode())


def _without_place(about: dict[str, Any], study: Path, name: str) -> dict[str, Any]:
    """Commands that say where the study lay on this machine say studies/NAME instead."""
    place = str(study.absolute())
    return {
        key: [command.replace(place, f"studies/{name}") for command in value] if key == "commands" else value
        for key, value in about.items()
    }


if __name__ == "__main__":
    main()
