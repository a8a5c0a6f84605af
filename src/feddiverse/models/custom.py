"""A user's own `nn.Module`: a factory, or a module that is made already."""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from feddiverse.errors import UserError


def build(
    name: str,
    make: Callable[..., Any] | nn.Module,
    num_classes: int,
    shape: tuple[int, ...],
    options: Mapping[str, Any] = {},
) -> nn.Module:
    """The module that `make` stands for, with `features` and `head`.

    A factory is called with as many of `(num_classes, shape)` as it takes, and its own parameters; a module is copied,
    weights and all.
    """
    if isinstance(make, nn.Module):
        module: Any = copy.deepcopy(make)
    else:
        arguments = (num_classes, shape)[: _num_arguments(make, options)]
        try:
            module = make(*arguments, **options)
        except Exception as error:
            called = f"{name}({', '.join([*map(str, arguments), *(f'{k}={v}' for k, v in options.items())])})"
            raise UserError(f"{called} failed: {type(error).__name__}: {error}.") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"{name} gave a {type(module).__name__}; a model factory must return a torch.nn.Module.")
    if next(module.parameters(), None) is None:
        raise UserError(f"The model {name} has no weights to train.")
    if callable(getattr(module, "features", None)) and isinstance(getattr(module, "head", None), nn.Module):
        return module
    return WithFeatures(module, name)


def without_features(module: nn.Module) -> nn.Module:
    """The user's own module, whose tensors have the names that the user knows."""
    return module.module if isinstance(module, WithFeatures) else module


def _num_arguments(make: Callable[..., Any], options: Mapping[str, Any]) -> int:
    """How many positional arguments a factory wants: those without a default, up to two; any number means two."""
    parameters = [p for p in inspect.signature(make).parameters.values() if p.name not in options]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 2
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [p for p in positional if p.name in ("num_classes", "shape")]
    return max(len(named), sum(p.default is p.empty for p in positional))


class WithFeatures(nn.Module):
    """Gives `features` and `head` to a module without them: its last Linear layer and what goes into it."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.module, self._name = module, name
        # In a list: they are registered once already, inside `module`.
        self._last = [m for m in module.modules() if isinstance(m, nn.Linear)][-1:]

    @property
    def head(self) -> nn.Linear:
        if not self._last:
            raise UserError(
                f"The model {self._name} has no Linear layer, whose input estimators look at: give it `features(x)`"
                " and `head`, or choose a selector that needs neither."
            )
        return self._last[0]

    def features(self, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            self.module(x)
        finally:
            hook.remove()
        return seen[-1].flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.module(x)
        return logits
