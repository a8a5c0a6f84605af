"""Memory for maps that is kept from one step to the next.

Large arrays that are freed go back to the system, and come back as pages that it has to clear again: at 224 px that was
a quarter of a step. Here they wait for the next step instead.
"""

import math
import os
import threading
import weakref
from bisect import bisect_left, insort

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddiverse.models.layers import library

SMALL = 1 << 16  # floats; below, the C library keeps what was freed by itself
LINE = 64  # bytes of a cache line


class Pool:
    """Tensors whose memory is used again once nothing refers to it any more, neither a tensor nor a view of it.

    Holds as many blocks as were ever in use at the same time. Not emptied: a process that trains goes on to train.
    """

    def __init__(self) -> None:
        self._free: list[NDArray[np.float32]] = []  # in order of their size
        self._lent: dict[int, weakref.ref[NDArray[np.float32]]] = {}

    def empty(self, *shape: int) -> Tensor:
        """float32 numbers of any value, as `torch.empty`."""
        count = math.prod(shape)
        if count < SMALL:
            return torch.empty(shape)
        block = self._find(count)
        lent = block[:count]  # referred to by the tensor's storage, so by all its views, and by nothing else

        def give_back(_: object, key: int = id(lent)) -> None:
            del self._lent[key]
            insort(self._free, block, key=len)

        self._lent[id(lent)] = weakref.ref(lent, give_back)
        return torch.from_numpy(lent).view(shape)

    def _find(self, count: int) -> NDArray[np.float32]:
        """The smallest free block that is large enough, or a new one in place of the largest that is not."""
        place = bisect_left(self._free, count, key=len)
        if place < len(self._free):
            return self._free.pop(place)
        if self._free:
            self._free.pop()
        return _allocate(count)


def _allocate(count: int) -> NDArray[np.float32]:
    """From NumPy, which asks for huge pages where there are any; starts at a cache line, as torch's memory does."""
    memory = np.empty(count + LINE // 4, np.float32)
    skipped = -memory.ctypes.data % LINE // 4
    return memory[skipped : skipped + count]


_pool = Pool()
_own = threading.local()
# Sanitizers watch what is allocated and freed: with a library of theirs nothing is used again.
_is_watched = library.ENVIRONMENT in os.environ
empty = torch.empty if _is_watched else _pool.empty


def workspace(count: int) -> Tensor:
    """float32 numbers of any value that nobody needs after the next call of C: the same memory each time, a thread's
    own."""
    if _is_watched:
        return torch.empty(count)
    held: Tensor | None = getattr(_own, "workspace", None)
    if held is None or len(held) < count:
        held = _own.workspace = empty(count)
    return held


def empty_like(x: Tensor) -> Tensor:
    return empty(*x.shape)
