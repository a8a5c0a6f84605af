"""Layers with a backward written by hand: a tape of functions, played back from the last to the first.

A layer returns its output and, if `tape` is a list, appends to it the function that takes the output's gradient (and
may use its memory), adds to its parameters' `.grad`, and returns the input's gradient.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Backward = Callable[[Tensor], Tensor]
Tape = list[Backward]
Run = Callable[[Any, Tensor, Tape | None], Tensor]
"""A model's layers, from its pictures."""


def play(run: Run, model: nn.Module, x: Tensor) -> Tensor:
    """`run(model, x, tape)` as one step of autograd, or without a tape where no gradient is asked for.

    `backward()` adds to the parameters' `.grad` itself; `torch.autograd.grad` sees none of them, nor the pictures'.
    """
    first = next(model.parameters())
    if torch.is_grad_enabled() and first.requires_grad:
        output: Tensor = _Played.apply(first, run, model, x)  # type: ignore[no-untyped-call]
        return output
    return run(model, x, None)


class _Played(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, run: Run, model: nn.Module, x: Tensor) -> Tensor:
        ctx.tape = []
        return run(model, x, ctx.tape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, None, None]:
        rewind(ctx.tape, dy)
        return None, None, None, None


def rewind(tape: Tape, gradient: Tensor) -> Tensor:
    """The input's gradient from the output's; empties the tape, so that maps are freed on the way."""
    while tape:
        gradient = tape.pop()(gradient)
    return gradient


def gradient_of(parameter: Tensor) -> Tensor:
    """The tensor that collects the parameter's gradient, made if there is none yet."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
