"""The paper's estimator on a client: its pieces by hand, its edge cases, and that it sees a colour it should see."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from feddiverse.client import paper
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


def triplet_of(counts: list[list[int]], known: bool = False, **settings: float) -> dict[str, float]:
    """What the client sends; `known`: whether its data say which attribute each sample has."""
    model, samples = model_of(len(counts)), coloured(counts)
    task = PaperTriplet(0, 1, **{"lr": 0.02, "batch_size": 8, "bias_steps": 10, **settings})  # type: ignore[arg-type]
    reply = paper.paper_triplet(task, model.vector(), 3, samples if known else replace(samples, a=None), model)
    assert reply.vector is None
    assert all(np.isfinite(v) for v in reply.metrics.values())
    return dict(reply.metrics)


def test_pivot_is_the_class_of_most_even_groups() -> None:
    y = np.array([0] * 10 + [1] * 10 + [3] * 4)
    majority = np.array([True] * 9 + [False] + [True] * 6 + [False] * 4 + [False] * 4)
    assert paper.find_pivot(y, majority) == 1  # |6 − 4| = 2 < |9 − 1| = 8, and < |0 − 4|
    assert paper.find_pivot(y[:10], majority[:10]) == 0


def test_one_vs_rest_folds_the_other_classes_probabilities() -> None:
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    folded = paper.one_vs_rest(logits, 2).softmax(1)
    torch.testing.assert_close(folded[:, 1], logits.softmax(1)[:, 2])
    torch.testing.assert_close(paper.one_vs_rest(logits[:, :2], 1), logits[:, :2])


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


def test_no_steps_leave_the_attribute_at_zero_weights() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 6)).astype(np.float32), np.zeros(20, dtype=np.int64)
    majority = x[:, 0] > 0
    untrained = paper.find_attribute(PaperTriplet(0, 1, attribute_steps=0), x, y, majority, 0)
    assert (untrained == 0).all()
    trained = paper.find_attribute(PaperTriplet(0, 1, attribute_steps=200, lr=0.1), x, y, majority, 0)
    assert (trained == majority).mean() > 0.9


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
