"""The six metrics against scikit-learn, SciPy, the paper's numbers, and what must hold of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray
from scipy.stats import entropy
from sklearn.metrics import normalized_mutual_info_score

from feddiverse.errors import UserError
from feddiverse.heterogeneity import (
    BLOCK,
    METRICS,
    attribute_imbalance,
    class_imbalance,
    measure,
    spurious_correlation,
    triplet,
)

Table = NDArray[np.int64]

# The same sums of at most 25 terms (a table has at most 5 × 5 cells), added in another order: a rounding each, and as
# many again for the logarithms and what is divided by. Scores are at most 1, and so are the parts that cancel.
ROUNDING = 64 * 2.0**-53


def tables(min_dims: int = 2, max_dims: int = 2) -> st.SearchStrategy[Table]:
    """Tables of counts in which no client is empty."""
    shapes = array_shapes(min_dims=min_dims, max_dims=max_dims, min_side=1, max_side=5)
    counts = shapes.flatmap(lambda shape: arrays(np.int64, shape, elements=st.integers(0, 1000)))
    return counts.filter(lambda table: bool(table.sum(axis=(-2, -1)).all()))


def expected_triplet(table: Table) -> list[float]:
    """By SciPy's entropy, and scikit-learn's mutual information of one label pair a sample."""
    y, a = np.nonzero(table)
    y, a = np.repeat(y, table[y, a]), np.repeat(a, table[y, a])
    imbalances = [
        1 - entropy(marginal) / np.log(len(marginal)) if len(marginal) > 1 else 0.0
        for marginal in (table.sum(axis=1), table.sum(axis=0))
    ]
    varies = len(set(y.tolist())) > 1 or len(set(a.tolist())) > 1  # scikit-learn calls two constants identical
    return [*imbalances, float(normalized_mutual_info_score(y, a)) if varies else 0.0]


@pytest.mark.parametrize("shape", [(2, 2), (4, 2), (3, 5), (1, 4), (4, 1), (1, 1)])
def test_triplet_agrees_with_scipy_and_scikit_learn(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(7)
    for sparsity in (0.0, 0.3, 0.6):
        for _ in range(20):
            table = rng.integers(1, 200, shape) * (rng.random(shape) >= sparsity)
            table.flat[rng.integers(table.size)] += 1
            np.testing.assert_allclose(triplet(table), expected_triplet(table), rtol=0, atol=1e-12)


@given(tables())
def test_metrics_are_scores_and_the_triplet_holds_them(table: Table) -> None:
    scores = triplet(table)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert scores.tolist() == [class_imbalance(table), attribute_imbalance(table), spurious_correlation(table)]


@given(tables(min_dims=3, max_dims=3), st.integers(2, 50), st.randoms(use_true_random=False))
def test_order_and_scale_do_not_matter(counts: Table, scale: int, random: object) -> None:
    shuffled = counts
    for axis in range(3):
        order = list(range(counts.shape[axis]))
        random.shuffle(order)
        shuffled = np.take(shuffled, order, axis=axis)
    np.testing.assert_allclose(measure(shuffled * scale).six, measure(counts).six, rtol=0, atol=ROUNDING)


@given(tables(min_dims=3, max_dims=3))
def test_federated_metrics_are_of_the_pooled_table_and_means_over_clients(counts: Table) -> None:
    measured = measure(counts)
    np.testing.assert_allclose(measured.six[:3], triplet(counts.sum(axis=0)), rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(measured.clients, [triplet(table) for table in counts], rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(measured.six[3:], measured.clients.mean(axis=0), rtol=0, atol=ROUNDING)
    assert measured.sizes.tolist() == counts.sum(axis=(1, 2)).tolist()
    assert measured.six.tolist() == [getattr(measured, name) for name in METRICS]


@given(
    arrays(np.int64, st.integers(1, 5), elements=st.integers(1, 99)),
    arrays(np.int64, st.integers(1, 5), elements=st.integers(1, 99)),
)
def test_independent_class_and_attribute_have_no_correlation(rows: Table, columns: Table) -> None:
    assert spurious_correlation(np.outer(rows, columns)) == 0


@given(arrays(np.int64, st.integers(2, 6), elements=st.integers(1, 999)), st.randoms(use_true_random=False))
def test_a_permuted_diagonal_has_full_correlation(diagonal: Table, random: object) -> None:
    order = list(range(len(diagonal)))
    random.shuffle(order)
    assert spurious_correlation(np.diag(diagonal)[order]) == pytest.approx(1, abs=1e-12)


def test_worked_by_hand() -> None:
    # 3 of 4 samples in class 0: H(Y) = ¾ log 4/3 + ¼ log 4 = 0.8113 bits; the attribute is constant.
    assert triplet([[3, 0], [1, 0]]) == pytest.approx([1 - 0.811278124459, 1, 0])


def test_degenerate_tables_are_decided() -> None:
    assert triplet([[5]]).tolist() == [0, 0, 0]  # one class, one attribute value
    assert triplet([[5, 0], [0, 0]]).tolist() == [1, 1, 0]  # neither varies


def test_leading_axes_are_kept() -> None:
    counts = np.arange(1, 49).reshape(2, 3, 4, 2)
    assert triplet(counts).shape == (2, 3, 3)
    np.testing.assert_allclose(triplet(counts)[1, 2], triplet(counts[1, 2]), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ([[1, -1], [3, 3]], "Client north has a negative count."),
        ([[1, float("nan")], [3, 3]], "Client north has a count that is not a finite number."),
        ([[1, float("inf")], [3, 3]], "Client north has a count that is not a finite number."),
        ([[0, 0], [0, 0]], "Client north has no samples at all."),
    ],
)
def test_wrong_tables_are_refused_by_name(bad: list[list[float]], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        measure([[[1, 2], [3, 4]], bad], ["south", "north"])
    with pytest.raises(UserError, match=complaint.replace("north", "1")):
        triplet([[[1, 2], [3, 4]], bad])
    with pytest.raises(UserError, match=complaint.replace("Client north", "The table")):
        triplet(bad)


@pytest.mark.parametrize("shape", [(2, 2), (0, 2, 2), (3, 0, 2), (1, 2, 2, 2)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="shape"):
        measure(np.ones(shape))


def test_a_vector_is_no_table() -> None:
    with pytest.raises(UserError, match="shape"):
        triplet([1, 2, 3])


def test_many_clients_are_measured_as_few_are() -> None:
    counts = np.random.default_rng(3).integers(1, 50, (BLOCK + 3, 2, 2))
    np.testing.assert_allclose(measure(counts).clients, triplet(counts), rtol=0, atol=ROUNDING)
