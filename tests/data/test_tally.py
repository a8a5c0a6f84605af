"""A user's CSV as counts, and one clear sentence for each way it can be wrong."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddiverse.data.table import Columns
from feddiverse.data.table import tally as read
from feddiverse.errors import UserError

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=4)


@given(st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=1, max_size=30))
def test_every_row_is_counted_whatever_names_are(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "samples.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("attribute", "client", "label"), *((a, k, y) for k, y, a in rows)])
    tally = read(path)
    one = {a for _, _, a in rows}
    assert set(tally.attributes) == (one if len(one) > 1 else set())  # one value for all says nothing
    attributes = tally.attributes or list(one)
    counted = {
        (tally.clients[k], tally.classes[y], attributes[a]): int(n)
        for (k, y, a), n in np.ndenumerate(tally.counts)
        if n
    }
    assert counted == Counter(rows)


def test_counts_are_added_up_and_names_sorted_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    path.write_text("\ufeffwhere;y;a;n\nnorth;10;red;3\n\nsouth;9;red;2\nnorth;10;red;4.0\nnorth;9;blue;0\n")
    tally = read(path, Columns(client="where", label="y", attribute="a"), "n")
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
        (HEADER.encode(), "has a header but no training rows"),
        (b"client,count\na,2\n", "has no column 'class': it has client, count; name yours with --label"),
        (b"label,count\na,2\n", "has no column 'client': it has label, count; name yours with --client"),
        (b"client,label\na,2\n", "has no column 'count': it has client, label; name yours with --count"),
        (b"client,label,split,count\na,2,tset,1\n", "line 2: split is 'tset', but must be train, test or val"),
        (HEADER.encode() + b"a,0,0,1\nb,0,0,-3\n", "The count -3 in line 3 of .* is negative"),
        (HEADER.encode() + b"a,0,0,nan\n", "The count 'nan' in line 2 of .* is not a whole number"),
        (HEADER.encode() + b"a,0,0,inf\n", "not a whole number"),
        (HEADER.encode() + b"a,0,0,1.5\n", "'1.5' .* not a whole number"),
        (HEADER.encode() + b"a,0,0,\n", "not a whole number"),
        (HEADER.encode() + b"a,0,0,1e300\n", "not a whole number"),
        (HEADER.encode() + b"a,0,0,9e15\n" * 1100, "add up to 9900000000000000000: at most"),
        (HEADER.encode() + b"a,0,0\n", "line 2, has 3 values where the header has 4"),
        (HEADER.encode() + b"a,,0,1\n", "line 2: label is empty"),
        (HEADER.encode() + b"a,0,,1\na,0,1,1\n", "line 2: attribute is empty, while line 3 has one"),
        (HEADER.encode() + b"a,0,1,1\na,0,,1\n", "line 3: attribute is empty, while line 2 has one"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "is not a CSV"),
        (HEADER.encode() + b'a,"0,0,1\n', "is not a CSV"),
    ],
)
def test_wrong_files_are_told_in_one_sentence(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "wrong.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        read(path, None, "count")


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no file"):
        read(tmp_path / "missing.csv")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_a_column_of_paths_is_not_taken_for_an_attribute(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    rows = "\n".join(f"{i % 100},{i},{i}.png" for i in range(800))
    path.write_text(f"client,label,attribute\n{rows}\n")
    with pytest.raises(UserError, match="100 clients, 800 classes and 800 attributes: too many"):
        read(path)


@pytest.mark.parametrize("attribute", ["", ",attribute"])
def test_test_rows_need_no_client_and_training_rows_no_attribute(tmp_path: Path, attribute: str) -> None:
    path = tmp_path / "samples.csv"
    empty = attribute and ","
    rows = [f"a,ill,train{empty}", f"b,well,train{empty}", f"a,ill,train{empty}", f",ill,test{attribute and ',x'}"]
    path.write_text("\n".join([f"client,class,split{attribute}", *rows, f",ill,val{empty}"]))
    tally = read(path)
    assert (tally.clients, tally.classes, tally.attributes) == (["a", "b"], ["ill", "well"], [])
    assert tally.counts.tolist() == [[[2], [0]], [[0], [1]]]
