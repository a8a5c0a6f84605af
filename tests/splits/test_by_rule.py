"""Splits made by rule: iid, shards, Dirichlet, design; and their options."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddiverse.data.names import counts_of, split_of
from feddiverse.errors import UserError
from feddiverse.heterogeneity import METRICS, measure
from feddiverse.splits import PAPER


@settings(max_examples=40)
@given(
    kind=st.sampled_from(["iid", "shards", "dirichlet"]),
    clients=st.integers(1, 30),
    samples=st.integers(60, 900),
    classes=st.integers(1, 4),
    attributes=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_sizes_are_as_asked(kind: str, clients: int, samples: int, classes: int, attributes: int, seed: int) -> None:
    text = f"{kind}(clients={clients},samples={samples},classes={classes},attributes={attributes}):cmnist"
    counts = counts_of(text, seed)
    sizes = counts.sum(axis=(1, 2))
    assert counts.shape == (clients, classes, attributes)
    assert counts.sum() == samples
    assert (counts >= 0).all()
    assert sizes.max() - sizes.min() <= (2 if kind == "shards" else 1)
    assert (counts == counts_of(text, seed)).all()
    if kind != "dirichlet":  # dealt from a pool that is balanced over the groups
        assert np.ptp(counts.sum(axis=0)) <= 1


def test_seeds_give_different_splits() -> None:
    for kind in ("iid", "shards", "dirichlet", "design(gsc=0.3)"):
        assert (counts_of(f"{kind}:cmnist", 0) != counts_of(f"{kind}:cmnist", 1)).any()


def test_iid_clients_look_alike() -> None:
    assert measure(counts_of("iid(clients=10,samples=10000):cmnist")).six.max() < 0.01


def test_shards_bound_how_many_groups_a_client_has() -> None:
    counts = counts_of("shards(per_client=2,clients=20,samples=4000):cmnist")
    assert ((counts > 0).sum(axis=(1, 2)) <= 2).all()
    assert set(counts[counts > 0].tolist()) == {100, 200}


def test_dirichlet_concentration_runs_from_one_group_to_even_mixes() -> None:
    def mean_largest_share(alpha: float) -> float:
        counts = counts_of(f"dirichlet(alpha={alpha},clients=200,samples=40000):cmnist")
        return float((counts.max(axis=(1, 2)) / 200).mean())

    assert mean_largest_share(0.01) > 0.95
    assert mean_largest_share(1000) < 0.35
    # The mean of a symmetric Dirichlet's squared share is (α+1)/(4α+1)/4 for four groups.
    counts = counts_of("dirichlet(alpha=0.5,clients=2000,samples=2000000):cmnist") / 1000
    assert (counts**2).mean() == pytest.approx(1.5 / 3 / 4, rel=0.05)


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_design_reaches_the_metrics_of_the_paper(name: str, seed: int) -> None:
    original = counts_of(name)
    num_clients, num_classes, _ = original.shape
    wanted = measure(original)
    targets = ",".join(f"{metric}={getattr(wanted, metric)}" for metric in METRICS)
    text = f"design({targets},clients={num_clients},samples={original.sum()},classes={num_classes}):cmnist"
    counts = counts_of(text, seed)
    assert counts.shape == original.shape
    assert counts.sum() == original.sum()
    assert np.abs(measure(counts).six - wanted.six).max() < 0.002  # the issue asks for 0.02


def test_a_design_like_a_federation_has_its_metrics_and_tells_its_targets() -> None:
    split = split_of("design(like=waterbirds-dist,gai=0.3,clients=40,samples=8000):waterbirds")
    got, wanted = measure(split.counts), measure(counts_of("waterbirds-dist"))
    assert got.gai == pytest.approx(0.3, abs=0.002)
    assert got.csc == pytest.approx(wanted.csc, abs=0.002)
    assert split.targets["gsc"] == wanted.gsc
    assert split.targets["gai"] == 0.3


def test_metrics_that_are_not_named_are_free() -> None:
    split = split_of("design(csc=0.9,clients=5,samples=500):cmnist")
    assert split.targets == {"csc": 0.9}
    assert measure(split.counts).csc == pytest.approx(0.9, abs=0.002)


def test_a_design_of_a_single_group_has_no_choice() -> None:
    assert counts_of("design(gci=0,clients=2,samples=10,classes=1,attributes=1):cmnist").tolist() == [[[5]], [[5]]]


def test_a_design_that_cannot_be_is_refused_with_its_distance() -> None:
    # Clients that are all balanced pool to a balanced whole.
    with pytest.raises(UserError, match=r"nearest miss by 0\.\d+ \((gci|cci)\)"):
        counts_of("design(gci=0.5,cci=0,clients=6,samples=600):cmnist")
    counts = counts_of("design(gci=0.5,cci=0,clients=6,samples=600,tolerance=1):cmnist")
    assert counts.sum() == 600


def test_number_to_select() -> None:
    assert split_of("iid:cmnist").num_selected == 9
    assert split_of("iid(clients=4):cmnist").num_selected == 4
    assert split_of("iid(select=6):cmnist").num_selected == 6


def test_on_digits_they_are_scaled_to_fit() -> None:
    assert counts_of("iid:digits").sum(axis=(0, 2)).max() <= 1800
    assert counts_of("iid(samples=1000):digits").sum() == 1000


@pytest.mark.parametrize(
    ("split", "complaint"),
    [
        ("iid(clients=4", "lacks its closing parenthesis"),
        ("iid(", "lacks its closing parenthesis"),
        ("iid(clients=0)", "'clients' in 'iid\\(clients=0\\)' must be at least 1"),
        ("iid(samples=10000000000)", "must be at least 1 and at most 10000000"),
        ("iid(clients=100000,samples=100000,classes=1000)", "more than 10000000 counts"),
        ("iid(clients=1.5)", "must be a whole number, not '1.5'"),
        ("iid(clients)", "must be a whole number, not ''"),
        ("iid(alpha=1)", "'alpha=1' in 'iid\\(alpha=1\\)' is not option=value with an option of select, clients"),
        ("iid(clients=30,samples=20)", "fewer samples \\(20\\) than clients \\(30\\)"),
        ("shards(per_client=300)", "24 clients with 300 shards each need more than 4800 samples"),
        ("dirichlet(alpha=0)", "'alpha' .* must be positive"),
        ("dirichlet(alpha=nan)", "'alpha' .* must be positive"),
        ("dirichlet(alpha=x)", "must be a number, not 'x'"),
        ("design(gci=1.5)", "must lie between 0 and 1"),
        ("design(gci=nan)", "must lie between 0 and 1"),
        ("design", "at least one target"),
        (
            "design(gsc=0.3,classes=40,attributes=40,samples=2000)",
            "40 attributes does not fit into memory",
        ),
        ("design(gsc=0.3,classes=1000,attributes=1000,clients=2,samples=2)", "does not fit into memory"),
        ("design(like=digits-gsc)", "not like 'digits-gsc'"),
    ],
)
def test_wrong_options_are_told(split: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        counts_of(f"{split}:cmnist")
