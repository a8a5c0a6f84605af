"""Memory is used again when nobody can read it any more, and never before."""

import gc
import os
import weakref

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddiverse.models.layers.memory import LINE, SMALL, Pool


def test_memory_is_used_again():
    pool = Pool()
    first = pool.empty(SMALL).data_ptr()
    assert pool.empty(SMALL).data_ptr() == first
    assert pool.empty(SMALL // 4, 4).data_ptr() == first
    held = pool.empty(SMALL)
    assert pool.empty(SMALL).data_ptr() != held.data_ptr()


def test_a_view_keeps_it():
    pool = Pool()
    x = pool.empty(4, SMALL)
    views = [x[1, 3:7], x.t(), x.detach(), x.view(-1)[::2], x.untyped_storage(), x.numpy()]
    where = x.data_ptr()
    del x
    while views:
        gc.collect()
        assert pool.empty(4, SMALL).data_ptr() != where
        views.pop(0)
    assert where in {pool.empty(4, SMALL).data_ptr(), *(block.ctypes.data for block in pool._free)}


def test_what_is_small_is_not_pooled():
    pool = Pool()
    pool.empty(SMALL - 1)
    assert not pool._free


def test_autograd_may_hold_it():
    pool = Pool()
    x = pool.empty(SMALL).fill_(2.0)
    weight = torch.ones(SMALL, requires_grad=True)
    product = weight * x
    del x
    pool.empty(SMALL).fill_(9.0)
    product.sum().backward()
    assert weight.grad.eq(2.0).all()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=60))
@settings(max_examples=50, derandomize=True)
def test_no_two_tensors_share_memory_and_no_more_is_held_than_was_ever_needed_at_once(steps):
    pool, held, most = Pool(), [], 0
    for gives_back, size in steps:
        if gives_back and held:
            tensor, value = held.pop(size % len(held))
            assert tensor.eq(value).all()
            del tensor
        else:
            value = float(len(held) + 100 * size)
            held.append((pool.empty(size, SMALL).fill_(value), value))
            most = max(most, len(held))
        assert len(pool._free) + len(held) <= most
    assert all(tensor.eq(value).all() for tensor, value in held)


def test_a_forked_worker_has_its_own():
    pool = Pool()
    x = pool.empty(SMALL).fill_(1.0)
    if (worker := os.fork()) == 0:
        x.numpy()[:] = 2.0  # torch would wait for threads that a forked process has not
        os._exit(0)
    assert os.waitpid(worker, 0)[1] == 0
    assert x.eq(1.0).all()


def test_it_starts_at_a_cache_line():
    pool = Pool()
    assert all(pool.empty(SMALL + extra).data_ptr() % LINE == 0 for extra in range(5))


def test_a_pool_that_is_gone_gives_its_memory_back():
    pool = Pool()
    pool.empty(SMALL)
    block = weakref.ref(pool._free[0])
    del pool
    gc.collect()
    assert block() is None
