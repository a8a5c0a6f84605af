"""Losses against their definitions."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from feddiverse.client.training import cross_entropy, generalised_cross_entropy


@given(st.floats(0.01, 1.0), st.integers(0, 1000))
def test_generalised_cross_entropy_is_its_definition(q, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(6, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (6,), generator=generator)
    p = logits.softmax(1)[torch.arange(6), y]
    torch.testing.assert_close(generalised_cross_entropy(logits, y, q), (1 - p**q) / q)


def test_gradient_weighs_easy_samples_by_p_to_the_q():
    logits = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 2, 0, 1])
    (gce,) = torch.autograd.grad(generalised_cross_entropy(logits, y, 0.3).sum(), logits)
    (ce,) = torch.autograd.grad(cross_entropy(logits, y).sum(), logits)
    p = logits.softmax(1)[torch.arange(5), y].unsqueeze(1)
    torch.testing.assert_close(gce, p.detach() ** 0.3 * ce)


def test_limits():
    logits, y = torch.tensor([[100.0, -100.0], [-100.0, 100.0]]), torch.tensor([0, 0])
    torch.testing.assert_close(generalised_cross_entropy(logits, y, 0.5), torch.tensor([0.0, 2.0]))
    assert torch.equal(generalised_cross_entropy(logits, y, 0.0), cross_entropy(logits, y))
