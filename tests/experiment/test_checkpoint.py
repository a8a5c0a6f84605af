"""Snapshots survive the trip through a file exactly, and are written without holding up rounds."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from feddiverse.errors import UserError
from feddiverse.experiment.checkpoint import Snapshot, Writer, pack, unpack

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
leaves = scalars | arrays.arrays(st.sampled_from([np.float32, np.float64, np.int64]), st.tuples(st.integers(0, 3)))
keys = st.text(max_size=5) | st.integers(0, 99)
plain = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=8,
)


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def snapshot(round: int = 3, **state: object) -> Snapshot:
    return Snapshot(round, np.arange(4, dtype=np.float32), {"m": np.linspace(0, 1, 4)}, state, 1, 2.5)


@given(st.dictionaries(st.text(max_size=5), plain, max_size=3))
def test_what_is_packed_is_unpacked(state: dict) -> None:
    before = Snapshot(3, np.arange(4, dtype=np.float32), {"m": np.linspace(0, 1, 4)}, state, 1, 2.5)
    assert same(vars(unpack(pack(before), "here")), vars(before))


def test_what_no_checkpoint_can_hold_is_refused() -> None:
    with pytest.raises(TypeError, match=r"selector\.x is a set"):
        pack(snapshot(x={1, 2}))


@pytest.mark.parametrize("cut", [0, 4, 50, -1])
def test_a_damaged_file_is_told(cut: int) -> None:
    with pytest.raises(UserError, match="checkpoint FILE is damaged"):
        unpack(pack(snapshot())[:cut], "FILE")


def test_a_small_checkpoint_is_written_soon_and_the_last_one_always() -> None:
    written: list[int] = []
    first = threading.Event()
    writer = Writer(lambda s: (written.append(s.round), first.set()))
    writer.submit(snapshot(1))
    first.wait()  # without a further one, and without closing
    assert written == [1]
    for number in range(2, 50):
        writer.submit(snapshot(number))
    writer.close()
    assert written[-1] == 49
    assert written == sorted(set(written))


def test_rounds_do_not_wait_for_a_slow_disk_which_gets_only_the_newest() -> None:
    written: list[int] = []
    taken, disk = threading.Event(), threading.Event()

    def slow(s: Snapshot) -> None:
        taken.set()
        disk.wait()
        written.append(s.round)

    writer = Writer(slow)
    writer.submit(snapshot(1))
    taken.wait()
    for number in range(2, 100):
        writer.submit(snapshot(number))  # would stand still here for ever, were it to wait for the disk
    assert written == []
    disk.set()
    writer.close()
    assert written == [1, 99]


def test_what_goes_wrong_while_writing_is_raised_in_the_run() -> None:
    def fail(s: Snapshot) -> None:
        raise UserError("disk full")

    writer = Writer(fail)
    writer.submit(snapshot(1))
    with pytest.raises(UserError, match="disk full"):
        writer.close()
