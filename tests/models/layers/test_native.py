"""The layers in C against PyTorch's in double precision: outputs and every gradient."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from feddiverse.models import ModelSpec, build, mobilenet
from feddiverse.models.cnn import CNN
from feddiverse.models.layers import library, native
from feddiverse.models.layers.fast import FastCNN, FastMobileNetV2
from feddiverse.models.layers.tape import Tape
from feddiverse.models.mobilenet import InvertedResidual, MobileNetV2

in_c = pytest.mark.skipif(library.C is None, reason="no C compiler was here when the package was installed")

maps = st.builds(
    lambda n, height, width, channels, seed: torch.randn(
        n, height, width, channels, generator=torch.Generator().manual_seed(seed)
    ),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([3, 8, 12, 24, 40]),
    st.integers(0, 2**31 - 1),
)


def check(ours: Tensor, theirs: Tensor) -> None:
    """Equal within single precision's rounding of sums of up to some hundred terms."""
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


def assume_away_from(ends: tuple[float, float], y: Tensor) -> None:
    """Where a number is as near to an end of its range as single precision errs, it may be cut off in one precision and
    not in the other, and its gradient be there or not: no example for this test."""
    assume(all((y.detach() - end).abs().min() > 1e-5 for end in ends))


def compare(layer: Callable, module: nn.Module, reference: Callable, x: Tensor) -> None:
    """`layer` in single precision and `reference(x, *parameters)` in double: outputs, then every gradient."""
    tape = Tape(wants_input=True)
    y = layer(x.clone(), module, tape)
    their_x = x.double().permute(0, 3, 1, 2).requires_grad_()
    their_parameters = [p.detach().double().requires_grad_() for p in module.parameters()]
    their_y = reference(their_x, *their_parameters)
    check(y, their_y.detach().permute(0, 2, 3, 1))

    dy = torch.randn_like(y)
    their_y.backward(dy.double().permute(0, 3, 1, 2))
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)  # gradients are added to what is there
    check(tape.rewind(dy.clone()), their_x.grad.permute(0, 2, 3, 1))
    for ours, theirs in zip(module.parameters(), their_parameters, strict=True):
        check(ours.grad - 1, theirs.grad)
    check(layer(x.clone(), module, None), their_y.detach().permute(0, 2, 3, 1))


@in_c
@given(maps, st.sampled_from([1, 2, 3]))
@settings(max_examples=60)
def test_convolution(x, stride):
    conv = nn.Conv2d(x.shape[3], 29, 3, stride, 1, bias=False)  # a whole tile, half of one, and single columns
    compare(native.convolution, conv, lambda x, w: functional.conv2d(x, w, None, stride, 1), x)


@in_c
@given(maps, st.sampled_from([1, 2, 4, 29, 40]), st.booleans())
@settings(max_examples=60)
def test_linear(x, outputs, bias):
    """Both as a 1×1 convolution of maps and as the layer that it is on each position."""
    conv = nn.Conv2d(x.shape[3], outputs, 1, bias=bias)
    compare(native.linear, conv, functional.conv2d, x)
    layer = nn.Linear(x.shape[3], outputs, bias=bias)
    layer.load_state_dict({name: part.view(*part.shape[:2]) for name, part in conv.state_dict().items()})
    rows = x.flatten(0, 2)
    assert torch.equal(native.linear(rows, layer, None), native.linear(x, conv, None).flatten(0, 2))


@in_c
@given(maps)
@settings(max_examples=30)
def test_average(x):
    check(native.average(x), x.double().mean((1, 2)))


@in_c
@given(maps, st.sampled_from([torch.clone, lambda dy: dy.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)]))
@settings(max_examples=60)
def test_channels_first(x, relaid):
    """The same numbers in PyTorch's order, and gradients, however they lie, back in ours."""
    tape = Tape(wants_input=True)
    y = native.channels_first(x, tape)
    assert y.is_contiguous()
    assert torch.equal(y, x.permute(0, 3, 1, 2))
    dx = tape.rewind(relaid(2 * y))
    assert dx.is_contiguous()
    assert torch.equal(dx, 2 * x)


@in_c
@given(maps, st.booleans(), st.sampled_from([(-math.inf, math.inf), (0.0, math.inf), (0.0, 0.7)]))
@settings(max_examples=60)
def test_group_norm(x, one_group, ends):
    groups = 1 if one_group else math.gcd(x.shape[3], 4)
    norm = nn.GroupNorm(groups, x.shape[3], eps=0.1)  # a group of one number has no deviation of its own
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)

    def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = functional.group_norm(x, groups, weight, bias, norm.eps)
        assume_away_from(ends, y)
        return y.clamp(*ends)

    compare(lambda x, norm, tape: native.group_norm(x, norm, tape, *ends), norm, reference, x)


def check_block(n, sides, sizes, drops, floats_together, seed):
    inputs, outputs, stride, expansion = sizes
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mobilenet, "GROUPS", 4)
        block = InvertedResidual(inputs, outputs, stride=stride, expansion=expansion, drop=0.5 if drops else 0.0)
    for norm in (module for module in block.modules() if isinstance(module, nn.GroupNorm)):
        norm.eps = 0.1  # two numbers may lie as close as they like
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.3)
    kept = torch.randint(2, (n,)) if drops and block.is_residual else None
    block.kept = lambda x: None if kept is None else kept.to(x.dtype)
    for part in block.branch:
        if len(part) == 3:  # ReLU6 follows on its GroupNorm
            part[1].register_forward_hook(lambda module, x, y: assume_away_from((0.0, 6.0), y))
    names = [name for name, _ in block.named_parameters()]

    def reference(x: Tensor, *parameters: Tensor) -> Tensor:
        return functional_call(block, dict(zip(names, parameters, strict=True)), x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "FLOATS_TOGETHER", floats_together)
        compare(native.inverted_residual, block, reference, torch.randn(n, *sides, inputs))


