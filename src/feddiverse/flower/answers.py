"""Our questions answered inside a user's own `ClientApp`, from features and labels alone."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from feddiverse.client import tasks
from feddiverse.data.federation import Samples
from feddiverse.data.partitioned import IMAGE_KEYS, LABEL_KEYS
from feddiverse.errors import UserError
from feddiverse.flower import wire
from feddiverse.flower.policy import insist
from feddiverse.messages import (
    AdvertiseKeys,
    AttributeTriplet,
    FeatureHistogram,
    FeatureMoments,
    GroupSums,
    HeadErrors,
    LabelCounts,
    Loss,
    PaperTriplet,
    Reply,
    ShareKeys,
    Task,
    Unmask,
    Vector,
)
from feddiverse.models import FlatModel, ModelSpec

ANSWERED: tuple[type[Task], ...] = (
    FeatureMoments, FeatureHistogram, AttributeTriplet, PaperTriplet, LabelCounts, Loss,
    GroupSums, HeadErrors, AdvertiseKeys, ShareKeys, Unmask,
)  # fmt: skip

Data = Callable[[Message, Context], Iterable[ArrayLike]]
"""`(message, context) → features [n, d], labels [n]`, and losses [n] where `pow_d` or `oort` shall ask for them. The
message has the records of the strategy's own train messages, so the global model is read from it in the same way."""


def answer_questions(app: ClientApp, data: Data, num_classes: int) -> ClientApp:
    """Have `app` answer what `FedDiverse` and the other selectors ask, about the data that `data` gives.

    Features are what the current global model sees (the input of its last layer): see `features_of`.

    >>> app = answer_questions(ClientApp(), lambda message, context: ([[0.1, 0.9], [0.8, 0.3]], [1, 0]), num_classes=2)
    """
    app.query(wire.HELLO_ACTION)(functools.partial(_hello, data, num_classes))
    for kind in ANSWERED:
        app.query(wire.action(kind))(functools.partial(_answer, data, num_classes))
    return app


def _client(context: Context) -> int:
    """Its partition; a node without one goes by its own id, which stays the same while it is registered.

    Flower draws node ids of 64 bits; ours have 63, as NumPy's integers do.
    """
    return int(context.node_config.get(wire.PARTITION, context.node_id & wire.LARGEST))


def _hello(data: Data, num_classes: int, message: Message, context: Context) -> Message:
    _, labels, _ = _read(data, num_classes, message, context)
    return Message(wire.introduction(_client(context), len(labels), context.node_config), reply_to=message)


def _answer(data: Data, num_classes: int, message: Message, context: Context) -> Message:
    client = _client(context)
    task = insist(wire.decode_task(message.content), client, context.node_config)
    features, labels, losses = _read(data, num_classes, message, context)
    if isinstance(task, Reply):
        reply = task
    elif isinstance(task, Loss):
        reply = _loss(client, losses)
    else:
        memory = wire.read_memory(context.state)
        samples = Samples(features, labels, None, memory, secret_noise=True)  # nobody knows the attributes here
        reply = tasks.answer(task, np.empty(0, np.float32), client, samples, HeadOnly(features.shape[1], num_classes))
        wire.write_memory(context.state, memory)
    return Message(wire.encode_reply(replace(reply, num_examples=len(labels))), reply_to=message)


def _read(
    data: Data, num_classes: int, message: Message, context: Context
) -> tuple[Vector, NDArray[np.int64], NDArray[np.float64] | None]:
    features, labels, *losses = (np.asarray(part) for part in data(message, context))
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(f"features must be [n, d] and labels [n], not {features.shape} and {labels.shape}")
    if len(labels) and not (labels.min() >= 0 and labels.max() < num_classes):
        raise ValueError(f"labels must be within 0 … {num_classes - 1}, not {labels.min()} … {labels.max()}")
    return features.astype(np.float32), labels.astype(np.int64), losses[0].astype(np.float64) if losses else None


def _loss(client: int, losses: NDArray[np.float64] | None) -> Reply:
    if losses is None:
        return Reply(client, failure="it gives no losses: let the function of answer_questions return them as well")
    return Reply(client, metrics={"loss": float(losses.mean()), "loss_rms": math.sqrt(float(np.square(losses).mean()))})


class HeadOnly(FlatModel):
    """The model that sees features instead of pictures: a linear head, and no body.

    It lets every answer of `client/` work on features as they are. For the paper's estimator it means that the biased
    model is linear, where the paper trains a copy of the whole model.
    """

    def __init__(self, dimensions: int, num_classes: int) -> None:
        spec = ModelSpec("features", num_classes, (dimensions,), None, None)
        super().__init__(_Head(dimensions, num_classes), spec)

    def load(self, vector: Vector) -> None:
        """Always from zero: the global model is in the features already."""
        self.theta.zero_()


class _Head(nn.Module):
    def __init__(self, dimensions: int, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(dimensions, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x)
        return logits


def features_of(
    model: nn.Module, loader: Iterable[Any], inputs: Callable[[Any], Sequence[Any]] | None = None
) -> tuple[Vector, NDArray[np.int64], NDArray[np.float32]]:
    """Features, labels and losses of a loader's samples under `model`: what `answer_questions` wants.

    Features are the input of the model's last Linear layer. Batches are pairs `(x, y)`, or dictionaries with an
    `"img"` (or `"image"`, `"pixel_values"`, …) and a `"label"` (or `"labels"`, …), as Flower Datasets gives them; for
    others, `inputs` takes a batch apart: `batch → (x, y)`.

    >>> model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> features, labels, losses = features_of(model, [{"img": torch.zeros(4, 3), "label": torch.zeros(4).long()}])
    >>> features.shape, labels.shape, losses.shape
    ((4, 5), (4,), (4,))
    """
    from feddiverse.models.custom import WithFeatures

    body = WithFeatures(model.eval(), type(model).__name__)
    device = next(model.parameters()).device
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    with torch.inference_mode():
        for batch in loader:
            x, y = _tensors(*(inputs or _inputs)(batch))
            seen = body.features(x.to(device))
            losses = nn.functional.cross_entropy(body.head(seen), y.to(device), reduction="none")
            parts.append((seen.cpu(), y.cpu(), losses.cpu()))
    if not parts:
        raise UserError("The loader gave no batch, so there are no features: give this client data, or leave it out.")
    features, labels, all_losses = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    return features, labels, all_losses


def _inputs(batch: Any) -> tuple[Any, Any]:
    """Samples and labels of a batch, by position or by the usual names."""
    how = "say how to take it apart: features_of(model, loader, inputs=lambda batch: (…, …))."
    if isinstance(batch, Mapping):
        x, y = (next((key for key in known if key in batch), None) for known in (IMAGE_KEYS, LABEL_KEYS))
        if x is None or y is None:
            what = "samples" if x is None else "labels"
            keys = ", ".join(f"'{key}'" for key in batch) or "none"
            raise UserError(f"None of a batch's keys ({keys}) is known to hold the {what}; {how}")
        return batch[x], batch[y]
    if isinstance(batch, Sequence) and len(batch) == 2:
        return batch[0], batch[1]
    length = f" of {len(batch)}" if isinstance(batch, Sequence) else ""
    raise UserError(f"A batch of the loader is a {type(batch).__name__}{length}, no pair (x, y) and no dict; {how}")


def _tensors(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """As tensors, which what a dataset gives without a transform need not be (a list of pictures)."""
    try:
        return torch.as_tensor(x), torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"A batch's samples ({type(x).__name__}) or labels ({type(y).__name__}) are no tensors: let the dataset's"
            " transform make tensors of them."
        ) from error
