"""Photo sets: official layouts, test parts, decoding once, and what happens to damaged pictures."""

import os
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_photos import save_picture

from feddiverse.data import open_federation, open_source, pictures
from feddiverse.data.federation import deal
from feddiverse.errors import UserError


def test_decode_takes_the_middle_square_in_rgb(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, :10], wide[:, 10:20], wide[:, 20:] = (255, 0, 0), (10, 20, 30), (0, 0, 255)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert (pictures.decode(tmp_path / "wide.png", 10) == np.array([10, 20, 30])[:, None, None]).all()
    Image.new("LA", (9, 9), (77, 5)).save(tmp_path / "grey.png")
    assert (pictures.decode(tmp_path / "grey.png", 16) == 77).all()


@pytest.mark.parametrize("name", ["deep.png", "deep.tif", "big-endian.tif", "deep.pgm"])
def test_greys_of_16_bits_look_as_those_of_8(tmp_path: Path, name: str) -> None:
    grey = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
    if name == "deep.pgm":
        (tmp_path / name).write_bytes(b"P5 64 64 65535\n" + grey.astype(">u2").tobytes())
    elif name == "big-endian.tif":
        Image.frombytes("I;16B", (64, 64), grey.astype(">u2").tobytes()).save(tmp_path / name)
    else:
        Image.fromarray(grey).save(tmp_path / name)
    Image.fromarray((grey >> 8).astype(np.uint8)).save(tmp_path / "twin.png")
    assert (pictures.decode(tmp_path / name, 16) == pictures.decode(tmp_path / "twin.png", 16)).all()


def test_greys_of_12_bits_are_scaled(tmp_path: Path) -> None:
    path = tmp_path / "twelve.tif"
    Image.frombytes("I;16", (12, 12), b"\xab\xca\xbc" * 96).save(path)  # two pixels of 0xabc in three bytes
    bits_per_sample = (struct.pack("<HHII", 258, 3, 1, bits) for bits in (16, 12))
    path.write_bytes(path.read_bytes().replace(*bits_per_sample))
    assert (pictures.decode(path, 12) == 0xAB).all()


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pictures_of_32_bits_are_refused_by_name(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (9, 9), 300).save(tmp_path / "deep.tif")
    with pytest.raises(UserError, match=r"deep\.tif has greys of 32 bits"):
        pictures.decode(tmp_path / "deep.tif", 12)


def test_decode_scales_the_whole_picture_and_takes_its_middle(tmp_path: Path) -> None:
    """As torchvision's Resize((32, 32)) and CenterCrop(28) would: proportions are lost, a rim of 2 pixels too."""
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (40, 60, 3)).astype(np.uint8))
    picture.save(tmp_path / "p.png")
    by_hand = np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR))[2:30, 2:30].transpose(2, 0, 1)
    np.testing.assert_array_equal(pictures.decode(tmp_path / "p.png", 28, 32), by_hand)


def test_scaled_and_unscaled_pictures_are_kept_apart(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (40, 60, 3)).astype(np.uint8)).save(tmp_path / "a" / "p.png")
    plain, scaled = (pictures.decoded(tmp_path, ["a/p.png"], 28, resize)[0][np.array([0])] for resize in (0, 32))
    assert (plain != scaled).any()
    with pytest.raises(UserError, match="have no middle of 28: choose resize from 28"):
        pictures.decoded(tmp_path, ["a/p.png"], 28, 20)


def no_decoding(path: Path, size: int, resize: int = 0) -> None:
    raise AssertionError(f"{path} decoded again")


