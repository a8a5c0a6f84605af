"""Mirrored and shifted pictures: what they are, by hand, and that they are keyed like everything else."""

import numpy as np
import pytest

from feddiverse.client import training
from feddiverse.client.augmentation import augment, augmentation
from feddiverse.data.federation import Samples
from feddiverse.messages import Train
from feddiverse.models import ModelSpec, build

PICTURES = np.random.default_rng(0).integers(0, 256, (200, 3, 6, 5)).astype(np.uint8)


def test_every_second_picture_is_mirrored() -> None:
    changed = augment(PICTURES, np.random.default_rng(1), flip=True)
    mirrored = (changed == PICTURES[..., ::-1]).all(axis=(1, 2, 3))
    assert ((changed == PICTURES).all(axis=(1, 2, 3)) ^ mirrored).all()
    assert 70 < mirrored.sum() < 130


@pytest.mark.parametrize("padding", ["constant", "edge"])
def test_a_crop_is_a_window_of_the_framed_picture(padding: str) -> None:
    changed = augment(PICTURES, np.random.default_rng(1), crop_padding=2, padding=padding)
    found = np.zeros((5, 5), np.int64)
    for picture, shifted in zip(PICTURES, changed, strict=True):
        framed = np.pad(picture, ((0, 0), (2, 2), (2, 2)), mode=padding)
        places = [(i, j) for i in range(5) for j in range(5) if (framed[:, i : i + 6, j : j + 5] == shifted).all()]
        assert len(places) == 1
        found[places[0]] += 1
    assert (found > 0).all()  # every shift comes about
    assert found.max() < 25


def test_shifts_do_not_depend_on_whether_pictures_are_mirrored() -> None:
    shifted = augment(PICTURES, np.random.default_rng(1), crop_padding=2)
    both = augment(PICTURES, np.random.default_rng(1), crop_padding=2, flip=True)
    same = (both == shifted).all(axis=(1, 2, 3))
    assert (same | (both == shifted[..., ::-1]).all(axis=(1, 2, 3))).all()
    assert not same.all()


def test_floats_are_refused() -> None:
    with pytest.raises(ValueError, match="only pictures of bytes"):
        augment(np.zeros((2, 3, 4, 4), np.float32), np.random.default_rng(0), flip=True)


def test_draws_are_keyed_by_seed_round_and_client() -> None:
    assert augmentation(Train(0, 1), 3) is None
    keys = [(0, 1, 3), (1, 1, 3), (0, 2, 3), (0, 1, 4)]
    changed = []
    for seed, round, client in [*keys, keys[0]]:
        change = augmentation(Train(seed, round, flip=True, crop_padding=1), client)
        assert change is not None
        changed.append(change(PICTURES))
    np.testing.assert_array_equal(changed[0], changed[-1])
    assert all((changed[0] != other).any() for other in changed[1:-1])


def test_training_sees_what_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against training on pictures changed beforehand, in the order in which they are shown."""
    model = build(ModelSpec("cnn", 2, (3, 12, 12), (0.5,) * 3, (0.5,) * 3))
    x = np.random.default_rng(0).integers(0, 256, (20, 3, 12, 12)).astype(np.uint8)
    samples, theta = Samples(x, np.arange(20) % 2, None), model.vector()
    task = Train(0, 1, epochs=2, batch_size=8, lr=0.1, flip=True, crop_padding=2, padding="edge")
    training.train(task, theta, 3, samples, model)
    trained = model.vector()

    shown: list[np.ndarray] = []
    normalise = type(model).normalise
    monkeypatch.setattr(type(model), "normalise", lambda self, x: (shown.append(x.numpy()), normalise(self, x))[1])
    training.train(task, theta, 3, samples, model)
    np.testing.assert_array_equal(model.vector(), trained)
    assert len(shown) == 6
    change = augmentation(task, 3)
    assert change is not None
    plain: list[np.ndarray] = []
    monkeypatch.setattr(type(model), "normalise", lambda self, x: (plain.append(x.numpy()), normalise(self, x))[1])
    training.train(Train(0, 1, epochs=2, batch_size=8, lr=0.1), theta, 3, samples, model)
    for before, after in zip(plain, shown, strict=True):
        np.testing.assert_array_equal(change(before), after)
    assert (model.vector() != trained).any()
