"""The numbers that docs/results.md gives over several columns."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.columns import largest_share


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=2, max_size=8), st.data())
def test_no_choice_of_clients_has_a_larger_share(clients, data):
    has = np.array([group for group, _ in clients])
    size = has + np.array([rest for _, rest in clients])
    m = data.draw(st.integers(1, len(clients)))
    choices = (list(choice) for choice in combinations(range(len(clients)), m))
    assert largest_share(has, size, m) == pytest.approx(max(has[c].sum() / size[c].sum() for c in choices))
