"""How good θ is on samples that the client never trained on: counts leave it, samples do not (docs/your-data.md)."""

import numpy as np
from numpy.typing import NDArray

from feddiverse.client.consensus import along, given_shares, log_likelihoods, own_shares
from feddiverse.client.draws import Unread
from feddiverse.client.evaluation import outputs
from feddiverse.data.federation import Ids, Samples
from feddiverse.messages import EvaluateHeldOut, ReadHeldOut, Reply, Vector
from feddiverse.models import FlatModel

ATTRIBUTE, CONFIDENCE = "held_out.attribute", "held_out.confidence"


def read(task: ReadHeldOut, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    """Remember the likeliest attribute of each sample that is held out, and its posterior."""
    shares = task.shares.astype(np.float64)
    own = own_shares(log_likelihoods(along(task, theta, samples, model), task.centres[samples.y]), samples.y, shares)
    tested = samples if samples.held_out is None else samples.held_out
    if len(tested):
        likelihoods = log_likelihoods(along(task, theta, tested, model), task.centres[tested.y])
        posterior = given_shares(likelihoods, own[tested.y])
        samples.memory[ATTRIBUTE], samples.memory[CONFIDENCE] = posterior.argmax(axis=1), posterior.max(axis=1)
    return Reply(client_id)


def evaluate(task: EvaluateHeldOut, theta: Vector, client_id: int, samples: Samples, model: FlatModel) -> Reply:
    """Right answers and samples: of each class, then of each group as it was read."""
    tested = samples if samples.held_out is None else samples.held_out
    model.load(theta)
    predicted = [logits.argmax(1).cpu().numpy() for logits, _ in outputs(model, tested)]
    right = np.concatenate(predicted or [tested.y]) == tested.y
    num_classes = model.spec.num_classes
    counts = [_counted(right, tested.y, np.zeros_like(tested.y), (num_classes, 1))]
    if task.num_attributes and len(tested):
        if len(samples.memory.get(ATTRIBUTE, ())) != len(tested):
            raise Unread("it has not read its attributes: they must be asked for first")
        sure = samples.memory[CONFIDENCE] >= task.confidence
        shape = (num_classes, task.num_attributes)
        counts.append(_counted(right[sure], tested.y[sure], samples.memory[ATTRIBUTE][sure], shape))
    elif task.num_attributes:
        counts.append(np.zeros((2, num_classes, task.num_attributes)))
    return Reply(client_id, vector=np.concatenate([table.ravel() for table in counts]).astype(np.float32))


def _counted(right: NDArray[np.bool_], y: Ids, a: Ids, shape: tuple[int, int]) -> NDArray[np.float64]:
    """[2, classes, attributes]: right answers, and samples."""
    counts = np.zeros((2, *shape))
    np.add.at(counts[0], (y, a), right)
    np.add.at(counts[1], (y, a), 1)
    return counts
