"""The user's own table of pictures."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from small_photos import save_picture

from feddiverse.data import open_federation
from feddiverse.data.federation import Federation
from feddiverse.errors import UserError

Row = dict[str, str | int]


def write(tmp_path: Path, rows: Sequence[Row]) -> Path:
    path = tmp_path / "my pictures.csv"
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return path


def rows_of(tmp_path: Path, count: int = 24) -> list[Row]:
    """Pictures whose red is their row; classes alternate, attributes change every two."""
    rows: list[Row] = []
    for i in range(count):
        save_picture(tmp_path / "pics" / f"{i}.png", (i, 0, 0), (8, 8))
        rows.append({"image": f"pics/{i}.png", "class": "ab"[i % 2], "attribute": ("sun", "rain")[i // 2 % 2]})
    return rows


def red(federation: Federation, k: int) -> list[int]:
    return sorted(federation.client(k).x[:, 0, 0, 0].tolist())


def test_the_tables_own_federation(home: Path, tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    for i, row in enumerate(rows):
        row |= {"client": f"{(2, 10, 9)[i % 3]}", "split": "test" if i >= 20 else "val" if i == 19 else "train"}
        if i >= 19:
            row["client"] = ""
    federation = open_federation(f"table:{write(tmp_path, rows)}", 0, image_size=8)
    assert federation.source.class_names == ("a", "b")
    assert federation.source.attribute_names == ("rain", "sun")
    assert federation.num_selected == federation.num_clients == 3
    # Clients are in the order of their numbers: 2, 9, 10.
    assert [red(federation, k) for k in range(3)] == [[*range(0, 19, 3)], [*range(2, 19, 3)], [*range(1, 19, 3)]]
    for k in range(3):
        samples = federation.client(k)
        seen = np.zeros((2, 2), np.int64)
        for i in samples.x[:, 0, 0, 0].tolist():
            seen[i % 2, 1 - i // 2 % 2] += 1
        assert (federation.counts[k] == seen).all()
        assert (samples.y == samples.x[:, 0, 0, 0] % 2).all()
    assert federation.test().x[:, 0, 0, 0].tolist() == [20, 21, 22, 23]


def test_without_clients_any_split_deals_and_a_tenth_is_held_out(home: Path, tmp_path: Path) -> None:
    path = write(tmp_path, rows_of(tmp_path, 80))
    federation = open_federation(f"iid(clients=3,samples=60):table:{path}", 0, image_size=8)
    assert federation.counts.sum() == 60
    trained = [i for k in range(3) for i in red(federation, k)]
    tested = federation.test().x[:, 0, 0, 0].tolist()
    assert len(set(trained)) == 60
    assert len(tested) == 8
    assert not set(trained) & set(tested)
    with pytest.raises(UserError, match="no column 'client': deal it to clients by a split"):
        open_federation(f"table:{path}", 0)
    with pytest.raises(UserError, match=r"has 2 classes and 2 attributes, but the split has 4 classes"):
        open_federation(f"4:table:{path}", 0)


def test_spaces_around_values_make_no_further_class(home: Path, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, 8)
    for i, row in enumerate(rows):
        row |= {"client": "1", "split": "test" if i >= 4 else "train"}
    spaced = [{key: f" {value}\t" if i % 3 else value for key, value in row.items()} for i, row in enumerate(rows)]
    federation = open_federation(f"table:{write(tmp_path, spaced)}", 0, image_size=8)
    assert federation.source.class_names == ("a", "b")
    assert federation.source.attribute_names == ("rain", "sun")
    assert red(federation, 0) == [0, 1, 2, 3]
    assert federation.test().x[:, 0, 0, 0].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("again", ["pics/0.png", "./pics/../pics//0.png", "absolute"])
def test_a_picture_listed_twice_is_refused(home: Path, tmp_path: Path, again: str) -> None:
    rows = rows_of(tmp_path, 4)
    image = str(tmp_path / "pics" / "0.png") if again == "absolute" else again
    path = write(tmp_path, [*rows, {**rows[0], "image": image}])
    with pytest.raises(UserError, match=r"lists the picture .*0\.png twice, in lines 2 and 6"):
        open_federation(f"iid(clients=1,samples=2):table:{path}", 0, image_size=8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty: it needs a header"),
        ("client,class\nx,a\n", "has no column 'image': it has client, class; name yours with --image"),
        ("image,client\nx.png,a\n", "has no column 'class': it has image, client; name yours with --label"),
        ("image,class,client,class\nx.png,a,k,a\n", "has two columns 'class'"),
        ("image,class,attribute\n", "holds no samples"),
        ("image,class,attribute\nx.png,a,sun\ny.png,a,\n", "line 3: attribute is empty, while other rows have one"),
        ("image,class,attribute,split\nx.png,a,,train\ny.png,a,u,test\nz.png,a,,test\n", "line 4: attribute is empty"),
        ("image,class\nx.png,\n", "line 2: class is empty"),
        ("image,class,client,split\nx.png,a,k,train\ny.png,b,k,test\n", "the class 'b' among its test rows only"),
        ("image,class,client\nx.png,a,k\n", "a tenth of each group is held out, so list more samples"),
        ("image,class,attribute,client\nx.png,a,b,\n", "line 2: client is empty"),
        ("image,class,attribute\nx.png,a,b,c\n", "line 2, has 4 values where the header has 3"),
        ("image,class,attribute,split\nx.png,a,b,trian\n", "split is 'trian'"),
        ("image,class,attribute,split\nx.png,a,b,train\n", "to train on and to test on"),
        ('image,class,attribute\n"x.png,a,b\n', "is not a CSV"),
        ("image,class,attribute,split,client\nx.png,a,b,train,1\ny.png,a,b,test,\n", r"picture .*x\.png is missing"),
    ],
)
def test_tables_with_mistakes_are_refused_in_one_sentence(home: Path, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        open_federation(f"table:{path}", 0)


def test_a_table_must_be_there(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no file .*none\.csv"):
        open_federation(f"table:{tmp_path / 'none.csv'}", 0)
    with pytest.raises(UserError, match="needs the path"):
        open_federation("table:", 0)
    for name in ("table:~nosuchuser/x.csv", "gsc:table:~nosuchuser/x.csv"):
        with pytest.raises(UserError, match=r"no home folder for ~nosuchuser/x\.csv"):
            open_federation(name, 0)


def test_nobody_knows_the_attributes(home: Path, tmp_path: Path) -> None:
    rows = [{**row, "client": f"site {i % 2}"} for i, row in enumerate(rows_of(tmp_path))]
    for row in rows:
        del row["attribute"]
    federation = open_federation(f"{write(tmp_path, rows)}", 0, image_size=8)  # the path alone will do
    assert not federation.attributes_known
    assert federation.counts.shape == (2, 2, 1)
    assert federation.client(0).a is None
    assert federation.source.attribute_names == ()
    with pytest.raises(UserError, match="no split can deal it by attribute: name the clients in a column 'client'"):
        open_federation(f"gsc:table:{write(tmp_path, rows)}", 0, image_size=8)


@pytest.mark.parametrize("value", ["", "?"])
def test_a_column_with_nothing_in_it_or_one_value_for_all_is_no_attribute(
    home: Path, tmp_path: Path, value: str
) -> None:
    rows = [{**row, "attribute": value, "client": "here"} for row in rows_of(tmp_path)]
    federation = open_federation(f"table:{write(tmp_path, rows)}", 0, image_size=8)
    assert not federation.attributes_known
    assert federation.num_attributes == 1


def test_test_rows_alone_may_have_attributes(home: Path, tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    for i, row in enumerate(rows):
        row |= {"client": "k", "split": "test" if i >= 16 else "train"}
        if i < 16:
            row["attribute"] = ""
    federation = open_federation(f"table:{write(tmp_path, rows)}", 0, image_size=8)
    assert not federation.attributes_known
    assert federation.source.attribute_names == ("rain", "sun")
    assert federation.test().a.tolist() == [1, 1, 0, 0] * 2
    assert federation.client(0).a is None


NUMBERS = "line,weight,who,ward,part\n1,70,ill,east,train\n3,80,well,east,train\n5,60,ill,west,train\n9,95,well,,test\n"
THEIRS = "label=who,client=ward,split=part"


def test_a_table_of_numbers_under_other_names(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "patients.tsv"
    path.write_text(NUMBERS.replace(",", "\t"))
    federation = open_federation(str(path), 0, columns=THEIRS, features="line, weight")
    assert federation.names == ("east", "west")
    assert federation.source.shape == (2,)
    known = np.array([[1, 70], [3, 80], [5, 60]], np.float64)
    spread = (known - known.mean(axis=0)) / known.std(axis=0)  # by training rows alone
    assert np.allclose(federation.client(0).x, spread[:2], atol=1e-6)
    assert np.allclose(federation.client(1).x, spread[2:], atol=1e-6)
    assert np.allclose(federation.test().x, (np.array([9, 95]) - known.mean(axis=0)) / known.std(axis=0), atol=1e-6)


@pytest.mark.parametrize(
    ("text", "columns", "features", "said"),
    [
        (NUMBERS, "label=who", "line,height", "has no column 'height': .* name yours with --features"),
        (NUMBERS, "label=who,client=site", "line", "has no column 'site': .* name yours with --client"),
        (NUMBERS, "label=who,attribute=sex", "line", "has no column 'sex': .* name yours with --attribute"),
        (NUMBERS, "label=who,split=fold", "line", "has no column 'fold': .* name yours with --split"),
        (NUMBERS, "label=who,client=who", "line", "'who' cannot be both --label and --client"),
        (NUMBERS, "label=who,client=ward,split=part", "who", "'who' cannot be both --label and --features"),
        (NUMBERS, "label=who,owner=ward", "line", "'owner=ward' in the config key 'columns' is not of the form"),
        (NUMBERS.replace("60", "sixty"), THEIRS, "weight", "line 4: weight is 'sixty', which is not a number"),
        (NUMBERS.replace("60", "inf"), THEIRS, "weight", "line 4: weight is 'inf', which is not a number"),
        (NUMBERS.replace("60", ""), THEIRS, "weight", "line 4: weight is empty"),
    ],
)
def test_wrong_columns_and_numbers_are_told(
    home: Path, tmp_path: Path, text: str, columns: str, features: str, said: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        open_federation(f"table:{path}", 0, columns=columns, features=features)
