"""The last layer of a user's own model, among the arrays that a Flower strategy holds, solved anew."""

from itertools import pairwise

import numpy as np
from flwr.app import Array, ArrayRecord

from feddiverse.errors import UserError
from feddiverse.estimation.balancer import CONFIDENCE, Balancer, CannotBalance, Head
from feddiverse.estimation.consensus import Consensus
from feddiverse.server.meter import Meter


def rebalanced(
    arrays: ArrayRecord,
    name: str,
    meter: Meter,
    seed: int,
    num_attributes: int,
    dimensions: int,
    exact_counts: bool = True,
) -> tuple[ArrayRecord | None, str]:
    """The arrays with another last layer, or None; and what there is to say about it."""
    weight, bias = find_head(arrays, name)
    old = [arrays[key].numpy() for key in (weight, bias)]
    num_classes, num_features = old[0].shape
    theta = np.concatenate([part.ravel() for part in old]).astype(np.float32)
    place = Head(slice(0, old[0].size), slice(old[0].size, theta.size), num_classes, num_features)
    estimator = Consensus(seed, num_classes, num_attributes, confidence=CONFIDENCE)
    try:
        balancer = Balancer(estimator, theta, seed, dimensions=dimensions, reading="final", exact_counts=exact_counts)
        solved, about = balancer.solve(1, theta, place, meter.clients, meter.with_theta)
    except CannotBalance as why:
        return None, str(why)
    changed = {weight: solved[place.weight].reshape(old[0].shape), bias: solved[place.bias]}
    made = {
        key: Array(changed[key].astype(array.numpy().dtype)) if key in changed else array
        for key, array in arrays.items()
    }
    return ArrayRecord(made), (
        f"The last layer, {weight}, is solved anew from the sums of {about['clients']} clients, with the penalty"
        f" {about['penalty']:g}; samples read of each group: {about['groups']}."
    )


def find_head(arrays: ArrayRecord, name: str = "") -> tuple[str, str]:
    """The keys of the last layer's weights [Y, D] and bias [Y]."""
    keys = list(arrays)
    if name:
        wanted = f"{name}.weight", f"{name}.bias"
        if missing := [key for key in wanted if key not in keys]:
            raise UserError(f"The model has no array '{missing[0]}'; it has: {', '.join(keys)}.")
        shapes = [arrays[key].numpy().shape for key in wanted]
        if len(shapes[0]) != 2 or shapes[1] != shapes[0][:1]:
            raise UserError(f"'{name}' is no linear layer with a bias: its arrays have the shapes {shapes}.")
        return wanted
    for weight, bias in reversed(list(pairwise(keys))):
        shape, other = arrays[weight].numpy().shape, arrays[bias].numpy().shape
        if len(shape) == 2 and other == shape[:1]:
            return weight, bias
    raise UserError("None of the model's arrays are a linear last layer with a bias: name it with head=….")
