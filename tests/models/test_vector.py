"""θ is one vector: parameters and gradients are views of it, and it comes back as it went in."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from feddiverse.errors import UserError
from feddiverse.models import FlatModel, ModelSpec, build, initial_theta

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
SIZES = {"cnn": 87_810, "mobilenet": 2_226_434}


def spec_of(name: str, **changes) -> ModelSpec:
    return ModelSpec(name, 2, (3, 28, 28), MEAN, STD, **changes)


@pytest.mark.parametrize("name", SIZES)
def test_weights_number_what_the_paper_says(name):
    assert build(spec_of(name)).vector().size == SIZES[name]


@pytest.mark.parametrize("name", SIZES)
def test_vector_and_module_are_the_same_numbers(name):
    model = build(spec_of(name))
    theta = np.random.default_rng(0).normal(size=SIZES[name]).astype(np.float32)
    theta.flags.writeable = False  # as shared memory may be
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.load(theta)
    np.testing.assert_array_equal(torch.cat([p.detach().flatten() for p in model.module.parameters()]), theta)
    np.testing.assert_array_equal(model.vector(), theta)
    model.vector()[:] = 0  # a copy: the model does not notice
    np.testing.assert_array_equal(model.vector(), theta)


def test_gradients_are_views_of_one_vector():
    model = build(spec_of("cnn"))
    model.module(torch.randn(4, 3, 28, 28)).sum().backward()
    np.testing.assert_array_equal(torch.cat([p.grad.flatten() for p in model.module.parameters()]), model.grad)
    assert model.grad.abs().sum() > 0


def test_float_buffers_travel_after_the_parameters():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model = FlatModel(module, spec_of("x:y"))
    assert model.theta.numel() == 6 + 3 + 3 + 3 + 3 + 3
    assert model.grad.numel() == model.num_parameters == 15
    module.train()(torch.randn(8, 2) + 5)
    np.testing.assert_array_equal(model.vector()[15:18], module[1].running_mean)
    assert not np.allclose(model.vector()[15:18], 0)


def test_normalise_is_the_textbook_formula():
    images = torch.randint(0, 256, (5, 3, 7, 9), dtype=torch.uint8)
    expected = (images / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(build(spec_of("cnn")).normalise(images), expected)


def test_initial_theta_depends_on_the_seed_alone():
    first = initial_theta(spec_of("cnn"), seed=1)
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    np.testing.assert_array_equal(first, initial_theta(spec_of("cnn"), seed=1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert not np.array_equal(first, initial_theta(spec_of("cnn"), seed=2))


def test_wrong_length_is_told():
    with pytest.raises(UserError, match=r"3 numbers, but the model cnn has 87,810"):
        build(spec_of("cnn")).load(np.zeros(3, np.float32))
