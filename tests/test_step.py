"""What the benchmark of a step calls the least that it can take."""

import pytest

from benchmarks.step import CASES, product_operations

PICTURES, TWO = 28, 2  # a product and a sum
FIRST, SECOND, THIRD, HEAD = 14 * 14 * 27 * 32, 7 * 7 * 288 * 64, 4 * 4 * 576 * 112, 1792 * 2


def test_operations_of_the_small_cnns_products_by_hand() -> None:
    forward = TWO * PICTURES * (FIRST + SECOND + THIRD + HEAD)
    assert product_operations(CASES["cnn"], training=False) == forward
    backward = TWO * PICTURES * (FIRST + 2 * (SECOND + THIRD + HEAD))  # nobody asks for the pictures' gradient
    assert product_operations(CASES["cnn"], training=True) == forward + backward


def test_mobilenet_has_300_million_products_a_picture_of_224_px_in_the_literature() -> None:
    """300 million (Sandler et al. 2018, Table 4) with 1,000 classes, of which depthwise convolutions are 20 million."""
    ours = product_operations(CASES["mobilenet, 224 px"], training=False) / (TWO * PICTURES)
    assert ours + 1280 * 998 + 20e6 == pytest.approx(300e6, rel=0.02)
    trained = product_operations(CASES["mobilenet, 224 px"], training=True) / (TWO * PICTURES)
    assert 2.5 * ours < trained < 3 * ours, "less the branches that stochastic depth drops"
