"""A user's CSV as counts, and one clear sentence for each way it can be wrong."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddiverse.errors import UserError
from feddiverse.data.table import tally as read

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=4)


@given(st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=1, max_size=30))
def test_every_row_is_counted_whatever_names_are(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "samples.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("attribute", "client", "label"), *((a, k, y) for k, y, a in rows)])
    tally = read(path)
    counted = {
        (tally.clients[k], tally.classes[y], tally.attributes[a]): int(n)
        for (k, y, a), n in np.ndenumerate(tally.counts)
        if n
    }
    assert counted == Counter(rows)


def test_counts_are_added_up_and_names_sorted_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    path.write_text("\ufeffwhere;y;a;n\nnorth;10;red;3\n\nsouth;9;red;2\nnorth;10;red;4.0\nnorth;9;blue;0\n")
    tally = read(path, client="where", label="y", attribute="a", count="n")
    assert (tally.clients, tally.classes, tally.attributes) == (["north", "south"], ["9", "10"], ["blue", "red"])
    assert tally.counts.tolist() == [[[0, 0], [0, 7]], [[0, 2], [0, 0]]]


def test_a_label_with_two_signs_is_a_text(tmp_path: Path) -> None:
    path = tmp_path / "signs.csv"
    path.write_text("client,label,attribute\na,--5,10\na,7,-9\n")
    tally = read(path)
    assert (tally.classes, tally.attributes) == (["--5", "7"], ["-9", "10"])


HEADER = "client,label,attribute,count\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty: it needs a header"),
        (b"\n\n", "is empty: it needs a header"),
        (HEADER.encode(), "has a header but no rows"),
        (b"client,label,count\na,1,2\n", "has no column 'attribute'; its columns are client, label, count"),
        (HEADER.encode() + b"a,0,0,1\nb,0,0,-3\n", r"The count -3 in row 3 of .* \(client b\) is negative"),
        (HEADER.encode() + b"a,0,0,nan\n", r"The count 'nan' in row 2 of .* \(client a\) is not a whole number"),
        (HEADER.encode() + b"a,0,0,inf\n", "not a whole number"),
        (HEADER.encode() + b"a,0,0,1.5\n", "'1.5' .* not a whole number"),
        (HEADER.encode() + b"a,0,0,\n", "not a whole number"),
        (HEADER.encode() + b"a,0,0,1e300\n", "not a whole number"),
        (HEADER.encode() + b"a,0,0,9e15\n" * 1100, "add up to 9900000000000000000: at most"),
        (HEADER.encode() + b"a,0,0\n", "Row 2 of .* has 3 values where the header has 4"),
        (HEADER.encode() + b"a,,0,1\n", "Row 2 of .* has no value for 'label'"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "is not a CSV"),
        (HEADER.encode() + b'a,"0,0,1\n', "is not a CSV"),
    ],
)
def test_wrong_files_are_told_in_one_sentence(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "wrong.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        read(path, count="count")


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no file"):
        read(tmp_path / "missing.csv")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_a_column_of_paths_is_not_taken_for_an_attribute(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    rows = "\n".join(f"{i % 100},{i},{i}.png" for i in range(800))
    path.write_text(f"client,label,attribute\n{rows}\n")
    with pytest.raises(UserError, match="100 clients, 800 values of 'label' and 800 of 'attribute': too many"):
        read(path)
