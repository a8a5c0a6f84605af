"""`fd.discover`: the hidden attribute of every sample, held against the truth afterwards; and what it writes."""

import base64
import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import feddiverse as fd
from feddiverse.experiment.discovery import Discovery, folder_of

HOSTILE = '<script>alert("x")</script>'


@pytest.fixture(scope="module")
def digits() -> Discovery:
    return fd.discover("digits-gsc", workers=1, device="cpu")


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def share_right(found: Discovery, truth: np.ndarray) -> float:
    """Under the better of the two namings of two values."""
    right = float((found.attributes == truth).mean())
    return max(right, 1 - right)


def true_attributes(federation: fd.Federation) -> np.ndarray:
    return np.concatenate([federation.client_a[k] for k in range(federation.num_clients)])


@pytest.mark.parametrize("name", ["digits-gsc", "dist:digits"])
def test_colours_of_digits_are_found(name: str, digits: Discovery) -> None:
    found = digits if name == "digits-gsc" else fd.discover(name, workers=1, device="cpu")
    truth = true_attributes(fd.federation(name))
    assert found.seen
    assert share_right(found, truth) >= 0.95
    assert found.evaluation_only["attribute_accuracy"] == pytest.approx(share_right(found, truth))
    assert found.strength is not None
    assert found.strength > 1.6
    assert "Clients differ in one hidden attribute" in found.headline
    assert repr(found) == f"Discovery({name}: {found.headline})"  # not its arrays
    true = fd.measure(fd.counts_of(name))
    assert found.metrics["gsc"] == pytest.approx(true.gsc, abs=0.05)
    assert found.metrics["csc"] == pytest.approx(true.csc, abs=0.05)


def test_labels_of_the_attribute_are_not_used(digits: Discovery) -> None:
    """The same pictures without attributes: the same answer, and no comparison with a truth that nobody knows."""
    federation = fd.federation("digits-gsc")
    clients = [federation.client(k) for k in range(federation.num_clients)]
    owner = np.repeat(np.arange(len(clients)), [len(c) for c in clients])
    unlabelled = fd.Federation.from_arrays(
        np.concatenate([c.x for c in clients]), np.concatenate([c.y for c in clients]), owner,
        mean=federation.source.mean, std=federation.source.std,
    )  # fmt: skip
    found = fd.discover(unlabelled, workers=1, device="cpu")
    assert not unlabelled.attributes_known
    assert found.strength == pytest.approx(digits.strength, rel=1e-6)
    assert found.counts.tolist() == digits.counts.tolist()
    assert found.evaluation_only == {}
    assert "evaluation_only" not in found.report()


def test_where_clients_do_not_differ_nothing_is_claimed(tmp_path: Path) -> None:
    found = fd.discover("iid(clients=8,samples=800):digits", workers=1, device="cpu")
    assert not found.seen
    assert "No hidden attribute is seen" in found.headline
    assert not found.confidence.any()
    assert [name for name, value in found.metrics.items() if value is None] == ["gai", "gsc", "cai", "csc"]
    page = (found.save(tmp_path) / "index.html").read_text()
    assert "No hidden attribute is seen" in page
    assert "<img" not in page
    rows = table(tmp_path / "attributes.csv")
    assert len(rows) == 800
    assert {(row["attribute"], row["confidence"]) for row in rows} == {("", "")}
    report = json.loads((tmp_path / "discovery.json").read_text())
    assert (report["seen"], report["separation"], report["attributes"]) == (False, None, [])


def test_one_client_cannot_be_compared() -> None:
    found = fd.discover("iid(clients=1,samples=60):digits", workers=1, device="cpu")
    assert not found.seen
    assert "too few" in found.headline


def test_what_is_written_agrees(digits: Discovery, tmp_path: Path) -> None:
    folder = digits.save(tmp_path / "made" / "here")
    rows = table(folder / "attributes.csv")
    assert list(rows[0]) == ["sample", "client", "class", "attribute", "confidence"]
    assert len(rows) == sum(fd.federation("digits-gsc").sizes.values())
    report = json.loads((folder / "discovery.json").read_text())
    for k, client in enumerate(report["clients"]):
        counted = [
            [
                sum((r["client"], r["class"], r["attribute"]) == (str(k), y, a) for r in rows)
                for a in report["attributes"]
            ]
            for y in report["classes"]
        ]
        assert client["counts"] == counted
    sure = np.mean([float(row["confidence"]) >= 0.9 for row in rows])
    assert report["confident_share"] == pytest.approx(sure, abs=1e-3)
    assert report["settings"]["federation"] == "digits-gsc"
    assert report["evaluation_only"]["attribute_accuracy"] > 0.95