def test_pictures_are_decoded_once(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, files = tmp_path / "set", ["a.png", "b.png"]
    for value, name in enumerate(files):
        save_picture(root / name, (value + 1, 0, 0))
    pixels, content = pictures.decoded(root, files, 12)
    assert pixels[np.array([1, 0])][:, 0, 0, 0].tolist() == [2, 1]
    with monkeypatch.context() as patch:
        patch.setattr(pictures, "decode", no_decoding)
        assert pictures.decoded(root, files, 12)[1] == content
        os.utime(root / "a.png", (1, 1))  # touched, not changed
        assert pictures.decoded(root, files, 12)[1] == content
        shutil.copytree(root, tmp_path / "moved")
        assert pictures.decoded(tmp_path / "moved", files, 12)[1] == content
        with pytest.raises(AssertionError):
            pictures.decoded(root, files, 16)
    assert pictures.decoded(root, files, 16)[0].shape == (2, 3, 16, 16)
    save_picture(root / "a.png", (9, 9, 9))
    pixels, other = pictures.decoded(root, files, 12)
    assert other != content
    assert pixels[np.array([0])].max() == 9


def test_a_damaged_array_is_made_again(home: Path, tmp_path: Path) -> None:
    save_picture(tmp_path / "a.png", (5, 6, 7))
    pixels, _ = pictures.decoded(tmp_path, ["a.png"], 12)
    pixels.path.write_bytes(pixels.path.read_bytes()[:-100])
    again, _ = pictures.decoded(tmp_path, ["a.png"], 12)
    assert again[np.array([0])][0, :, 0, 0].tolist() == [5, 6, 7]


@pytest.mark.parametrize("damage", ["text", "cut", "gone", "bomb", "folder"])
def test_a_damaged_picture_is_named_and_leaves_nothing(home: Path, tmp_path: Path, damage: str) -> None:
    save_picture(tmp_path / "fine.png", (1, 2, 3))
    bad = tmp_path / "bad.png"
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(bad)
    if damage == "text":
        bad.write_text("no picture")
    elif damage == "cut":
        bad.write_bytes(bad.read_bytes()[:3000])
    elif damage == "bomb":
        whole = bytearray(bad.read_bytes())
        whole[16:24] = (60_000).to_bytes(4, "big") * 2  # a header that promises 10 GB of pixels
        bad.write_bytes(whole)
    else:
        bad.unlink()
        if damage == "folder":
            bad.mkdir()
    with pytest.raises(UserError, match=r"bad\.png"):
        pictures.decoded(tmp_path, ["fine.png", "bad.png"], 12)
    assert [path for path in home.rglob("*") if path.is_file()] == []


def test_image_size_is_checked(home: Path, waterbirds: Path) -> None:
    with pytest.raises(UserError, match="image size from 8 to 4096"):
        open_source("waterbirds", 2, 2, 0, image_size=5000, data_dir=waterbirds)


@pytest.mark.parametrize("name", ["waterbirds_v1.0", "waterbird_complete95_forest2water2", "anything"])
def test_waterbirds_in_both_official_folders(home: Path, waterbirds: Path, name: str) -> None:
    root = waterbirds.rename(waterbirds.parent / name)
    data_dir = root if name == "anything" else root.parent
    source = open_source("waterbirds", 2, 2, 0, image_size=12, data_dir=data_dir)
    federation = deal("x", source, np.ones((5, 2, 2), np.int64), 2, 0)
    shown = np.concatenate([federation.client(k).x[:, 0, 0, 0] for k in range(5)])
    assert sorted(shown.tolist()) == list(range(20))  # every train picture once
    # Pictures 24 … 31 are the test part, two for each (class, place); 20 … 23, for validation, are not used.
    test = federation.test()
    assert test.x[:, 0, 0, 0].tolist() == list(range(24, 32))
    assert test.y.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert test.a.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert len(pickle.dumps(federation)) < 20_000


def test_fingerprint_tells_pictures_and_labels(home: Path, waterbirds: Path) -> None:
    def fingerprint() -> str:
        return open_source("waterbirds", 2, 2, 0, image_size=12, data_dir=waterbirds).fingerprint

    first = fingerprint()
    assert fingerprint() == first
    table = waterbirds / "metadata.csv"
    table.write_text(table.read_text().replace("0,0/0.png,0,0,0", "0,0/0.png,1,0,0"))
    relabelled = fingerprint()
    assert relabelled != first
    save_picture(waterbirds / "0" / "0.png", (200, 0, 0))
    assert fingerprint() not in (first, relabelled)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0,0/0.png,0,0,0", "0,0/0.png,7,0,0", "line 2: y is '7'"),
        ("0,0/0.png,0,0,0", "0,../0.png,0,0,0", "outside the folder"),
        ("img_filename", "file", "'img_filename' is missing"),
        ("0/3.png,0,0,0,x", "0/3.png,0", "line 5: place is None"),
    ],
)
def test_waterbirds_metadata_is_checked(home: Path, waterbirds: Path, old: str, new: str, said: str) -> None:
    table = waterbirds / "metadata.csv"
    assert old in table.read_text()
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(UserError, match=said):
        open_source("waterbirds", 2, 2, 0, data_dir=waterbirds)


def test_an_empty_waterbirds_table_is_refused(home: Path, waterbirds: Path) -> None:
    (waterbirds / "metadata.csv").write_text("img_id,img_filename,y,split,place,place_filename\n")
    with pytest.raises(UserError, match="is empty"):
        open_source("waterbirds", 2, 2, 0, data_dir=waterbirds)


def test_photo_sets_say_what_they_lack(home: Path, waterbirds: Path, spawrious: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="waterbirds has 2 classes and 2 attributes, but the split has 4 classes"):
        open_federation("4:waterbirds", 0, data_dir=waterbirds)
    with pytest.raises(UserError, match=r"waterbirds has 5 samples .*'landbird', attribute 'land', .* asks for 3498"):
        open_federation("waterbirds-dist", 0, image_size=12, data_dir=waterbirds)
    with pytest.raises(UserError, match="run 'feddiverse fetch spawrious'"):
        open_federation("spawrious-gsc", 0)
    with pytest.raises(UserError, match="holds no spawrious"):
        open_federation("spawrious-gsc", 0, data_dir=tmp_path / "nowhere")
    shutil.rmtree(spawrious / "0" / "snow" / "corgi")
    shutil.rmtree(spawrious / "1" / "snow" / "corgi")
    with pytest.raises(UserError, match="Spawrious needs corgi on snow"):
        open_federation("spawrious-4", 0, data_dir=spawrious)


@pytest.mark.parametrize(
    ("num_classes", "breeds"), [(2, ("labrador", "dachshund")), (4, ("bulldog", "corgi", "dachshund", "labrador"))]
)
def test_spawrious_holds_out_a_tenth_of_each_pair(
    home: Path, spawrious: Path, num_classes: int, breeds: tuple[str, ...]
) -> None:
    order = ("bulldog", "corgi", "dachshund", "labrador")
    held_out = []
    for seed in (0, 1):
        source = open_source("spawrious", num_classes, 2, seed, image_size=12, data_dir=spawrious.parent)
        assert source.class_names == breeds
        assert source.attribute_names == ("beach", "snow")
        test = source.test_x(np.arange(len(source.test_y)), source.test_a)[:, :, 0, 0]
        train = source.train_x(np.arange(len(source.train_y)), source.test_a)[:, :, 0, 0]
        assert [order[i] for i in test[:, 0]] == [breeds[y] for y in source.test_y]
        assert (test[:, 1] == source.test_a).all()
        assert np.unique(np.stack([source.test_y, source.test_a]), axis=1, return_counts=True)[1].tolist() == (
            [2] * 2 * num_classes
        )
        together = {tuple(p) for p in [*test.tolist(), *train.tolist()]}
        assert len(together) == len(test) + len(train) == 40 * num_classes
        held_out.append(test.tolist())
    assert held_out[0] != held_out[1]
