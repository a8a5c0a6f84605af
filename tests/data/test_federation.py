"""Dealing samples to clients: what is asked for, each sample once, by seed, and only when asked."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feddiverse.data.federation import Federation, Ids, deal
from feddiverse.errors import UserError


@dataclass
class FakeSource:
    """Pictures of one pixel that show their own id; the last channel shows the attribute."""

    train_y: Ids
    train_a: Ids | None
    asked: list[Ids] = field(default_factory=list)
    name = "fake"
    class_names = ("cat", "dog", "emu")
    attribute_names = ("day", "night")
    shape = (3, 1, 1)
    mean = std = (0.5, 0.5, 0.5)
    test_y = np.array([0, 1, 1])
    test_a = np.array([1, 0, 1])
    fingerprint = "fake"

    def train_x(self, ids: Ids, a: Ids) -> NDArray[np.uint8]:
        self.asked.append(ids)
        return np.stack([ids % 256, ids // 256, a], axis=1).astype(np.uint8)[:, :, None, None]

    def test_x(self, ids: Ids, a: Ids) -> NDArray[np.uint8]:
        return self.train_x(ids, a)


def source_for(counts: NDArray[np.int64], spare: int, attribute_is_free: bool) -> FakeSource:
    """A pool in mixed order that has just what `counts` needs, and `spare` more of each group."""
    pooled = counts.sum(axis=0) + spare
    classes, attributes = np.indices(pooled.shape)
    y, a = np.repeat(classes.ravel(), pooled.ravel()), np.repeat(attributes.ravel(), pooled.ravel())
    order = np.random.default_rng(1).permutation(len(y))
    return FakeSource(y[order], None if attribute_is_free else a[order])


tables = st.integers(1, 5).flatmap(
    lambda k: st.lists(st.integers(0, 6), min_size=k * 6, max_size=k * 6).map(
        lambda flat: np.array(flat, np.int64).reshape(k, 3, 2)
    )
)


@given(tables, st.integers(0, 3), st.booleans(), st.integers(0, 5))
@settings(max_examples=80)
def test_clients_get_what_the_counts_say_and_no_sample_twice(
    counts: NDArray[np.int64], spare: int, attribute_is_free: bool, seed: int
) -> None:
    source = source_for(counts, spare, attribute_is_free)
    federation = deal("x", source, counts, 1, seed)
    for k in range(len(counts)):
        samples = federation.client(k)
        seen = np.zeros(counts.shape[1:], np.int64)
        np.add.at(seen, (samples.y, samples.a), 1)
        assert (seen == counts[k]).all()
        assert (samples.y == source.train_y[federation.client_ids[k]]).all()
        assert (samples.x[:, 2, 0, 0] == samples.a).all()
        if source.train_a is not None:
            assert (samples.a == source.train_a[federation.client_ids[k]]).all()
    everyone = np.concatenate(list(federation.client_ids))
    assert len(np.unique(everyone)) == len(everyone) == counts.sum()


def make(seed: int, clients: int = 6) -> Federation:
    counts = np.full((clients, 2, 2), 5, np.int64)
    return deal("x", source_for(counts, 10, False), counts, 2, seed)


def test_the_seed_decides() -> None:
    first, again, other = (np.concatenate(list(make(seed).client_ids)) for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()
    assert make(0).client_ids[-1].tolist() == make(0).client_ids[5].tolist()
    assert [ids.tolist() for ids in make(0).client_ids[1:3]] == [make(0).client_ids[k].tolist() for k in (1, 2)]
    with pytest.raises(IndexError):
        make(0).client_ids[6]


def test_clients_nobody_asks_cost_nothing() -> None:
    federation = make(0, clients=24_000)
    assert federation.source.asked == []
    assert len(federation.client(23_999)) == 20
    assert len(federation.source.asked) == 1


def test_test_set_and_its_slices() -> None:
    federation = make(0)
    whole, part = federation.test(), federation.test(1, 3)
    assert whole.y.tolist() == [0, 1, 1]
    assert part.a.tolist() == [0, 1]
    assert (part.x == whole.x[1:3]).all()
    assert federation.sizes == dict.fromkeys(range(6), 20)


@pytest.mark.parametrize(("is_free", "named"), [(False, "'dog', attribute 'night'"), (True, "'dog'")])
def test_too_few_samples_are_named(is_free: bool, named: str) -> None:
    counts = np.full((2, 2, 2), 4, np.int64)
    source = source_for(counts, 0, is_free)
    counts[1, 1, 1] += 3
    has, asked = (16, 19) if is_free else (8, 11)
    with pytest.raises(UserError, match=f"fake has {has} samples of class {named}, but the split asks for {asked}"):
        deal("x", source, counts, 1, 0)
