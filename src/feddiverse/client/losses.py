"""What a client minimises, one number a sample; means are taken by the caller."""

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """−log p_y. [n, classes], [n] → [n]."""
    return functional.cross_entropy(logits, y, reduction="none")


def generalised_cross_entropy(logits: Tensor, y: Tensor, q: float) -> Tensor:
    """(1 − p_y^q)/q (Zhang & Sabuncu 2018; paper, Sec. IV-A): q → 0 is cross-entropy, q = 1 the mean absolute error.

    Its gradient is p_y^q times that of cross-entropy: what is easy to learn, such as a spurious attribute, weighs more.
    """
    if q == 0.0:
        return cross_entropy(logits, y)
    log_p = -cross_entropy(logits, y)
    return -torch.expm1(q * log_p) / q
