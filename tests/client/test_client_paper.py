"""The paper's estimator on a client: its pieces by hand, its edge cases, and that it sees a colour it should see."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from feddiverse import seeding
from feddiverse.client import paper
from feddiverse.client.evaluation import features
from feddiverse.data.federation import Samples
from feddiverse.messages import PaperTriplet
from feddiverse.models import FlatModel, ModelSpec, build


def coloured(counts: list[list[int]], size: int = 12, seed: int = 0) -> Samples:
    """Noise pictures: the class is how bright the lower half is (faint), the attribute is the colour (plain)."""
    rng = np.random.default_rng(seed)
    table = np.array(counts)
    y, a = (np.repeat(index.ravel(), table.ravel()) for index in np.indices(table.shape))
    images = rng.integers(0, 60, (len(y), 3, size, size))
    images[np.arange(len(y)), a % 3] += 120
    images[:, :, size // 2 :] += 8 * y[:, None, None, None]
    return Samples(images.clip(0, 255).astype(np.uint8), y, a)


def model_of(num_classes: int) -> FlatModel:
    return build(ModelSpec("cnn", num_classes, (3, 12, 12), (0.25,) * 3, (0.2,) * 3))


def triplet_of(counts: list[list[int]], known: bool = False, **settings: float | str) -> dict[str, float]:
    """What the client sends; `known`: whether its data say which attribute each sample has."""
    model, samples = model_of(len(counts)), coloured(counts)
    task = PaperTriplet(0, 1, **{"lr": 0.02, "batch_size": 8, "bias_steps": 10, **settings})
    reply = paper.paper_triplet(task, model.vector(), 3, samples if known else replace(samples, a=None), model)
    assert reply.vector is None
    assert all(np.isfinite(v) for v in reply.metrics.values())
    return dict(reply.metrics)


def test_pivot_is_the_class_of_most_even_groups() -> None:
    y = np.array([0] * 10 + [1] * 10 + [3] * 4)
    majority = np.array([True] * 9 + [False] + [True] * 6 + [False] * 4 + [False] * 4)
    assert paper.find_pivot(y, majority) == 1  # |6 − 4| = 2 < |9 − 1| = 8, and < |0 − 4|
    assert paper.find_pivot(y[:10], majority[:10]) == 0


def test_one_vs_rest_has_a_fresh_head_of_two_outputs() -> None:
    """What θ's own head says of the classes plays no part, and outputs beyond the first two never move."""
    model, samples = model_of(3), coloured([[6, 2], [3, 3], [1, 7]])
    theta = model.vector()
    task = PaperTriplet(0, 1, lr=0.02, batch_size=8, bias_steps=4)
    answers, heads = [], []
    for scale in (1.0, 50.0):
        model.load(theta)
        with torch.no_grad():
            model.module.head.weight *= scale
        answers.append(paper.train_biased(task, model.vector(), 3, samples, model, positive=2))
        heads.append(model.module.head.weight.detach().clone())
    for first, second in zip(*answers, strict=True):
        np.testing.assert_array_equal(first, second)
    torch.manual_seed(seeding.integer(0, "biased model of class 2", 1, 3))
    fresh = torch.nn.Linear(model.module.head.in_features, 3)
    torch.testing.assert_close(heads[0][2], fresh.weight[2])
    assert not torch.equal(heads[0][:2], fresh.weight[:2])


def test_features_are_those_of_each_samples_own_biased_model() -> None:
    model, samples = model_of(3), coloured([[6, 2], [3, 3], [1, 7]])
    theta, task = model.vector(), PaperTriplet(0, 1, lr=0.02, batch_size=8, bias_steps=4)
    _, seen = paper.find_majority(task, theta, 3, samples, model)
    for y in range(3):
        _, own = paper.train_biased(task, theta, 3, samples, model, positive=y)
        np.testing.assert_array_equal(seen[samples.y == y], own[samples.y == y])
    assert not np.allclose(seen, features(theta, samples, model))


