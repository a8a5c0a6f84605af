"""Sums over changed copies of pictures (`GroupSums.views`), against the same computed by hand."""

from dataclasses import replace

import numpy as np
import pytest

import feddiverse as fd
from feddiverse.client.balance import group_sums
from feddiverse.client.evaluation import features
from feddiverse.data.federation import Samples
from feddiverse.messages import GroupSums
from feddiverse.models import FlatModel, ModelSpec, build, initial_theta
from feddiverse.seeding import rng

SPEC = ModelSpec("cnn", 2, (1, 12, 12), (0.5,), (0.25,))
TASK = GroupSums(3, 7, 8, weights=np.array([[1.0], [3.0]], np.float32))
CLIENT, N = 5, 9


@pytest.fixture(scope="module")
def model() -> FlatModel:
    return build(SPEC)


@pytest.fixture(scope="module")
def samples() -> Samples:
    draw = np.random.default_rng(0)
    return Samples(draw.integers(0, 256, (N, 1, 12, 12), dtype=np.uint8), np.arange(N) % 2, None)


def test_sums_are_the_mean_over_a_picture_and_its_copies(model: FlatModel, samples: Samples) -> None:
    """Copies are drawn as training draws them: for each batch a shift of every picture, then who is mirrored."""
    theta = initial_theta(SPEC, 0)
    draws, copies = rng(TASK.seed, "augment", TASK.round, CLIENT), []
    for _ in range(3):
        draws.integers(0, 1, (N, 2))
        mirrored = draws.random(N) < 0.5
        copies.append(np.where(mirrored[:, None, None, None], samples.x[..., ::-1], samples.x))
    each = [group_sums(TASK, theta, CLIENT, replace(samples, x=x), model).vector for x in (samples.x, *copies)]
    assert any((one != each[0]).any() for one in each[1:])
    found = group_sums(replace(TASK, views=3, flip=True), theta, CLIENT, samples, model).vector
    np.testing.assert_allclose(found, np.mean(each, axis=0), rtol=1e-5, atol=1e-5)


def test_pictures_that_are_never_changed_have_no_copies(model: FlatModel, samples: Samples) -> None:
    theta = initial_theta(SPEC, 0)
    plain = group_sums(TASK, theta, CLIENT, samples, model).vector
    np.testing.assert_array_equal(group_sums(replace(TASK, views=3), theta, CLIENT, samples, model).vector, plain)
    assert features(theta, samples, model).shape[0] == N


def test_a_run_says_how_many_copies_its_head_was_solved_from(tmp_path) -> None:
    settings = {"rounds": 2, "num_selected": 3, "workers": 1, "rebalance_dimensions": 32, "crop_padding": 2}
    plain = fd.train("dist:digits", rebalance=True, out=tmp_path / "run", **settings)
    shifted = fd.rebalance(tmp_path / "run", rebalance_views=2, workers=1)
    assert "views" not in plain.rebalanced["settings"]
    assert shifted.rebalanced["settings"]["views"] == 2
    assert shifted.rebalanced["theta_sha256"] != plain.rebalanced["theta_sha256"]
    with pytest.raises(fd.UserError, match="set one of them"):
        fd.rebalance(tmp_path / "run", rebalance_views=2, crop_padding=0, workers=1)
    at_once = fd.train("dist:digits", rebalance=True, rebalance_views=2, **settings)
    assert at_once.rebalanced["theta_sha256"] == shifted.rebalanced["theta_sha256"]


def test_views_need_something_that_changes_pictures() -> None:
    with pytest.raises(fd.UserError, match="'flip' or 'crop_padding': set one of them"):
        fd.Config(rebalance=True, rebalance_views=2)
