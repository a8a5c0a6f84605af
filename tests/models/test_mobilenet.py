"""The hand-written MobileNetV2 is the plain one: same outputs, same gradients, same draws."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from feddiverse.models.layers.fast import FastMobileNetV2
from feddiverse.models.mobilenet import MobileNetV2

SIDES = [28, 33, 64, 96]  # maps of odd and even sides, and depthwise convolutions at 1×1, 2×2 and larger


def twins(dtype: torch.dtype) -> tuple[MobileNetV2, MobileNetV2]:
    torch.manual_seed(0)
    plain, fast = MobileNetV2(3).to(dtype), FastMobileNetV2(3).to(dtype)
    with torch.no_grad():
        for parameter in plain.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))  # GroupNorm away from the identity
    fast.load_state_dict(plain.state_dict())
    return plain, fast


def backward(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    torch.manual_seed(1)  # the same dropout and stochastic depth
    logits = model.train()(x)
    functional.cross_entropy(logits, y).backward()
    return logits


@pytest.mark.parametrize("side", SIDES)
def test_outputs_and_every_gradient_equal_autograds(side):
    plain, fast = twins(torch.float64)
    x, y = torch.randn(5, 3, side, side, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    torch.testing.assert_close(backward(fast, x, y), backward(plain, x, y), rtol=1e-9, atol=1e-12)
    for (name, ours), theirs in zip(fast.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_single_precision_agrees_within_its_tolerance():
    plain, fast = twins(torch.float32)
    x = torch.randn(28, 3, 28, 28)
    torch.testing.assert_close(fast.eval().features(x), plain.eval().features(x), rtol=1e-3, atol=1e-4)
    y = torch.arange(28) % 3
    torch.testing.assert_close(backward(fast, x, y), backward(plain, x, y), rtol=1e-3, atol=1e-4)
    ours, theirs = (torch.cat([p.grad.flatten() for p in m.parameters()]) for m in (fast, plain))
    assert (ours - theirs).norm() < 0.01 * theirs.norm()  # a ReLU6 may fall on the other side of its corner


def test_backward_adds_to_gradients_that_are_there():
    _, fast = twins(torch.float64)
    x, y = torch.randn(4, 3, 28, 28, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    backward(fast, x, y)
    once = [p.grad.clone() for p in fast.parameters()]
    backward(fast, x, y)
    for gradient, parameter in zip(once, fast.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, 2 * gradient)


def test_evaluation_draws_nothing_and_tapes_nothing():
    _, fast = twins(torch.float32)
    x = torch.randn(3, 3, 28, 28)
    before = torch.random.get_rng_state()
    with torch.inference_mode():
        first = fast.eval()(x)
        assert torch.equal(first, fast(x))
    assert torch.equal(before, torch.random.get_rng_state())
    assert not first.requires_grad


def test_frozen_trunk_has_no_graph():
    _, fast = twins(torch.float32)
    for parameter in fast.parameters():
        parameter.requires_grad_(False)
    assert not fast.features(torch.randn(2, 3, 28, 28)).requires_grad


def test_stochastic_depth_rises_and_keeps_the_mean():
    model = MobileNetV2(2).train()
    drops = [block.drop for block in model.blocks if block.is_residual]
    assert drops == sorted(drops)
    assert drops[0] > 0
    assert 0.17 < drops[-1] <= 0.2
    survivors = model.blocks[15].survivors(torch.empty(100_000))
    values = survivors.unique()
    torch.testing.assert_close(values, torch.tensor([0.0, 1 / (1 - model.blocks[15].drop)]))
    assert abs(survivors.mean().item() - 1) < 0.01
    assert model.eval().blocks[15].survivors(torch.empty(3)) is None
