"""Memory that a process and its workers see alike: θ on its way down, reply vectors and signs of life up."""

import mmap
import os

import numpy as np

from feddiverse.errors import UserError
from feddiverse.messages import Vector

# Slots beyond what the workers need at least let them go on while a slow client holds up the order of replies.
# A slot that is never used costs nothing: the kernel gives memory to pages when they are first written.
SPARE_BYTES = 64 << 20
MAX_SLOTS = 256


class SharedVectors:
    """θ and `num_slots` reply vectors of the same length, in one mapping.

    It has no name in /dev/shm, so nothing is left behind however the processes end. Forked workers inherit it; others
    find it by the `descriptor` of a file in memory, which is made as long as it must be.
    """

    def __init__(self, num_weights: int, num_workers: int, descriptor: int = -1) -> None:
        vector_bytes = max(4 * num_weights, 4)
        self.num_slots = max(num_workers + 2, min(SPARE_BYTES // vector_bytes, MAX_SLOTS))
        try:
            if descriptor >= 0:
                os.ftruncate(descriptor, vector_bytes * (self.num_slots + 1))
            memory = mmap.mmap(descriptor, vector_bytes * (self.num_slots + 1))
        except OSError as error:
            raise UserError(f"There is no memory for {num_workers:,} workers ({error.strerror}); use fewer.") from error
        self.beats = np.frombuffer(mmap.mmap(-1, 8 * num_workers), np.int64)  # each worker's signs of life
        vectors = np.frombuffer(memory, np.float32).reshape(self.num_slots + 1, -1)
        self.theta: Vector = vectors[0, :num_weights]
        self._slots = vectors[1:]

    def put(self, slot: int, vector: Vector) -> bool:
        """Write a reply's vector into a slot; False if it is of another kind or too long."""
        if vector.dtype != np.float32 or vector.ndim != 1 or vector.size > self._slots.shape[1]:
            return False
        self._slots[slot, : vector.size] = vector
        return True

    def take(self, slot: int, size: int) -> Vector:
        """A copy of what was put, after which the slot can be used again."""
        return self._slots[slot, :size].copy()
