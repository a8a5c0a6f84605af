import warnings

import numpy as np
import pytest

from feddiverse.errors import UserError
from feddiverse.flower import CountsPartitioner, measure_partitioner
from feddiverse.heterogeneity import measure
from feddiverse.splits import SPLITS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # theirs, when first imported
    from datasets import Dataset
    from flwr_datasets.partitioner import IidPartitioner

COUNTS = np.array([[[5, 1], [0, 4]], [[2, 2], [2, 2]], [[0, 3], [3, 0]]])


def dataset(per_group: int = 12) -> Dataset:
    """Breeds on backgrounds, text labels, in mixed order; `n` tells every sample apart."""
    rows = [(dog, place) for dog in ("corgi", "labrador") for place in ("beach", "snow") for _ in range(per_group)]
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    return Dataset.from_dict(
        {"dog": [rows[i][0] for i in order], "place": [rows[i][1] for i in order], "n": list(range(len(rows)))}
    )


def partitioner(counts: object = COUNTS, **options: object) -> CountsPartitioner:
    made = CountsPartitioner(counts, "dog", "place", **options)
    made.dataset = dataset()
    return made


def test_every_client_gets_exactly_its_counts_and_no_sample_twice() -> None:
    made = partitioner()
    parts = [made.load_partition(k) for k in range(made.num_partitions)]
    for part, table in zip(parts, COUNTS, strict=True):
        pairs = list(zip(part["dog"], part["place"], strict=True))
        found = [[pairs.count((dog, place)) for place in ("beach", "snow")] for dog in ("corgi", "labrador")]
        assert found == table.tolist()
    everyone = [n for part in parts for n in part["n"]]
    assert len(everyone) == len(set(everyone)) == COUNTS.sum()


def test_the_seed_decides_who_gets_what_and_nothing_else_does() -> None:
    once, again, other = partitioner(seed=1), partitioner(seed=1), partitioner(seed=2)
    assert again.load_partition(2)["n"] == once.load_partition(2)["n"] != other.load_partition(2)["n"]


def test_values_are_numbered_as_listed() -> None:
    made = partitioner([[[1, 0], [0, 2]]], labels=["labrador", "corgi"], attributes=["snow", "beach"])
    part = made.load_partition(0)
    assert sorted(zip(part["dog"], part["place"], strict=True)) == [("corgi", "beach")] * 2 + [("labrador", "snow")]


def test_measure_reads_any_partitioner() -> None:
    ours, direct = measure_partitioner(partitioner(), "dog", "place"), measure(COUNTS)
    assert [ours.gci, ours.gai, ours.gsc] == [direct.gci, direct.gai, direct.gsc]
    np.testing.assert_array_equal(ours.clients, direct.clients)
    theirs = IidPartitioner(4)
    theirs.dataset = dataset()
    assert measure_partitioner(theirs, "dog", "place").sizes.tolist() == [12, 12, 12, 12]


def test_splits_go_by_name_and_by_rule() -> None:
    assert CountsPartitioner("gsc").counts.tolist() == SPLITS["gsc"].counts.tolist()
    assert CountsPartitioner("iid(clients=7,samples=70)").num_partitions == 7


def test_what_cannot_be_dealt_is_told() -> None:
    with pytest.raises(UserError, match=r"the dataset has 12 samples of class 'corgi', attribute 'snow', but .* 13"):
        partitioner([[[0, 13], [0, 0]]]).load_partition(0)
    with pytest.raises(UserError, match="There is no partition 3"):
        partitioner().load_partition(3)
    made = CountsPartitioner(COUNTS, "dog", "place")
    made.dataset = Dataset.from_dict({"n": [1]})
    with pytest.raises(UserError, match="no column 'dog'"):
        made.load_partition(0)
    with pytest.raises(UserError, match="Counts must be whole numbers"):
        CountsPartitioner([[1.5]])
    with pytest.raises(UserError, match="There is no split 'best'"):
        CountsPartitioner("best")
