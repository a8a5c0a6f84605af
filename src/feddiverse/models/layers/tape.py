"""Layers with a backward written by hand: a tape of functions, played back from the last to the first.

A layer returns its output and, if there is a tape, appends to it the function that takes the output's gradient (and
may use its memory), adds to its parameters' `.grad`, and returns the input's gradient.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Backward = Callable[[Tensor], Tensor]


class Tape:
    """The layers' backward functions in the order of their forward; `wants_input`: whether the gradient of what the
    first layer took is asked for."""

    def __init__(self, *, wants_input: bool) -> None:
        self._wants_input = wants_input
        self._steps: list[Backward] = []

    @property
    def wants_gradient(self) -> bool:
        """Whether the layer that comes next has to give its input's gradient: anything will do if it has not."""
        return self._wants_input or bool(self._steps)

    def append(self, backward: Backward) -> None:
        self._steps.append(backward)

    def rewind(self, gradient: Tensor) -> Tensor:
        """The input's gradient from the output's; empties the tape, so that maps are freed on the way."""
        while self._steps:
            gradient = self._steps.pop()(gradient)
        return gradient


Run = Callable[[Tensor, Tape | None], Tensor]
"""Layers, from what the first one takes to what the last one gives."""


def play(run: Run, x: Tensor, parameters: Iterable[Tensor]) -> Tensor:
    """`run(x, tape)` as one step of autograd, or without a tape where no gradient is asked for.

    `backward()` adds to the `.grad` of those `parameters` that require it, and gives x's gradient if x does;
    `torch.autograd.grad` sees x only. A second `backward()` raises, with `retain_graph` too.
    """
    trained = next((p for p in parameters if p.requires_grad), None) if torch.is_grad_enabled() else None
    if trained is None and not (torch.is_grad_enabled() and x.requires_grad):
        return run(x, None)
    output: Tensor = _Played.apply(x, trained, run)  # type: ignore[no-untyped-call]
    return output


class _Played(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, trained: Tensor | None, run: Run) -> Tensor:
        """`trained` is there for autograd to see that the output depends on something."""
        ctx.save_for_backward(x)
        ctx.tape = Tape(wants_input=ctx.needs_input_grad[0])
        return run(x, ctx.tape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None]:
        _ = ctx.saved_tensors  # raises if the graph was freed, or if x was changed since
        tape, ctx.tape = ctx.tape, None
        if tape is None:
            raise RuntimeError("These layers keep nothing for a second backward: run the forward pass again.")
        # autograd may have given dy to others too, and layers use its memory
        dx = tape.rewind(dy.clone(memory_format=torch.contiguous_format))
        return dx if ctx.needs_input_grad[0] else None, None, None


def gradient_of(parameter: Tensor) -> Tensor:
    """The tensor that collects the parameter's gradient, made if there is none yet; for a frozen one it is thrown away
    afterwards."""
    if not parameter.requires_grad:
        return torch.zeros_like(parameter)
    if not parameter.is_leaf:
        raise RuntimeError("These layers add to .grad themselves, and can train no parameter that is computed.")
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
