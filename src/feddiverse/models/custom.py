"""A user's own `nn.Module`, by import path."""

import importlib
from collections.abc import Callable

from torch import Tensor, nn

from feddiverse.errors import UserError


def build(path: str, num_classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """The module that `package.module:factory` makes of `(num_classes, shape)`, with `features` and `head`."""
    make = factory(path)
    try:
        module = make(num_classes, shape)
    except Exception as error:
        raise UserError(f"{path}({num_classes}, {shape}) failed: {type(error).__name__}: {error}.") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"{path} gave a {type(module).__name__}; a model factory must return a torch.nn.Module.")
    if callable(getattr(module, "features", None)) and isinstance(getattr(module, "head", None), nn.Module):
        return module
    return WithFeatures(module, path)


def factory(path: str) -> Callable[[int, tuple[int, int, int]], object]:
    """The function itself."""
    package, _, name = path.partition(":")
    if not name:
        raise UserError(f"There is no model named {path!r}: use mobilenet, cnn or package.module:factory.")
    try:
        found = getattr(importlib.import_module(package), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: no path of a package
        raise UserError(f"The model {path!r} cannot be imported: {error}.") from error
    if not callable(found):
        raise UserError(f"{path} is no function; a model factory is called with (num_classes, shape).")
    return found  # type: ignore[no-any-return]


class WithFeatures(nn.Module):
    """Gives `features` and `head` to a module without them: its last Linear layer and what goes into it."""

    def __init__(self, module: nn.Module, path: str) -> None:
        super().__init__()
        self.module = module
        linears = [m for m in module.modules() if isinstance(m, nn.Linear)]
        if not linears:
            raise UserError(f"{path} has no Linear layer: give it `features(x)` and `head`.")
        self._last = [linears[-1]]  # in a list: registered once already, inside `module`

    @property
    def head(self) -> nn.Linear:
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
