"""MOON's contrastive loss on a client (Li, He, Song, CVPR 2021): see `feddiverse.server.objectives`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from feddiverse.messages import Train, Vector
from feddiverse.models import FlatModel


class Contrast:
    """How far what a model sees is from θ's view, compared with its own last model's view.

    One module serves all three: before each step the weights of θ and of the last model are put in for a forward pass.
    What is seen is what enters the head; where that is through a dropout, as the dropout found it.
    """

    def __init__(self, task: Train, theta: Vector, previous: Vector, model: FlatModel) -> None:
        self._task, self._model = task, model
        self._others = (theta, previous)
        self._seen: list[Tensor] = []
        self._dropped: tuple[Tensor | None, Tensor | None] = None, None  # what left the last dropout, what came in
        dropouts = [part for part in model.module.modules() if isinstance(part, nn.Dropout)]
        self._hooks = [part.register_forward_hook(self._leaves_dropout) for part in dropouts]
        self._hooks.append(model.module.head.register_forward_pre_hook(self._enters_head))  # type: ignore[union-attr]

    def _leaves_dropout(self, _: nn.Module, inputs: Any, output: Tensor) -> None:
        self._dropped = output, inputs[0]

    def _enters_head(self, _: nn.Module, inputs: Any) -> None:
        dropped, whole = self._dropped
        self._seen.append(whole if whole is not None and inputs[0] is dropped else inputs[0])

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
        for hook in self._hooks:
            hook.remove()
