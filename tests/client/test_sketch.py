"""HCSFed's compression: one-dimensional k-means, checked against scikit-learn."""

import numpy as np
from sklearn.cluster import KMeans

from feddiverse.client.sketch import centres, compress
from feddiverse.messages import Sketch


def test_centres_are_those_of_scikit_learn():
    values = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    start = np.quantile(values.astype(np.float64), (np.arange(7) + 0.5) / 7)
    reference = KMeans(7, init=start[:, None], n_init=1, max_iter=1000, tol=0).fit(values[:, None].astype(np.float64))
    np.testing.assert_allclose(centres(values, 7), np.sort(reference.cluster_centers_[:, 0]), atol=0.03)


def test_separated_clusters_are_found_exactly():
    values = np.repeat([-3.0, 1.0, 8.0], [10, 50, 10]).astype(np.float32)
    np.testing.assert_allclose(centres(values, 3), [-3, 1, 8])


def test_length_is_the_rates_share_and_two_at_least():
    update = np.random.default_rng(1).normal(size=10_000).astype(np.float32)
    assert compress(update, Sketch(0, 1, rate=1e-3)).shape == (10,)
    assert compress(update, Sketch(0, 1, rate=1e-5)).shape == (2,)
    assert (np.diff(compress(update, Sketch(0, 1, rate=1e-3))) > 0).all()


def test_an_update_of_zeros_is_zeros():
    np.testing.assert_array_equal(compress(np.zeros(50, np.float32), Sketch(0, 1, rate=0.1)), np.zeros(5))
