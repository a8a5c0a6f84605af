"""Layers with a backward of their own, as a user of autograd meets them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from feddiverse.models.cnn import CNN
from feddiverse.models.layers import library
from feddiverse.models.layers.fast import FastCNN, FastMobileNetV2
from feddiverse.models.mobilenet import MobileNetV2

PAIRS = {"cnn": (CNN, FastCNN), "mobilenet": (MobileNetV2, FastMobileNetV2)}
SIDE = 28
both = pytest.mark.parametrize("name", PAIRS)


def twins(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain, fast = (kind(2).to(dtype).eval() for kind in PAIRS[name])
    fast.load_state_dict(plain.state_dict())
    return plain, fast


def pictures(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1)).to(dtype)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), torch.tensor([0, 1, 1]))


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    """In single precision a ReLU6 may fall on the other side of its corner: in norm, not number by number."""
    if ours.dtype == torch.float64:
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)
    else:
        assert (ours - theirs).norm() <= 0.02 * theirs.norm() + 1e-6


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["in C", "by PyTorch"])
@given(st.data())
@settings(max_examples=5, derandomize=True)
def test_what_is_frozen_has_no_gradient_and_all_else_has(name, dtype, data):
    plain, fast = twins(name, dtype)
    names = [name for name, _ in plain.named_parameters()]
    frozen = data.draw(st.sets(st.sampled_from(names[:6])) | st.sets(st.sampled_from(names), min_size=1))
    for model in (plain, fast):
        for parameter_name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter_name not in frozen)
        loss = loss_of(model, pictures(dtype))
        if loss.requires_grad:
            loss.backward()
    for (parameter_name, ours), theirs in zip(fast.named_parameters(), plain.parameters(), strict=True):
        if parameter_name in frozen:
            assert ours.grad is None
        else:
            assert_close(ours.grad, theirs.grad)


@both
def test_a_frozen_trunk_is_not_taped(name):
    _, fast = twins(name)
    for parameter_name, parameter in fast.named_parameters():
        parameter.requires_grad_(parameter_name.startswith("head"))
    assert not fast.features(pictures()).requires_grad
    loss_of(fast, pictures()).backward()
    assert fast.head.weight.grad.norm() > 0


@both
def test_a_gradient_that_is_there_already_is_left_alone_when_frozen(name):
    _, fast = twins(name)
    first = next(fast.parameters())
    first.requires_grad_(False)
    first.grad = torch.full_like(first, 7.0)
    loss_of(fast, pictures()).backward()
    assert first.grad.eq(7.0).all()


@both
@pytest.mark.parametrize("retain", [False, True])
def test_a_second_backward_raises(name, retain):
    _, fast = twins(name)
    loss = loss_of(fast, pictures())
    loss.backward(retain_graph=retain)
    before = [p.grad.clone() for p in fast.parameters()]
    with pytest.raises(RuntimeError, match="second"):
        loss.backward()
    trunk = [(p.grad, b) for (n, p), b in zip(fast.named_parameters(), before, strict=True) if "head" not in n]
    assert all(torch.equal(now, then) for now, then in trunk)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["in C", "by PyTorch"])
@pytest.mark.parametrize("trained", [True, False])
def test_pictures_have_a_gradient_if_they_ask_for_it(name, dtype, trained):
    plain, fast = twins(name, dtype)
    found = []
    for model in (plain, fast):
        model.requires_grad_(trained)
        x = pictures(dtype).requires_grad_()
        loss_of(model, x).backward()
        found.append(x.grad)
        assert all((p.grad is not None) == trained for p in model.parameters())
    assert_close(*reversed(found))
    assert found[1].norm() > 0


@both
def test_pictures_changed_before_backward_are_noticed(name):
    """Only what backward reads of them has to be kept: the copy that a change of layout makes is not theirs."""
    _, fast = twins(name)
    x = pictures().contiguous(memory_format=torch.channels_last)
    loss = loss_of(fast, x)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@both
def test_a_gradient_of_the_gradient_is_refused(name):
    _, fast = twins(name)
    x = pictures().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(fast, x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@both
def test_parameters_put_in_for_one_call_get_their_gradients(name):
    plain, fast = twins(name)
    others = {n: (p.detach() + 0.01).requires_grad_() for n, p in fast.named_parameters()}
    y = torch.tensor([0, 1, 1])
    functional.cross_entropy(functional_call(fast, others, pictures()), y).backward()
    plain.load_state_dict(others)
    loss_of(plain, pictures()).backward()
    assert all(p.grad is None for p in fast.parameters())
    for (parameter_name, theirs), ours in zip(plain.named_parameters(), others.values(), strict=True):
        assert ours.grad is not None, parameter_name
        assert_close(ours.grad, theirs.grad)


@both
def test_computed_parameters_are_refused(name):
    _, fast = twins(name)
    computed = {n: 2 * p for n, p in fast.named_parameters()}
    loss = functional_call(fast, computed, pictures()).sum()
    with pytest.raises(RuntimeError, match="can train no parameter that is computed"):
        loss.backward()


@both
def test_what_autograd_sends_is_not_written_to(name):
    _, fast = twins(name)
    features = fast.features(pictures())
    dy = torch.randn_like(features)
    sent = dy.clone()
    features.backward(sent)
    assert torch.equal(sent, dy)


in_c = pytest.mark.skipif(library.C is None, reason="no C compiler was here when the package was installed")


@in_c
@both
@pytest.mark.parametrize("side", [SIDE, 45], ids=["28 px", "45 px"])  # the small CNN averages the maps of the latter
@pytest.mark.parametrize("training", [True, False], ids=["with dropout", "without"])
def test_a_step_without_autograd_gives_autograds_bits(name, side, training):
    x = torch.randn(5, 3, side, side).contiguous(memory_format=torch.channels_last)
    y = torch.tensor([0, 1, 1, 0, 1])
    _, by_hand = twins(name)
    _, by_autograd = twins(name)
    torch.manual_seed(2)
    loss = functional.cross_entropy(by_autograd.train(training)(x), y)
    loss.backward()
    torch.manual_seed(2)
    assert by_hand.train(training).loss_and_gradient(x, y) == loss.item()
    for ours, theirs in zip(by_hand.parameters(), by_autograd.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    before = [parameter.grad.clone() for parameter in by_hand.parameters()]
    torch.manual_seed(2)
    by_hand.loss_and_gradient(x, y)
    for gradient, parameter in zip(before, by_hand.parameters(), strict=True):  # it adds, as backward() does
        torch.testing.assert_close(parameter.grad, 2 * gradient)


@in_c
@both
def test_a_step_without_autograd_knows_its_classes(name):
    with pytest.raises(IndexError, match="out of bounds"):
        twins(name)[1].loss_and_gradient(pictures(), torch.tensor([0, 1, 2]))
