"""Pictures changed a little at each showing: mirrored and shifted at random.

>>> import numpy as np
>>> x = np.arange(6, dtype=np.uint8).reshape(1, 1, 2, 3)
>>> augment(x, np.random.default_rng(2), flip=True)[0, 0].tolist()
[[2, 1, 0], [5, 4, 3]]
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from feddiverse import seeding
from feddiverse.messages import GroupSums, Train

Pictures = NDArray[np.uint8]  # [n, channels, height, width]

Augment = Callable[[Pictures], Pictures]


def augmentation(task: Train | GroupSums, client_id: int) -> Augment | None:
    """What the task asks to be done with each batch, in the order they are shown; None: nothing.

    Its draws are keyed as all others: by seed, round and client, then by the order of the samples.
    """
    if not (task.flip or task.crop_padding):
        return None
    rng = seeding.rng(task.seed, "augment", task.round, client_id)
    return lambda x: augment(x, rng, flip=task.flip, crop_padding=task.crop_padding, padding=task.padding)


def augment(
    x: Pictures, rng: np.random.Generator, *, flip: bool = False, crop_padding: int = 0, padding: str = "constant"
) -> Pictures:
    """A changed copy of `x`. `flip`: every second picture is mirrored left to right, at random. `crop_padding` p: it is
    framed by p pixels, and a random window of its own size cut out: a shift by up to p pixels each way.

    The frame is black (`padding` "constant") or repeats the picture's rim ("edge").
    """
    if x.dtype != np.uint8 or x.ndim != 4:
        raise ValueError(
            f"only pictures of bytes [n, channels, height, width] can be mirrored or shifted, not {x.dtype} {x.shape}:"
            " set flip to false and crop_padding to 0"
        )
    n, _, height, width = x.shape
    p = crop_padding
    # Both are always drawn, so that one does not change what the other does.
    offsets = rng.integers(0, 2 * p + 1, (n, 2)).tolist()
    mirrored: list[bool] = np.less(rng.random(n), 0.5).tolist()
    framed = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)), mode=padding) if p else x  # type: ignore[call-overload]
    out = np.empty_like(x)
    for i, (top, left) in enumerate(offsets):
        window = framed[i, :, top : top + height, left : left + width]
        out[i] = window[:, :, ::-1] if flip and mirrored[i] else window
    return out
