"""What a model is, as plain data: small enough to send to a worker, enough to build the same model anywhere."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelSpec:
    """`name` is `mobilenet`, `cnn`, `mlp` or `package.module:factory`; a model that exists only in this program comes
    with its `factory` (`factory(num_classes, shape)` gives an `nn.Module`; or a module, to be copied). `options` are
    parameters of its own.

    Pixel values in [0, 1] are normalised by `mean` and `std`, per channel; without them samples are floats, taken as
    they are. `fast` chooses the hand-written CPU layers where they exist (`mobilenet`, `cnn`); they equal the plain
    PyTorch path within float tolerance.
    """

    name: str
    num_classes: int
    shape: tuple[int, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    fast: bool = True
    options: tuple[tuple[str, Any], ...] = ()
    factory: Any = field(default=None, compare=False, repr=False)
