"""What a model is, as plain data: small enough to send to a worker, enough to build the same model anywhere."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSpec:
    """`name` is `mobilenet`, `cnn` or `package.module:factory`, `factory(num_classes, shape)` giving an `nn.Module`.

    Pixel values in [0, 1] are normalised by `mean` and `std`, per channel. `fast` chooses the hand-written CPU
    layers where they exist (`mobilenet`, `cnn`); they equal the plain PyTorch path within float tolerance.
    """

    name: str
    num_classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    fast: bool = True
