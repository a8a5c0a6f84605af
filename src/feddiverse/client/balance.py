"""Every hidden group counts equally: a client's side (docs/rebalance.md).

A client reads the attribute of its own samples once, under the model that the reading was made with
(`AttributeTriplet`), and remembers it: what it remembers never leaves it.
"""

import numpy as np

from feddiverse.client.consensus import projected
from feddiverse.client.draws import ATTRIBUTE, sample_weights
from feddiverse.client.evaluation import features
from feddiverse.data.federation import Samples
from feddiverse.messages import GroupSums, HeadErrors, Reply, Vector
from feddiverse.models import FlatModel


def group_sums(task: GroupSums, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    """Weighted sums of features: of each class, and of their products."""
    weights = sample_weights(samples, task.weights, task.confidence)
    x = projected(task, features(theta, samples, model))
    num_classes, d = model.spec.num_classes, x.shape[1]
    by_class = np.zeros(num_classes)
    np.add.at(by_class, samples.y, weights)
    sums = np.zeros((num_classes, d))
    np.add.at(sums, samples.y, weights[:, None] * x)
    products = (x * weights[:, None]).T @ x
    parts = [by_class, sums.ravel(), products[np.triu_indices(d)]]
    return Reply(client_id, vector=np.concatenate(parts).astype(np.float32))


def head_errors(task: HeadErrors, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    """What each of some heads would do on this client: squared errors summed over the sure samples of each group."""
    shape = task.weights.shape
    sure = sample_weights(samples, task.weights, task.confidence) > 0
    x = projected(task, features(theta, samples, model))[sure]
    y = samples.y[sure]
    group = y * shape[1] + samples.memory[ATTRIBUTE][sure]
    targets = 2.0 * np.eye(shape[0])[y] - 1
    errors = np.zeros((len(task.heads), shape[0] * shape[1]))
    for place, head in enumerate(task.heads.astype(np.float64)):
        squared = np.square(x @ head[:, :-1].T + head[:, -1] - targets).mean(axis=1)
        errors[place] = np.bincount(group, weights=squared, minlength=errors.shape[1])
    counts = np.bincount(group, minlength=errors.shape[1])
    return Reply(client_id, vector=np.concatenate([errors.ravel(), counts]).astype(np.float32))