@in_c
@given(
    st.integers(1, 5),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.sampled_from([(16, 16, 1, 6), (16, 24, 1, 6), (16, 24, 2, 6), (24, 24, 2, 6)]),  # inputs to expansion
    st.booleans(),
    st.sampled_from([1, 3_000, 100_000]),  # one picture at a time, several, all
    st.integers(0, 2**31 - 1),
)
@settings(max_examples=60)
def test_inverted_residual(n, sides, sizes, drops, floats_together, seed):
    check_block(n, sides, sizes, drops, floats_together, seed)


@in_c
@given(
    st.integers(1, 2),
    st.sampled_from([(9, 8), (13, 11), (2, 70)]),  # more than 64 rows: a piece at a time
    st.sampled_from([(4, 4, 1, 3), (4, 12, 2, 3), (8, 4, 1, 1), (12, 12, 1, 1), (4, 4, 3, 2)]),
    st.booleans(),
    st.sampled_from([1, 100_000]),
    st.integers(0, 2**31 - 1),
)
@settings(max_examples=40)
def test_an_inverted_residual_of_large_maps_and_few_channels(n, sides, sizes, drops, floats_together, seed):
    check_block(n, sides, sizes, drops, floats_together, seed)


@in_c
def test_group_norm_of_equal_numbers_far_from_zero_is_finite():
    """E[x²] − E[x]² may come out below zero."""
    y = native.group_norm(torch.full((1, 5, 5, 8), 1234.567), nn.GroupNorm(2, 8, eps=1e-6), None)
    assert torch.isfinite(y).all()


@in_c
def test_nan_goes_through():
    """A client whose loss is no number has to notice."""
    x = torch.full((1, 2, 2, 8), math.nan)
    assert native.group_norm(x, nn.GroupNorm(2, 8), None, 0.0, 6.0).isnan().all()


@pytest.mark.parametrize("side", [28, 33, 61])
def test_the_small_cnn_is_the_plain_one(side):
    torch.manual_seed(0)
    plain, fast = CNN(3), FastCNN(3)
    fast.load_state_dict(plain.state_dict())
    x, y = torch.randn(6, 3, side, side), torch.tensor([0, 1, 2, 0, 1, 2])
    for model in (plain, fast):
        functional.cross_entropy(model(x), y).backward()
    torch.testing.assert_close(fast(x), plain(x), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), plain(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("plain", "fast"), [(CNN, FastCNN), (MobileNetV2, FastMobileNetV2)])
def test_without_the_library_pytorchs_operations_do_it(plain, fast, monkeypatch):
    monkeypatch.setattr(library, "C", None)
    torch.manual_seed(0)
    plain, fast = plain(2), fast(2)
    fast.load_state_dict(plain.state_dict())
    x, y = torch.randn(4, 3, 28, 28), torch.tensor([0, 1, 0, 1])
    for model in (plain, fast):
        torch.manual_seed(1)  # the same dropout and stochastic depth
        functional.cross_entropy(model.train()(x), y).backward()
    torch.testing.assert_close(fast.eval()(x), plain.eval()(x), rtol=1e-3, atol=1e-4)
    ours, theirs = (torch.cat([p.grad.flatten() for p in m.parameters()]) for m in (fast, plain))
    assert (ours - theirs).norm() < 0.01 * theirs.norm()  # a ReLU6 may fall on the other side of its corner


@pytest.mark.parametrize(
    ("name", "fast", "plain"), [("cnn", FastCNN, CNN), ("mobilenet", FastMobileNetV2, MobileNetV2)]
)
def test_the_spec_chooses(name, fast, plain):
    spec = ModelSpec(name, 2, (3, 28, 28), (0.5,) * 3, (0.5,) * 3)
    assert type(build(spec).module) is fast
    assert type(build(replace(spec, fast=False)).module) is plain


@in_c
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_looked_up_are_those_of_the_formula_to_the_bit(channels):
    """(x/255 − mean)/std as one product and one sum, each rounded, as PyTorch computes it elsewhere."""
    spec = ModelSpec("cnn", 2, (channels, 16, 48), (0.1307, 0.5, 0.485)[:channels], (0.3081, 0.25, 0.229)[:channels])
    model = build(replace(spec, fast=True))
    x = torch.arange(3 * channels * 16 * 48, dtype=torch.int64).remainder(256).to(torch.uint8)
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))].view(3, channels, 16, 48)
    mean, std = torch.tensor(spec.mean).view(-1, 1, 1), torch.tensor(spec.std).view(-1, 1, 1)
    theirs = x.float().mul_(1.0 / (255.0 * std)).add_(-mean / std)
    assert torch.equal(model.normalise(x), theirs)
    assert torch.equal(model.normalise(x[:, :, ::2, 8:24]), theirs[:, :, ::2, 8:24])  # a view of pictures too
    assert model.normalise(x).is_contiguous(memory_format=torch.channels_last)


@in_c
def test_what_is_no_picture_is_not_looked_up():
    with pytest.raises(ValueError, match=r"contiguous bytes on the CPU, not float32 \[1, 3, 2, 2\]"):
        native.look_up(torch.zeros(1, 3, 2, 2), torch.zeros(3, 256))
    with pytest.raises(ValueError, match=r"In C the table of values must be contiguous float32 \[3, 256\]"):
        native.look_up(torch.zeros(1, 3, 2, 2, dtype=torch.uint8), torch.zeros(1, 256))