def test_the_classifier_sees_biased_or_global_features(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = []
    find = paper.find_attribute
    monkeypatch.setattr(paper, "find_attribute", lambda task, x, *rest: (inputs.append(x), find(task, x, *rest))[1])
    for which in ("biased", "global"):
        triplet_of([[9, 3], [3, 9]], features=which)
    model, samples = model_of(2), coloured([[9, 3], [3, 9]])
    np.testing.assert_array_equal(inputs[1], features(model.vector(), samples, model))
    assert not np.allclose(inputs[0], inputs[1])


def test_the_pivot_class_is_counted_by_its_mistakes() -> None:
    """Features that say nothing: the classifier calls all alike, yet the pivot class keeps its mistakes."""
    y, majority = np.array([0] * 10 + [1] * 10), np.array([True] * 9 + [False] + [True] * 6 + [False] * 4)
    a = paper.find_attribute(PaperTriplet(0, 1), np.zeros((20, 3), np.float32), y, majority, 0)
    np.testing.assert_array_equal(a[10:], majority[10:])
    assert len(set(a[:10])) == 1


def test_draws_are_balanced_whatever_the_client_has() -> None:
    rng = np.random.default_rng(0)
    is_positive = np.arange(1000) < 20
    assert is_positive[paper.balanced_draws(is_positive, 20_000, rng)].mean() == pytest.approx(0.5, abs=0.02)
    one_sided = paper.balanced_draws(np.ones(7, dtype=bool), 700, rng)
    assert set(one_sided) == set(range(7))


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_step_counts_are_exact(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    step = paper.SGD.step
    monkeypatch.setattr(paper.SGD, "step", lambda self: (taken.append(1), step(self)))
    triplet_of([[5, 5], [5, 5]], bias_steps=steps)
    assert len(taken) == steps


def test_the_classifier_learns_the_pivot_class_and_labels_the_others() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 6)).astype(np.float32), np.repeat([0, 1], 20)
    side = x[:, 0] > 0
    majority = side | (y == 1)  # so that class 0 is the pivot, and class 1 is what the classifier says
    trained = paper.find_attribute(PaperTriplet(0, 1, attribute_steps=200, lr=0.1), x, y, majority, 0)
    assert (trained == side)[20:].mean() > 0.85


@pytest.mark.parametrize("only", [True, False])
def test_one_sided_pivot_gives_every_sample_the_same_attribute(only: bool) -> None:
    a = paper.find_attribute(PaperTriplet(0, 1), np.ones((6, 3), np.float32), np.arange(6) % 2, np.full(6, only), 0)
    assert (a == int(only)).all()


@pytest.mark.parametrize(
    ("counts", "ci"),
    [
        ([[3, 0], [0, 0]], 1.0),  # three samples of one group
        ([[9, 4], [0, 0]], 1.0),  # one class
        ([[1, 1], [1, 0]], 1 - 0.9183),  # three samples
        ([[6, 2], [0, 0], [1, 7]], 1 - np.log(2) / np.log(3)),  # a class of three is missing
        ([[0, 1], [0, 0], [0, 0]], 1.0),  # a single sample
    ],
)
def test_edge_cases_are_defined(counts: list[list[int]], ci: float) -> None:
    found = triplet_of(counts)
    assert found.keys() == {"ci", "ai", "sc"}
    assert found["ci"] == pytest.approx(ci, abs=1e-3)
    assert all(0 <= v <= 1 for v in found.values())


def test_colour_that_predicts_the_class_is_seen() -> None:
    """A client with a strong spurious correlation: the biased model learns colours, its mistakes are the minority."""
    found = triplet_of([[45, 5], [5, 45]], bias_steps=40, attribute_steps=40, known=True)
    confusion = np.zeros((2, 2))
    for name, n in found.items():
        if name.startswith("evaluation_only."):
            confusion[tuple(map(int, name.split(".")[1:]))] = n
    assert confusion.sum() == 100
    assert max(np.trace(confusion), np.trace(confusion[::-1])) >= 90
    assert found["sc"] == pytest.approx(0.531, abs=0.2)  # 1 − H(0.1)


def test_same_key_same_answer() -> None:
    assert triplet_of([[9, 3], [3, 9]]) == triplet_of([[9, 3], [3, 9]])