def test_strips_show_the_colour(digits: Discovery, tmp_path: Path) -> None:
    """What a person sees: one end of every strip is red, the other green, on small exact pictures."""
    page = (digits.save(tmp_path) / "index.html").read_text()
    strips = re.findall(r'<ul class="strip">(.*?)</ul>', page, re.DOTALL)
    assert len(strips) == 2
    colours = []
    for strip in strips:
        pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', strip)
        assert len(pictures) == 12
        shown = [np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")) for text in pictures]
        colours.append([int(picture.sum(axis=(0, 1)).argmax()) for picture in shown])
    for row in colours:
        assert len(set(row[:6])) == len(set(row[6:])) == 1
        assert row[0] != row[-1]
    assert colours[0] == colours[1]
    assert "http://" not in page
    assert "https://" not in page
    without = (digits.save(tmp_path, pictures=False) / "index.html").read_text()
    assert "<img" not in without


def rows_of_numbers(names: list[str], seed: int = 0) -> tuple[fd.Federation, np.ndarray]:
    """Column 3 of 6 hides an attribute of which clients have more and less; column 0 tells the class."""
    rng = np.random.default_rng(seed)
    n = 150
    owner = np.repeat(names, n)
    y = rng.integers(0, 2, len(owner))
    shares = np.repeat(np.linspace(0.1, 0.9, len(names)), n)
    a = (rng.random(len(owner)) < shares).astype(np.int64)
    x = rng.standard_normal((len(owner), 6)).astype(np.float32)
    x[:, 0] += 4 * y
    x[:, 3] += 6 * a
    order = np.lexsort((y, np.searchsorted(np.sort(names), owner)))
    classes = np.where(y == 0, "=2+3", "ill")
    return fd.Federation.from_arrays(x, classes, owner), a[order]


def test_rows_of_numbers_and_names_from_outside(tmp_path: Path) -> None:
    names = ["+north", HOSTILE, "b", "c", "d", "e"]
    federation, _ = rows_of_numbers(names)
    found = fd.discover(federation, workers=1, device="cpu")
    assert found.seen
    read = np.concatenate([federation.client(k).x[:, 3] for k in range(6)]) > 3
    assert share_right(found, read) >= 0.98
    page = (found.save(tmp_path) / "index.html").read_text()
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert all(name in page for name in ("+north", ">b<", ">e<"))
    first_row = re.search(r"<tbody>\s*<tr>(.*?)</tr>", page, re.DOTALL)
    assert first_row is not None
    column, low, high, apart = re.findall(r">([^<>]+)</t[hd]>", first_row.group(1))
    assert column == "column 3"
    assert sorted((float(low), float(high))) == pytest.approx([0, 6], abs=0.2)
    assert float(apart) == pytest.approx(6, abs=0.3)
    rows = table(tmp_path / "attributes.csv")
    assert len(rows) == 900
    assert {row["client"] for row in rows} == {"'+north", HOSTILE, "b", "c", "d", "e"}
    assert {row["class"] for row in rows} == {"'=2+3", "ill"}


def test_a_table_of_pictures_is_read_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of attributes.csv can be joined to the person's own table, whose attribute column (here noise) plays no
    part in what is read."""
    federation = fd.federation("dirichlet(clients=10,samples=1000):digits")
    monkeypatch.setenv("FEDDIVERSE_HOME", str(tmp_path / "home"))
    parts = [(f"site {k}", "train", federation.client(k)) for k in range(10)] + [("", "test", federation.test(0, 20))]
    lines, true = ["image,class,attribute,client,split"], {}
    for who, split, samples in parts:
        assert samples.a is not None
        for i, (x, y, a) in enumerate(zip(samples.x, samples.y, samples.a, strict=True)):
            name = f"{who or 'test'}-{i}.png"
            Image.fromarray(x.transpose(1, 2, 0)).save(tmp_path / name)
            true[name] = a
            lines.append(f"{name},{'high' if y else 'low'},{'ab'[i % 3 == 0]},{who},{split}")
    (tmp_path / "scans.csv").write_text("\n".join(lines) + "\n")
    found = fd.discover(str(tmp_path / "scans.csv"), "cnn", image_size=28, workers=1, device="cpu")
    found.save(tmp_path / "out")
    rows = table(tmp_path / "out" / "attributes.csv")
    assert len(rows) == 1000
    right = np.mean([true[row["image"]] == int(row["attribute"][1:]) for row in rows])
    assert max(right, 1 - right) >= 0.95
    assert {row["client"] for row in rows} == {f"site {k}" for k in range(10)}
    assert all(row["image"].startswith(f"{row['client']}-") for row in rows)


def test_same_seed_same_answer_for_any_number_of_workers(digits: Discovery) -> None:
    again = fd.discover("digits-gsc", workers=2, device="cpu")
    assert again.confidence.tobytes() == digits.confidence.tobytes()
    assert again.report() == digits.report()


def test_folders_are_named_after_federations() -> None:
    assert folder_of("digits-gsc") == "digits-gsc"
    assert folder_of("iid(clients=8):digits") == "iid-clients-8-digits"
    assert folder_of("table:/some/where/scans.csv") == "scans"
    assert folder_of("table:../..") == "federation"
