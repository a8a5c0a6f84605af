"""The paper's matrices, names of federations, and how splits are fitted to the embedded digits."""

import numpy as np
import pytest

from feddiverse.data.coloured import digit_class, fitted
from feddiverse.data.names import FEDERATIONS, counts_of, parse, split_of
from feddiverse.errors import UserError
from feddiverse.heterogeneity import measure
from feddiverse.splits import PAPER, SPLITS


@pytest.mark.parametrize(
    ("name", "num_clients", "num_selected", "pooled"),
    [
        ("cmnist-gsc", 24, 9, [[1760, 640], [640, 1760]]),
        ("spawrious-gsc", 24, 9, [[1760, 640], [640, 1760]]),
        ("spawrious-gci", 24, 9, [[1760, 1760], [640, 640]]),
        ("spawrious-gai", 25, 9, [[2000, 500], [2000, 100]]),
        ("spawrious-4", 25, 9, [[2000, 200], [2000, 200], [200, 2000], [200, 2000]]),
        ("spawrious-gci-100", 100, 12, [[5640, 5640], [2160, 2160]]),
        ("waterbirds-dist", 30, 9, [[3498, 184], [56, 1057]]),  # the official train split of Waterbirds
    ],
)
def test_the_papers_check_sums(name: str, num_clients: int, num_selected: int, pooled: list[list[int]]) -> None:
    split = split_of(name)
    assert len(split.counts) == num_clients
    assert split.num_selected == num_selected
    assert split.counts.sum(axis=0).tolist() == pooled
    assert split.counts.dtype == np.int64


@pytest.mark.parametrize(
    ("split", "six"),
    [
        ("gsc", [0, 0, 0.163, 0.089, 0.089, 0.354]),
        ("gci", [0.163, 0, 0, 0.354, 0.089, 0.089]),
        ("gai", [0.005, 0.441, 0.052, 0.201, 0.497, 0.119]),
    ],
)
def test_the_papers_metrics(split: str, six: list[float]) -> None:
    assert measure(SPLITS[split].counts).six.round(3).tolist() == six


def test_single_clients_of_the_paper() -> None:
    assert SPLITS["gsc"].counts[23].tolist() == [[10, 90], [90, 10]]
    assert SPLITS["gai"].counts[24].tolist() == [[110, 5], [85, 8]]
    assert SPLITS["dist"].counts[0].tolist() == [[23, 23], [10, 110]]
    assert (SPLITS["gci-100"].counts[:25] == SPLITS["gci-100"].counts[75:]).all()


def test_names() -> None:
    assert len(PAPER) == 7
    assert parse("spawrious-gci-100") == ("gci-100", "spawrious")
    assert parse("gai:cmnist") == ("gai", "cmnist")
    assert parse("4:table:my/pictures.csv") == ("4", "table:my/pictures.csv")
    assert parse("dirichlet(alpha=0.3, clients=20):cmnist") == ("dirichlet(alpha=0.3, clients=20)", "cmnist")
    assert (counts_of("gai:cmnist") == counts_of("spawrious-gai")).all()
    assert set(FEDERATIONS) - set(PAPER) == {"digits-gsc"}


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nosuch", "There is no federation 'nosuch'"),
        ("Spawrious_GCI", "did you mean 'spawrious-gci'?"),
        ("gsc", "such as 'gsc:digits'"),
        ("gsc:", "such as 'gsc:digits'"),
        ("gcs:digits", "did you mean 'gsc'?"),
        ("gsc(3):digits", "There is no split 'gsc\\(3\\)'"),
        ("gsc:digit", "did you mean 'digits'?"),
        ("gsc:elsewhere", "Sources are digits, cmnist"),
        (":digits", "There is no split ''"),
    ],
)
def test_unknown_names_are_told_with_the_nearest(name: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint.replace("?", "\\?")):
        counts_of(name)


def test_gsc_on_digits_is_scaled_by_seven_tenths_exactly() -> None:
    assert (10 * counts_of("digits-gsc") == 7 * counts_of("cmnist-gsc")).all()


@pytest.mark.parametrize("name", SPLITS)
def test_every_split_fits_the_digits(name: str) -> None:
    asked, got = SPLITS[name].counts, counts_of(f"{name}:digits")
    num_classes = asked.shape[1]
    capacity = [360 * sum(digit_class(d, num_classes) == y for d in range(10)) for y in range(num_classes)]
    assert (got.sum(axis=(0, 2)) <= capacity).all()
    assert ((got > 0) == (asked > 0)).all()
    # The largest factor with one digit: the next one would not have fitted.
    factor = round(got.max() / asked.max(), 1)
    assert (np.abs(got - asked * factor) <= 1).all()
    assert ((asked * (factor + 0.1)).sum(axis=(0, 2)) > np.array(capacity) - asked.size).any()


def test_small_splits_are_left_alone_and_large_ones_scaled_far_down() -> None:
    small = np.full((3, 2, 2), 20)
    assert fitted(small) is not None
    assert (fitted(small) == small).all()
    assert fitted(np.full((1, 2, 2), 1_000_000)).tolist() == [[[900, 900], [900, 900]]]


def test_what_the_digits_cannot_hold_is_refused() -> None:
    with pytest.raises(UserError, match="2000, 2000"):
        fitted(np.ones((1000, 2, 2), dtype=np.int64))
    with pytest.raises(UserError, match="at most 10 classes"):
        fitted(np.ones((1, 11, 2), dtype=np.int64))


def test_digit_classes_are_the_papers_for_two() -> None:
    assert [digit_class(d, 2) for d in range(10)] == [int(d >= 5) for d in range(10)]
    assert [digit_class(d, 10) for d in range(10)] == list(range(10))
    assert {digit_class(d, 4) for d in range(10)} == {0, 1, 2, 3}
