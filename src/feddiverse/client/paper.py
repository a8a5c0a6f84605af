"""The paper's estimator on a client (Sec. IV-A): a biased model's mistakes stand for the attribute.

Where the paper is silent, as released (docs/estimators.md): the attribute classifier is linear and sees the features of
the biased model, with majority and minority drawn equally often; the pivot class is counted by its mistakes, not by
that classifier; a one-vs-rest model has a fresh head of two outputs, and a sample's features are those of its own
class's model.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from feddiverse import seeding
from feddiverse.client.evaluation import compared_with_truth, features, outputs, seen_by
from feddiverse.client.training import SGD, Diverged, batches, generalised_cross_entropy
from feddiverse.data.federation import Samples
from feddiverse.heterogeneity import triplet
from feddiverse.messages import PaperTriplet, Reply, Train, Vector
from feddiverse.models import FlatModel

Features = NDArray[np.float32]  # [n, d]


def paper_triplet(task: PaperTriplet, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    """Three numbers: the triplet of the interaction matrix this client believes it has."""
    in_majority, biased = find_majority(task, theta, client_id, samples, model)
    inputs = features(theta, samples, model) if task.features == "global" else biased
    a = find_attribute(task, inputs, samples.y, in_majority, client_id)
    matrix = np.zeros((model.spec.num_classes, 2))
    np.add.at(matrix, (samples.y, a), 1)
    metrics = dict(zip(("ci", "ai", "sc"), triplet(matrix).tolist(), strict=True))
    return Reply(client_id, metrics=metrics | compared_with_truth(a, samples))


def find_majority(
    task: PaperTriplet, theta: Vector, client_id: int, samples: Samples, model: FlatModel
) -> tuple[NDArray[np.bool_], Features]:
    """[n]: whether a biased model gets the sample right, which makes it one of its class's majority (step 2); and the
    features of the samples under that model."""
    if model.spec.num_classes == 2:
        return train_biased(task, theta, client_id, samples, model, positive=1)
    in_majority = np.zeros(len(samples), dtype=bool)
    seen: Features = np.empty((0, 0), np.float32)
    for y in np.unique(samples.y):
        right, inputs = train_biased(task, theta, client_id, samples, model, positive=int(y))
        of_class = samples.y == y
        in_majority[of_class] = right[of_class]
        seen = seen if seen.size else np.empty_like(inputs)
        seen[of_class] = inputs[of_class]
    return in_majority, seen


def train_biased(
    task: PaperTriplet, theta: Vector, client_id: int, samples: Samples, model: FlatModel, positive: int
) -> tuple[NDArray[np.bool_], Features]:
    """Overfit a copy of θ by GCE to "is it class `positive`?" for `bias_steps` steps; [n]: is its answer right? And
    what it sees.

    With more than two classes the question is another than θ's: its answer is given by the first two outputs of a head
    drawn anew, as that of a two-way head would be. The other outputs play no part.
    """
    model.load(theta)
    model.module.train()
    purpose = f"biased model of class {positive}"
    torch.manual_seed(seeding.integer(task.seed, purpose, task.round, client_id))
    if model.spec.num_classes > 2:
        draw_anew(model.module.head)  # type: ignore[arg-type]
    rng = seeding.rng(task.seed, purpose, task.round, client_id)
    optimiser = SGD(
        model, Train(task.seed, task.round, lr=task.lr, momentum=task.momentum, weight_decay=task.weight_decay)
    )
    order = balanced_draws(samples.y == positive, task.bias_steps * task.batch_size, rng)
    for x, y in batches(samples, order, task.batch_size, model):
        logits = model.module(x)[:, :2]
        loss = generalised_cross_entropy(logits, (y == positive).long(), task.gce_q).mean()
        if not math.isfinite(loss.item()):
            raise Diverged("the biased model's loss is not finite; a smaller learning rate may help")
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    right = [(logits[:, :2].argmax(1) == (y == positive).long()).cpu().numpy() for logits, y in outputs(model, samples)]
    return np.concatenate(right), seen_by(model, samples)


def draw_anew(head: nn.Module) -> None:
    """Fresh weights for a head, from torch's current random state."""
    for layer in head.modules():
        if callable(reset := getattr(layer, "reset_parameters", None)):
            reset()


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
    """[n]: 1 where a linear classifier, trained on the pivot class alone, sees that class's majority (step 3). Of the
    pivot class itself it is known who is in the majority: those the biased model got right.

    If the biased model made no mistake in the pivot class, or nothing but mistakes, there is nothing to tell apart:
    every sample gets the one attribute that was seen (so AI is 1 and SC 0, as from any classifier of one label).
    """
    pivot = np.flatnonzero(y == find_pivot(y, in_majority))
    labels = in_majority[pivot].astype(np.int64)
    if labels.min() == labels.max():
        return np.full(len(y), labels[0])
    rng = seeding.rng(task.seed, "attribute classifier", task.round, client_id)
    x, targets = torch.from_numpy(inputs[pivot]), torch.from_numpy(labels)
    torch.manual_seed(seeding.integer(task.seed, "attribute classifier", task.round, client_id))
    classifier = nn.Linear(inputs.shape[1], 2)
    optimiser = torch.optim.SGD(
        classifier.parameters(), lr=task.lr, momentum=task.momentum, weight_decay=task.weight_decay
    )
    for _ in range(task.attribute_steps):
        ids = torch.from_numpy(balanced_draws(labels == 1, task.batch_size, rng))
        optimiser.zero_grad()
        functional.cross_entropy(classifier(x[ids]), targets[ids]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.inference_mode():
        found: NDArray[np.int64] = classifier(torch.from_numpy(inputs)).argmax(1).numpy()
    found[pivot] = labels
    return found
