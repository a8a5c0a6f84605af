"""The embedded digits and CMNIST: colours, classes, test sets, and the same samples on every machine."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from feddiverse.data import cache, digits, missing, open_federation, open_source
from feddiverse.data.sources import FILES
from feddiverse.errors import UserError
from feddiverse.splits import SPLITS


def digest_of(name: str, seed: int) -> str:
    federation = open_federation(name, seed)
    held = np.concatenate(list(federation.client_ids)).astype("<i8")
    images = federation.client(5).x
    return hashlib.sha256(held.tobytes() + images.tobytes() + federation.test(0, 50).x.tobytes()).hexdigest()


def test_same_samples_on_every_machine(warm_home: Path) -> None:
    # Written down once: a change here changes every experiment that people repeat.
    assert digest_of("digits-gsc", 0)[:16] == "d6f48f6ec39be7d6"
    assert digest_of("digits-gsc", 1)[:16] != digest_of("digits-gsc", 0)[:16]


def test_pictures_are_the_packaged_ones_in_one_channel(warm_home: Path) -> None:
    """Read the package's file in another way, and look for each picture among its rows."""
    federation = open_federation("digits-gsc", 3)
    table = np.loadtxt(digits._package_file(), np.uint8, delimiter=",")
    known = {row[:-1].tobytes(): int(row[-1]) for row in table}
    for samples in (federation.client(0), federation.client(23), federation.test(1000, 1100)):
        for image, y, a in zip(samples.x, samples.y, samples.a, strict=True):
            assert known[image[a].tobytes()] // 5 == y
            assert not np.delete(image, a, axis=0).any()


def test_digits_test_set_is_balanced_shown_in_both_colours_and_apart_from_training(warm_home: Path) -> None:
    federation = open_federation("digits-gsc", 0)
    test = federation.test()
    assert len(test) == 2800
    table = np.zeros((2, 2), int)
    np.add.at(table, (test.y, test.a), 1)
    assert table.tolist() == [[700, 700], [700, 700]]
    grey = test.x.max(axis=1).reshape(1400, 2, -1)
    assert (grey[:, 0] == grey[:, 1]).all()
    trained = {image.max(axis=0).tobytes() for k in range(24) for image in federation.client(k).x}
    assert not trained & {row.tobytes() for row in grey[:, 0]}


@pytest.mark.parametrize("split", list(SPLITS))
def test_every_split_fits_the_digits(warm_home: Path, split: str) -> None:
    federation = open_federation(f"{split}:digits", 0)
    samples = federation.client(federation.num_clients - 1)
    assert len(samples) == federation.counts[-1].sum()
    assert len(federation.source.class_names) == federation.num_classes
    assert set(federation.source.test_y.tolist()) == set(range(federation.num_classes))


def test_four_classes_of_digits_and_a_third_colour(warm_home: Path) -> None:
    source = open_source("digits", 4, 3, 0)
    assert source.class_names == ("0-2", "3-4", "5-7", "8-9")
    assert source.attribute_names == ("red", "green", "blue")
    assert open_source("digits", 10, 2, 0).class_names[7] == "7"
    with pytest.raises(UserError, match="at most 10 classes and 3 attributes, but the split has 2 classes and 4"):
        open_source("digits", 2, 4, 0)


@pytest.mark.parametrize("name", ["digits", "cmnist"])
def test_digits_have_their_own_size(warm_home: Path, name: str) -> None:
    with pytest.raises(
        UserError, match=f"The pictures of {name} are 28 pixels a side and are not scaled: leave image_size 64 out"
    ):
        open_federation(f"gsc:{name}", 0, image_size=64)
    assert open_source("digits", 2, 2, 0, image_size=28).shape == (3, 28, 28)


def test_damaged_or_unwritable_cache_does_not_matter(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = open_federation("digits-gsc", 0).client(0).x
    (kept,) = home.glob("digits-*.npy")
    kept.write_bytes(kept.read_bytes()[:1000])
    assert (open_federation("digits-gsc", 0).client(0).x == expected).all()
    assert np.load(kept).shape == (5000, 785)
    (home / "a file").touch()
    monkeypatch.setenv("FEDDIVERSE_HOME", str(home / "a file" / "below"))
    assert (open_federation("digits-gsc", 0).client(0).x == expected).all()


def test_cache_home_is_the_platforms_unless_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDDIVERSE_HOME", raising=False)
    assert cache.home().name in ("feddiverse", "Cache")
    monkeypatch.setenv("FEDDIVERSE_HOME", str(tmp_path))
    assert cache.home() == tmp_path


@pytest.fixture
def mnist(home: Path, rng: np.random.Generator) -> Path:
    """Files as large as MNIST's, whose pictures show their own row in the first two pixels."""
    folder = home / "mnist"
    folder.mkdir(parents=True)
    for part, size in (("train", 60_000), ("t10k", 10_000)):
        labels = rng.permutation(np.arange(size) % 10).astype(np.uint8)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(bytes(8) + labels.tobytes())
        pixels = np.zeros((size, 28, 28), np.uint8)
        pixels[:, 0, 0], pixels[:, 0, 1], pixels[:, 0, 2] = np.arange(size) // 256, np.arange(size) % 256, labels
        (folder / f"{part}-images-idx3-ubyte").write_bytes(bytes(16) + pixels.tobytes())
    return folder


def test_cmnist_deals_from_the_train_part_and_tests_on_the_other(mnist: Path) -> None:
    federation = open_federation("cmnist-gsc", 0)
    rows = []
    for k in range(24):
        samples = federation.client(k)
        corner = samples.x[np.arange(len(samples)), samples.a, 0, :3].astype(int)
        rows += (corner[:, 0] * 256 + corner[:, 1]).tolist()
        assert (corner[:, 2] // 5 == samples.y).all()
        assert samples.x.sum(axis=(2, 3)).astype(bool).sum() == len(samples)
    assert len(set(rows)) == len(rows) == 4800
    test = federation.test()
    table = np.zeros((2, 2), int)
    np.add.at(table, (test.y, test.a), 1)
    assert table.tolist() == [[2500, 2500], [2500, 2500]]
    assert (open_federation("cmnist-gsc", 1).source.test_a != test.a).any()


def test_cmnist_travels_to_workers_without_its_pictures(mnist: Path) -> None:
    federation = open_federation("cmnist-gsc", 0)
    federation.client(0)
    packed = pickle.dumps(federation)
    assert len(packed) < 4_000_000
    assert (pickle.loads(packed).client(7).x == federation.client(7).x).all()


def test_what_is_missing_is_told(home: Path) -> None:
    assert missing("digits") is None
    assert missing("table:x.csv") is None
    assert missing("cmnist") == "feddiverse fetch mnist"
    with pytest.raises(UserError, match="run 'feddiverse fetch mnist'"):
        open_federation("cmnist-gsc", 0)


def test_an_incomplete_mnist_is_missing(mnist: Path) -> None:
    assert missing("cmnist") is None
    (mnist / FILES["mnist"][3].name).write_bytes(b"short")
    assert missing("cmnist") == "feddiverse fetch mnist"
