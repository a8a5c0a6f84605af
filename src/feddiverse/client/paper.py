"""The paper's estimator on a client (Sec. IV-A): a biased model's mistakes stand for the attribute.

Where the paper is silent: the attribute classifier is linear, starts at zero and sees the features of θ, with majority
and minority drawn equally often (else ten steps teach it to see the majority everywhere); a one-vs-rest model is the
model itself, with its logits folded into two, so that it adds no weights.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from feddiverse import seeding
from feddiverse.client.evaluation import compared_with_truth, features, outputs
from feddiverse.client.training import SGD, Diverged, batches, generalised_cross_entropy
from feddiverse.data.federation import Samples
from feddiverse.heterogeneity import triplet
from feddiverse.messages import PaperTriplet, Reply, Train, Vector
from feddiverse.models import FlatModel


def paper_triplet(task: PaperTriplet, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    """Three numbers: the triplet of the interaction matrix this client believes it has."""
    in_majority = find_majority(task, theta, client_id, samples, model)
    a = find_attribute(task, features(theta, samples, model), samples.y, in_majority, client_id)
    matrix = np.zeros((model.spec.num_classes, 2))
    np.add.at(matrix, (samples.y, a), 1)
    metrics = dict(zip(("ci", "ai", "sc"), triplet(matrix).tolist(), strict=True))
    return Reply(client_id, metrics=metrics | compared_with_truth(a, samples))


def find_majority(
    task: PaperTriplet, theta: Vector, client_id: int, samples: Samples, model: FlatModel
) -> NDArray[np.bool_]:
    """[n]: whether a biased model gets the sample right, which makes it one of its class's majority (step 2)."""
    if model.spec.num_classes == 2:
        return train_biased(task, theta, client_id, samples, model, positive=1)
    in_majority = np.zeros(len(samples), dtype=bool)
    for y in np.unique(samples.y):
        of_class = samples.y == y
        in_majority[of_class] = train_biased(task, theta, client_id, samples, model, positive=int(y))[of_class]
    return in_majority


def train_biased(
    task: PaperTriplet, theta: Vector, client_id: int, samples: Samples, model: FlatModel, positive: int
) -> NDArray[np.bool_]:
    """Overfit a copy of θ by GCE to "is it class `positive`?" for `bias_steps` steps; [n]: is its answer right?"""
    model.load(theta)
    model.module.train()
    purpose = f"biased model of class {positive}"
    torch.manual_seed(seeding.integer(task.seed, purpose, task.round, client_id))
    rng = seeding.rng(task.seed, purpose, task.round, client_id)
    optimiser = SGD(
        model, Train(task.seed, task.round, lr=task.lr, momentum=task.momentum, weight_decay=task.weight_decay)
    )
    order = balanced_draws(samples.y == positive, task.bias_steps * task.batch_size, rng)
    for x, y in batches(samples, order, task.batch_size, model):
        logits = one_vs_rest(model.module(x), positive)
        loss = generalised_cross_entropy(logits, (y == positive).long(), task.gce_q).mean()
        if not math.isfinite(loss.item()):
            raise Diverged("the biased model's loss is not finite; a smaller learning rate may help")
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    right = [
        (one_vs_rest(logits, positive).argmax(1) == (y == positive).long()).cpu().numpy()
        for logits, y in outputs(model, samples)
    ]
    return np.concatenate(right)


def one_vs_rest(logits: Tensor, positive: int) -> Tensor:
    """[n, classes] → [n, 2]: the log-odds of all other classes together, and of `positive`."""
    rest = [y for y in range(logits.shape[1]) if y != positive]
    return torch.stack([logits[:, rest].logsumexp(1), logits[:, positive]], dim=1)


def balanced_draws(is_positive: NDArray[np.bool_], num: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`num` sample ids drawn with replacement, both sides equally likely (if the client has both)."""
    shares = np.where(is_positive, 1 / max(is_positive.sum(), 1), 1 / max((~is_positive).sum(), 1))
    return rng.choice(len(is_positive), size=num, p=shares / shares.sum())


def find_pivot(y: NDArray[np.int64], in_majority: NDArray[np.bool_]) -> int:
    """The client's class whose majority and minority differ least in size; the first of several such."""
    classes, position = np.unique(y, return_inverse=True)
    sizes, majorities = np.bincount(position), np.bincount(position, weights=in_majority)
    return int(classes[np.abs(2 * majorities - sizes).argmin()])


def find_attribute(
    task: PaperTriplet,
    inputs: NDArray[np.float32],
    y: NDArray[np.int64],
    in_majority: NDArray[np.bool_],
    client_id: int,
) -> NDArray[np.int64]:
    """[n]: 1 where a linear classifier, trained on the pivot class alone, sees that class's majority (step 3).

    If the biased model made no mistake in the pivot class, or nothing but mistakes, there is nothing to tell apart:
    every sample gets the one attribute that was seen (so AI is 1 and SC 0, as from any classifier of one label).
    """
    pivot = np.flatnonzero(y == find_pivot(y, in_majority))
    labels = in_majority[pivot].astype(np.int64)
    if labels.min() == labels.max():
        return np.full(len(y), labels[0])
    rng = seeding.rng(task.seed, "attribute classifier", task.round, client_id)
    x, targets = torch.from_numpy(inputs[pivot]), torch.from_numpy(labels)
    weight, bias = torch.zeros(2, inputs.shape[1], requires_grad=True), torch.zeros(2, requires_grad=True)
    optimiser = torch.optim.SGD([weight, bias], lr=task.lr, momentum=task.momentum, weight_decay=task.weight_decay)
    for _ in range(task.attribute_steps):
        ids = torch.from_numpy(balanced_draws(labels == 1, task.batch_size, rng))
        optimiser.zero_grad()
        functional.cross_entropy(functional.linear(x[ids], weight, bias), targets[ids]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.inference_mode():
        found: NDArray[np.int64] = functional.linear(torch.from_numpy(inputs), weight, bias).argmax(1).numpy()
    return found
