"""A table of pictures in Spawrious's layout, trained on folder 0/ and tested on folder 1/.

    python -m benchmarks.by_folder FOLDER TABLE.csv --test 500

The source `spawrious` holds a tenth of each pair out at random. Where pictures of one folder share birds or scenes, as
composed ones do, a model would be tested on what it has seen: so the folders are kept apart, by a table that
`feddiverse run --federation gsc:table:TABLE.csv` takes.
"""

import argparse
import csv
import os
from collections.abc import Iterator
from pathlib import Path

PARTS = {"0": "train", "1": "test"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.by_folder", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="has 0/ and 1/, each with <attribute>/<class>/*.png")
    parser.add_argument("table", type=Path, help="the CSV to write")
    parser.add_argument("--test", type=int, default=500, help="test pictures of each pair, the first by name")
    given = parser.parse_args()
    rows = list(rows_of(given.folder, given.table.parent, given.test))
    if given.test < 1:
        raise SystemExit(f"--test is the number of test pictures of each pair, at least 1, not {given.test}.")
    for number, part in PARTS.items():
        if not any(row[-1] == part for row in rows):
            raise SystemExit(f"{given.folder} has no pictures in {number}/<attribute>/<class>/, the {part} part.")
    given.table.parent.mkdir(parents=True, exist_ok=True)
    with given.table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "class", "attribute", "split"])
        writer.writerows(rows)


def rows_of(folder: Path, beside: Path, num_test: int) -> Iterator[tuple[str, str, str, str]]:
    """(path from `beside`, class, attribute, part) of every picture that is used."""
    for part in PARTS:
        for pair in sorted((folder / part).glob("*/*/")):
            pictures = sorted(pair.glob("*.png"))
            for picture in pictures[:num_test] if PARTS[part] == "test" else pictures:
                yield os.path.relpath(picture, beside), pair.name, pair.parent.name, PARTS[part]


if __name__ == "__main__":
    main()
