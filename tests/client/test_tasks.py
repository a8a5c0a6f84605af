"""Every kind of question gets its answer, and every mishap a reply that says so."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics import log_loss

from feddiverse.client.tasks import ANSWERS, answer
from feddiverse.data.federation import Samples
from feddiverse.messages import Evaluate, GroupSums, LabelCounts, Loss, Sketch, Task, Train, TrueMatrix
from feddiverse.models import ModelSpec, build, initial_theta

SPEC = ModelSpec("cnn", 3, (3, 28, 28), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
N = 300  # more than one batch of evaluation


@pytest.fixture(scope="module")
def samples() -> Samples:
    rng = np.random.default_rng(0)
    return Samples(rng.integers(0, 256, (N, 3, 28, 28), dtype=np.uint8), rng.integers(0, 3, N), rng.integers(0, 2, N))


@pytest.fixture(scope="module")
def model():
    return build(SPEC)


@pytest.fixture(scope="module")
def theta():
    return initial_theta(SPEC, seed=3)


@pytest.fixture(scope="module")
def logits(samples, theta):
    model = build(SPEC)
    model.load(theta)
    with torch.no_grad():
        return model.module.eval()(model.normalise(torch.from_numpy(samples.x))).numpy()


def test_loss_is_scikit_learns(samples, model, theta, logits):
    reply = answer(Loss(0, 1), theta, 5, samples, model)
    p = softmax(logits.astype(np.float64), axis=1)
    each = -np.log(p[np.arange(N), samples.y])
    assert reply.metrics["loss"] == pytest.approx(log_loss(samples.y, p), rel=1e-5)
    assert reply.metrics["loss_rms"] == pytest.approx(np.sqrt((each**2).mean()), rel=1e-5)
    assert reply.vector is None


def test_evaluation_counts_each_group(samples, model, theta, logits):
    correct, total = answer(Evaluate(0, 1, num_attributes=4), theta, 5, samples, model).vector.reshape(2, 3, 4)
    for y in range(3):
        for a in range(4):
            group = (samples.y == y) & (samples.a == a)
            assert total[y, a] == group.sum()
            assert correct[y, a] == (logits.argmax(1)[group] == y).sum()
    assert 0 < correct.sum() < N


def test_counts_are_the_datas(samples, model, theta):
    labels = answer(LabelCounts(0, 1), theta, 5, samples, model)
    matrix = answer(TrueMatrix(0, 1), theta, 5, samples, model).vector.reshape(3, 2)
    np.testing.assert_array_equal(labels.vector, np.bincount(samples.y))
    np.testing.assert_array_equal(matrix.sum(1), np.bincount(samples.y))
    np.testing.assert_array_equal(matrix.sum(0), np.bincount(samples.a))


def test_sketch_compresses_what_training_would_send(samples, model, theta):
    update = answer(Train(0, 1, lr=0.01), theta, 5, samples, model).vector - theta
    reply = answer(Sketch(0, 1, lr=0.01, rate=1e-3), theta, 5, samples, model)
    assert reply.vector.size == int(1e-3 * theta.size)
    nearest = np.abs(update[:, None] - reply.vector).argmin(1)
    for centre in (0, 40, 88):
        assert update[nearest == centre].mean() == pytest.approx(reply.vector[centre], abs=0.05 * float(update.std()))


def test_every_reply_is_timed_and_counted(samples, model, theta):
    reply = answer(LabelCounts(0, 1), theta, 5, samples, model)
    assert (reply.client, reply.num_examples) == (5, N)
    assert reply.seconds > 0


@dataclass(frozen=True)
class Unknown(Task):
    """A question nobody answers."""


def test_mishaps_become_replies(samples, model, theta):
    assert "Unknown" in answer(Unknown(0, 1), theta, 5, samples, model).failure
    assert "89,603" in answer(Train(0, 1), theta[:-1], 5, samples, model).failure
    empty = Samples(samples.x[:0], samples.y[:0], samples.a[:0])
    assert "no samples" in answer(Train(0, 1), theta, 5, empty, model).failure
    wrong = Samples(samples.x, samples.y + 7, samples.a)
    assert answer(Train(0, 1), theta, 5, wrong, model).failure
    assert set(ANSWERS) >= {Train, Sketch, Loss, Evaluate, LabelCounts, TrueMatrix}


def test_the_text_of_an_error_does_not_leave_a_deployed_client(samples, model, theta, caplog):
    """A server that asks as if there were one class would be told a class of a sample, noise or not."""
    odd = GroupSums(0, 1, 4, weights=np.ones((1, 1), np.float32))
    assert "is out of bounds for axis 0 with size 1" in answer(odd, theta, 5, samples, model).failure
    deployed = replace(samples, secret_noise=True)
    assert answer(odd, theta, 5, deployed, model).failure == "IndexError; its own log says more"
    assert "is out of bounds for axis 0 with size 1" in caplog.text
