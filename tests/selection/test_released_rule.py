"""FedDiverse's rule as the released code has it: each group of three by its definition, and its effect on splits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from selection_fakes import FakeClients, KnownTriplets

from feddiverse.errors import UserError
from feddiverse.experiment.truth import statistics
from feddiverse.heterogeneity import triplet
from feddiverse.seeding import rng
from feddiverse.selection.feddiverse import FedDiverse
from feddiverse.selection.feddiverse_rule import choose_as_released
from feddiverse.splits import SPLITS

triplets_st = arrays(np.float64, st.tuples(st.integers(1, 30), st.just(3)), elements=st.floats(0, 1, width=32))


@given(triplets_st, st.integers(1, 35), st.integers(0, 2**32))
@settings(max_examples=60)
def test_the_right_number_of_different_clients(triplets: np.ndarray, k: int, seed: int) -> None:
    before = triplets.copy()
    chosen = choose_as_released(triplets, k, np.random.default_rng(seed))
    assert len(chosen) == len(set(chosen)) == min(k, len(triplets))
    np.testing.assert_array_equal(triplets, before)


@given(arrays(np.float64, (12, 3), elements=st.floats(0.0625, 1, width=32)), st.integers(0, 2**32))
@settings(max_examples=60)
def test_second_and_third_are_extremes_of_vectors_scaled_over_clients_and_to_length_one(
    triplets: np.ndarray, seed: int
) -> None:
    first, second, third = choose_as_released(triplets, 3, np.random.default_rng(seed))
    scaled = triplets / triplets.sum(axis=0)
    scaled = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    dots = scaled @ scaled[first]
    assert dots[second] <= np.delete(dots, first).min() + 2e-6
    across = np.cross(scaled[first], scaled[second])
    if np.abs(across).max() > 1e-6:  # its sign depends on the order in which the dimensions were shuffled
        along = np.delete(scaled @ across, [first, second])
        value = float(scaled[third] @ across)
        assert value >= along.max() - 2e-6 or value <= along.min() + 2e-6


def test_each_dimension_leads_a_third_of_all_rounds() -> None:
    """Three clients of one kind each: who comes first is who has what leads."""
    firsts = [choose_as_released(np.eye(3), 3, rng(0, "select", t))[0] for t in range(900)]
    assert all(250 < firsts.count(i) < 350 for i in range(3))


@pytest.mark.parametrize(
    ("split", "effective", "smallest"), [("gai", 19.7, 0.029), ("dist", 20.9, 0.022)], ids=["gai", "dist"]
)
def test_choices_are_spread_as_those_of_the_released_code(split: str, effective: float, smallest: float) -> None:
    """Measured on the released code itself, with true triplets over 300 rounds."""
    counts, k = SPLITS[split].counts, SPLITS[split].num_selected
    chosen = [choose_as_released(triplet(counts), k, rng(1, "select", t)) for t in range(300)]
    found = statistics(chosen, counts)
    assert found.effective_clients == pytest.approx(effective, abs=0.3)
    assert found.smallest_share.mean() == pytest.approx(smallest, abs=0.0015)


def test_the_selector_takes_the_rule_by_name() -> None:
    triplets = {k: [0.1 * k, 0.5, 1 - 0.1 * k] for k in range(9)}
    sizes = dict.fromkeys(range(9), 5)
    chosen = FedDiverse(KnownTriplets(triplets), rule="released").choose(1, 6, sizes, FakeClients(), rng(0, "select"))
    assert chosen == choose_as_released(np.array(list(triplets.values())), 6, rng(0, "select"))
    with pytest.raises(UserError, match="'paper' or 'released', not 'papers'"):
        FedDiverse(KnownTriplets({}), rule="papers")
