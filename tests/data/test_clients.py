"""A federation of what each client brings, against the same samples in three arrays."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, Subset, TensorDataset

import feddiverse as fd

X = np.arange(24, dtype=np.float32).reshape(8, 3)
Y = np.array(["ill", "well", "ill", "ill", "well", "well", "ill", "well"])
A = np.array([0, 1, 1, 0, 0, 1, 1, 0])
OWNER = np.array(["rome", "rome", "rome", "lima", "lima", "oslo", "oslo", "oslo"])
NAMES = ("rome", "lima", "oslo")


def assert_same(ours: fd.Federation, theirs: fd.Federation) -> None:
    assert ours.source.fingerprint == theirs.source.fingerprint  # samples, classes and attributes of both sets
    assert ours.client_names == theirs.client_names
    assert np.array_equal(ours.counts, theirs.counts)
    for k in range(ours.num_clients):
        assert np.array_equal(ours.client(k).x, theirs.client(k).x)


@pytest.mark.parametrize("attribute", [False, True])
def test_clients_arrays_are_those_of_one_federation(attribute: bool) -> None:
    columns = (X, Y, A) if attribute else (X, Y)
    clients = {name: tuple(column[name == OWNER] for column in columns) for name in NAMES}
    whole = fd.Federation.from_arrays(X, Y, OWNER, A if attribute else None, test=columns)
    assert_same(fd.Federation.from_clients(clients, test=columns), whole)


def test_datasets_of_pytorch_are_clients() -> None:
    y = (Y == "well").astype(int)
    every = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    clients = [Subset(every, np.flatnonzero(name == OWNER).tolist()) for name in NAMES]
    numbers = np.array([NAMES.index(name) for name in OWNER])
    assert_same(fd.Federation.from_clients(clients, test=every), fd.Federation.from_arrays(X, y, numbers, test=(X, y)))


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_of_any_kind_are_samples(kind: torch.dtype) -> None:
    x = torch.from_numpy(X).to(kind).requires_grad_()  # whole numbers up to 23: exact in each kind
    y = torch.from_numpy(A)
    fed = fd.Federation.from_clients({name: (x[name == OWNER], y[name == OWNER]) for name in NAMES}, test=(x, y))
    assert_same(fed, fd.Federation.from_arrays(X, A, OWNER, test=(X, A)))
    assert_same(fd.Federation.from_arrays(x, y, OWNER, test=(x, y)), fed)


def test_pictures_are_clients_samples() -> None:
    bright = [Image.new("RGB", (5, 4), (value, 0, 0)) for value in (10, 20, 30)]
    fed = fd.Federation.from_clients({"a": list(zip(bright[:2], "xy", strict=True)), "b": [(bright[2], "x")]})
    assert fed.client(0).x.shape == (2, 3, 4, 5)
    assert fed.client(1).x[0, :, 0, 0].tolist() == [30, 0, 0]
    assert fed.classes == ("x", "y")


def test_ten_clients_keep_their_order_and_empty_ones_are_left_out() -> None:
    clients = [(np.full((k % 4, 2), k), [0] * (k % 4)) for k in range(12)]
    fed = fd.Federation.from_clients([*clients, []])
    assert fed.client_names == ("1", "2", "3", "5", "6", "7", "9", "10", "11")
    assert [fed.client(k).x[0, 0] for k in range(fed.num_clients)] == [1, 2, 3, 5, 6, 7, 9, 10, 11]


class Stream(IterableDataset):
    def __iter__(self):
        yield 1, 2


@pytest.mark.parametrize(
    ("clients", "says"),
    [
        ({}, "No client has any sample"),
        (X, r"clients must be \{name: \(x, y\)\} or a list of such, not ndarray"),
        ({"a": {"x": X, "y": Y}}, "a dataset with a length, not dict"),
        ({"a": [X, Y]}, "arrays are given as a tuple"),
        ({"a": ([[1.0, 2.0], [3.0]], [0, 1])}, "An array of client 'a' cannot be read as an array"),
        ({"a": (X, Y[:2])}, r"The arrays of client 'a' must have a row a sample, but have \[8, 2\] rows"),
        ({"a": (X,)}, r"The samples of client 'a' must be \(x, y\)"),
        ({"a": (X, 1)}, r"The samples of client 'a' must be \(x, y\)"),
        ({"a": (Y, Y)}, r"x of client 'a' must have the shape \[n, …\]"),
        ({"a": Stream()}, "a dataset with a length, not Stream"),
        ({"a": [{"x": 1, "y": 2}]}, r"The dataset of client 'a' must give \(x, y\)"),
        ({"a": [(X[0], 1), (X[0], 1, 0)]}, r"The dataset of client 'a' must give \(x, y\)"),
        (
            {"a": [(X[0], 1), (X[0, :2], 1)]},
            r"The samples of client 'a' have different shapes, such as \(2,\) and \(3,\)",
        ),
        ({"a": (X, Y), "b": (X[:, :2], Y)}, r"those of 'a' are float32 of shape \(3,\), .*'b' float32 of shape \(2,\)"),
        ({"a": (X, Y), "b": (X, Y, A)}, "'a' are .* without an attribute, those of 'b' .* with an attribute"),
        ({"a": (X, Y), "b": (X.astype(np.uint8)[:, None], Y)}, "those of 'b' uint8"),
    ],
)
def test_what_is_wrong_with_a_client_is_told_in_a_sentence(clients: dict[str, object], says: str) -> None:
    with pytest.raises(fd.UserError, match=says):
        fd.Federation.from_clients(clients)


def test_a_name_is_what_federation_opens() -> None:
    with pytest.raises(fd.UserError, match=r"opened by its name, not by dict; .*from_clients"):
        fd.federation({"a": (X, Y)})
