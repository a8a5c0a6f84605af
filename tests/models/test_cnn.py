"""The small CNN and users' own models."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from feddiverse.errors import UserError
from feddiverse.models import ModelSpec, build
from feddiverse.models.cnn import CNN


def spec_of(name: str, num_classes: int = 3) -> ModelSpec:
    return ModelSpec(name, num_classes, (3, 28, 28), (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize("side", [28, 32, 61])
def test_cnn_takes_pictures_of_any_size(side):
    model = build(spec_of("cnn")).module
    x = torch.randn(2, 3, side, side)
    assert model.features(x).shape == (2, 1792)
    torch.testing.assert_close(model(x), model.head(model.features(x)))


class Bare(nn.Module):
    """A module without `features` and `head`, whose head is neither last in order of use nor alone."""

    def __init__(self, num_classes: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.first = nn.Linear(shape[0] * shape[1] * shape[2], 5)
        self.norm = nn.BatchNorm1d(5)
        self.out = nn.Linear(5, num_classes)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.first(x.flatten(1)))))


@pytest.fixture
def plugin(monkeypatch):
    module = ModuleType("someones_models")
    module.bare = Bare
    module.whole = lambda num_classes, shape: CNN(num_classes)
    module.number = 3
    module.wrong = lambda num_classes, shape: "no module"
    monkeypatch.setitem(sys.modules, "someones_models", module)


@pytest.mark.usefixtures("plugin")
def test_a_users_module_gets_features_and_head():
    model = build(spec_of("someones_models:bare"))
    x = torch.randn(4, 3, 28, 28)
    model.module.eval()
    torch.testing.assert_close(model.module.head(model.module.features(x)), model.module(x))
    assert model.module.features(x).shape == (4, 5)
    assert model.theta.numel() == 2352 * 5 + 5 + 10 + 15 + 3 + 10  # weights, then BatchNorm's running statistics
    assert isinstance(build(spec_of("someones_models:whole")).module, CNN)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mobilnet", "There is no model 'mobilnet' \\(did you mean 'mobilenet'"),
        ("no_such_package:make", "cannot be imported"),
        ("someones_models:absent", "cannot be imported"),
        ("someones_models:number", "is no function"),
        ("someones_models:wrong", "gave a str"),
    ],
)
def test_a_wrong_name_is_told(name, message):
    with pytest.raises(UserError, match=message):
        build(spec_of(name))
