"""What C would misread is made right or refused, never computed with."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from feddiverse.models.layers import library, native
from feddiverse.models.layers.tape import Tape
from feddiverse.models.mobilenet import InvertedResidual

pytestmark = pytest.mark.skipif(library.C is None, reason="no C compiler was here when the package was installed")

CHANNELS = 16


def block() -> InvertedResidual:
    return InvertedResidual(CHANNELS, CHANNELS, stride=1, expansion=6, drop=0.0)


def convolution(**changes) -> nn.Conv2d:
    return nn.Conv2d(CHANNELS, **({"out_channels": 5, "kernel_size": 3, "padding": 1, "bias": False} | changes))


LAYERS = {
    "convolution": (native.convolution, convolution),
    "group_norm": (native.group_norm, lambda: nn.GroupNorm(4, CHANNELS)),
    "inverted_residual": (native.inverted_residual, block),
    "linear": (native.linear, lambda: nn.Linear(CHANNELS, 5)),
}
layers = pytest.mark.parametrize(("layer", "make"), LAYERS.values(), ids=LAYERS)
OF_MAPS = {name: layer for name, layer in LAYERS.items() if name != "linear"}


def tape() -> Tape:
    return Tape(wants_input=True)


def gradients(module: nn.Module) -> list[Tensor]:
    return [p.grad for p in module.parameters()]


@layers
@given(order=st.permutations(range(4)), step=st.integers(1, 2), seed=st.integers(0, 99))
@settings(max_examples=20, derandomize=True)
def test_maps_and_gradients_may_lie_in_any_order(layer, make, order, step, seed):
    """The same numbers, laid out in any order or with gaps, give the same bits."""
    torch.manual_seed(seed)
    module, x = make(), torch.randn(2, 3, 4, CHANNELS)

    def relaid(tensor: Tensor) -> Tensor:
        places = [order.index(axis) for axis in range(4)]
        gapped = tensor.permute(order).repeat_interleave(step, dim=3)[..., ::step]
        return gapped.permute(places)

    found = []
    for lay in (torch.clone, relaid):
        module.zero_grad(set_to_none=True)
        kept = tape()
        y = layer(lay(x), module, kept)
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
        dx = kept.rewind(lay(dy))
        found.append([y, dx, *gradients(module), layer(lay(x), module, None)])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


@layers
def test_a_gradient_without_memory_of_its_own(layer, make):
    """sum().backward() sends one number, expanded."""
    torch.manual_seed(0)
    module, x = make(), torch.randn(2, 3, 4, CHANNELS)
    found = []
    for expanded in (False, True):
        kept = tape()
        y = layer(x.clone(), module, kept)
        dy = torch.ones(1, 1, 1, 1).expand(y.shape)
        found.append(kept.rewind(dy if expanded else dy.clone()))
    assert torch.equal(*found)


@pytest.mark.parametrize(("layer", "make"), OF_MAPS.values(), ids=OF_MAPS)
@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 3, 4, CHANNELS).double(),
        torch.randn(2, 3, 4, CHANNELS).half(),
        torch.randn(2, 3, 4, CHANNELS + 8),
        torch.randn(2, CHANNELS, 3, 4),
        torch.randn(3, 4, CHANNELS),
        torch.empty(2, 3, 4, CHANNELS, device="meta"),
    ],
    ids=["double", "half", "channels", "channels first", "one map", "device"],
)
def test_other_maps_are_refused(layer, make, x):
    with pytest.raises(ValueError, match=rf"take float32 maps \[n, height, width, {CHANNELS}\] on the CPU, not \w+ \["):
        layer(x, make(), tape())


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, CHANNELS).double(),
        torch.randn(2, CHANNELS + 1),
        torch.randn(CHANNELS),
        torch.empty(2, CHANNELS, device="meta"),
    ],
    ids=["double", "inputs", "one row", "device"],
)
def test_other_rows_are_refused(x):
    with pytest.raises(ValueError, match=rf"takes float32 numbers \[…, {CHANNELS}\] on the CPU, not \w+ \["):
        native.linear(x, nn.Linear(CHANNELS, 5), tape())


@layers
def test_other_gradients_are_refused(layer, make):
    x = torch.randn(2, 3, 4, CHANNELS)
    for spoil in (lambda dy: dy.double(), lambda dy: dy[1:], lambda dy: dy.flatten()):
        kept = tape()
        y = layer(x, make(), kept)
        with pytest.raises(ValueError, match=r"The gradient of a map .* cannot be"):
            kept.rewind(spoil(torch.randn_like(y)))


def gaps(tensor: Tensor) -> Tensor:
    return tensor.repeat_interleave(2, dim=0)[::2]


with_addresses = pytest.mark.parametrize("name", LAYERS)


@with_addresses
@pytest.mark.parametrize("spoil", [torch.Tensor.double, gaps, lambda p: p[:4]], ids=["dtype", "gaps", "shape"])
def test_other_parameters_are_refused(name, spoil):
    layer, make = LAYERS[name]
    for index, _ in enumerate(make().parameters()):
        module = make()
        parameter = list(module.parameters())[index]
        parameter.data = spoil(parameter.data)
        with pytest.raises(ValueError, match=r"In C .* must be contiguous float32 .* not "):
            layer(torch.randn(2, 3, 4, CHANNELS), module, tape())


@with_addresses
def test_gradients_with_gaps_are_refused(name):
    layer, make = LAYERS[name]
    for index, _ in enumerate(make().parameters()):
        module, kept = make(), tape()
        y = layer(torch.randn(2, 3, 4, CHANNELS), module, kept)
        parameter = list(module.parameters())[index]
        parameter.grad = gaps(torch.zeros_like(parameter))
        with pytest.raises(ValueError, match=r"In C .*gradient.* must be contiguous float32 .* with strides"):
            kept.rewind(torch.randn_like(y))


@layers
def test_parameters_replaced_before_backward_are_those_of_forward(layer, make):
    """As in autograd; and memory that was given back is never read."""
    torch.manual_seed(0)
    module, x, found = make(), torch.randn(2, 3, 4, CHANNELS), []
    for replace in (False, True):
        module.zero_grad(set_to_none=True)
        kept = tape()
        y = layer(x, module, kept)
        if replace:
            for parameter in module.parameters():
                parameter.data = torch.full_like(parameter, torch.nan)
        found.append([kept.rewind(torch.ones_like(y)), *gradients(module)])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("layer", "module"),
    [
        (native.convolution, convolution(kernel_size=5)),
        (native.convolution, convolution(padding=0)),
        (native.convolution, convolution(padding=2, dilation=2)),
        (native.convolution, convolution(padding="same")),
        (native.convolution, convolution(padding_mode="reflect")),
        (native.convolution, convolution(stride=(1, 2))),
        (native.convolution, convolution(groups=4, out_channels=8)),
        (native.convolution, convolution(kernel_size=1, padding=0)),
        (native.convolution, convolution(bias=True)),
        (native.group_norm, nn.GroupNorm(4, CHANNELS, affine=False)),
        (native.linear, convolution()),
        (native.linear, convolution(kernel_size=1, padding=0, stride=2)),
        (native.linear, convolution(kernel_size=1, padding=1)),
        (native.linear, convolution(kernel_size=1, padding=0, groups=4, out_channels=8)),
    ],
    ids=lambda value: value.__name__ if callable(value) and not isinstance(value, nn.Module) else str(value),
)
def test_other_layers_are_refused(layer, module):
    with pytest.raises(ValueError, match="In C "):
        layer(torch.randn(2, 5, 5, CHANNELS), module, None)


def with_other(name: str, value: object) -> InvertedResidual:
    changed = block()
    path, _, attribute = name.rpartition(".")
    setattr(changed.branch.get_submodule(path), attribute, value)
    return changed


@pytest.mark.parametrize(
    "module",
    [
        with_other("0.1.num_groups", 4),
        with_other("1.1.eps", 1e-3),
        with_other("0.0.bias", nn.Parameter(torch.zeros(6 * CHANNELS))),
        with_other("1.0.bias", nn.Parameter(torch.zeros(6 * CHANNELS))),
        with_other("1.0.stride", (2, 2)),
        with_other("1.0.groups", 4),
        with_other("1.0.out_channels", 12 * CHANNELS),
    ],
    ids=["groups", "epsilon", "bias", "bias of the filter", "stride of a residual", "few filters", "many filters"],
)
def test_other_blocks_are_refused(module):
    with pytest.raises(ValueError, match=r"no block that widens|In C a convolution is"):
        native.inverted_residual(torch.randn(2, 5, 5, CHANNELS), module, None)


@layers
def test_no_pictures_give_no_maps(layer, make):
    module, kept = make(), tape()
    y = layer(torch.randn(0, 3, 4, CHANNELS), module, kept)
    assert y.shape[0] == 0
    assert kept.rewind(torch.randn_like(y)).shape == (0, 3, 4, CHANNELS)
    assert not any(gradient.any() for gradient in gradients(module))


@pytest.mark.parametrize("wrong", range(4))
@pytest.mark.parametrize("spoil", [lambda v: v[1:], lambda v: v.double(), gaps], ids=["length", "dtype", "gaps"])
def test_sgd_refuses_vectors_of_another_kind(wrong, spoil):
    vectors = [torch.randn(10) for _ in range(4)]
    vectors[wrong] = spoil(vectors[wrong])
    before = [vector.clone() for vector in vectors]
    if wrong == 0 and len(vectors[0]) == 9:
        message = r"the gradient must be contiguous float32 \[9\]"
    else:
        message = "In C .* must be contiguous float32"
    with pytest.raises(ValueError, match=message):
        native.sgd(*vectors, 0.1, 0.9, 0.0, 0.0)
    assert all(map(torch.equal, vectors, before))


@given(st.integers(0, 40), st.floats(0, 1), st.floats(0, 1), st.sampled_from([None, 0.3]), st.integers(0, 99))
@settings(max_examples=40, derandomize=True)
def test_sgd_is_its_definition(count, momentum, decay, mu, seed):
    generator = torch.Generator().manual_seed(seed)
    theta, gradient, velocity, start = (torch.randn(count, generator=generator) for _ in range(4))
    slope = gradient.double() + decay * theta.double() + (mu or 0.0) * (theta.double() - start.double())
    expected = momentum * velocity.double() + slope
    moved = theta.double() - 0.1 * expected
    native.sgd(theta, gradient, velocity, None if mu is None else start, 0.1, momentum, decay, mu or 0.0)
    torch.testing.assert_close(velocity.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(theta.double(), moved, rtol=1e-5, atol=1e-5)
    assert not gradient.any()
