"""MOON's contrastive loss on a client (Li, He, Song, CVPR 2021): see `feddiverse.server.objectives`."""

import torch
from torch import Tensor
from torch.nn import functional

from feddiverse.messages import Train, Vector
from feddiverse.models import FlatModel


class Contrast:
    """How far what a model sees is from θ's view, compared with its own last model's view.

    One module serves all three: before each step the weights of θ and of the last model are put in for a forward pass.
    """

    def __init__(self, task: Train, theta: Vector, previous: Vector, model: FlatModel) -> None:
        self._task, self._model = task, model
        self._others = (theta, previous)
        self._seen: list[Tensor] = []
        self._hook = model.module.head.register_forward_pre_hook(  # type: ignore[union-attr]
            lambda _, inputs: self._seen.append(inputs[0])
        )

    def views(self, x: Tensor) -> list[Tensor]:
        """What θ and the last model see, [n, d] each; the current weights are as before afterwards."""
        model = self._model
        current = model.theta.clone()
        model.module.eval()
        views = []
        with torch.no_grad():
            for weights in self._others:
                model.load(weights)
                views.append(model.module.features(x))  # type: ignore[operator]
            model.theta.copy_(current)
        model.module.train()
        self._seen.clear()
        return views

    def loss(self, views: list[Tensor]) -> Tensor:
        """µ·(−log of the share of θ's view), of the batch that was last shown to the model."""
        seen = self._seen.pop()
        likeness = torch.stack([functional.cosine_similarity(seen, view) for view in views], dim=1)
        nearest = torch.zeros(len(seen), dtype=torch.long, device=seen.device)
        return self._task.moon_mu * functional.cross_entropy(likeness / self._task.moon_temperature, nearest)

    def close(self) -> None:
        """Leave the model as it was found."""
        self._hook.remove()
