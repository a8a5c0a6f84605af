"""A model whose weights are one vector θ: what travels, what is averaged, what SGD steps along."""

import numpy as np
import torch
from torch import Tensor, nn

from feddiverse.errors import UserError
from feddiverse.messages import Vector
from feddiverse.models.layers import native
from feddiverse.models.spec import ModelSpec


class FlatModel:
    """`module` with every parameter a view of `theta`, and every gradient a view of `grad`.

    `theta` holds the P parameters in the module's order, then the float buffers (such as BatchNorm's statistics):
    those travel and are averaged too, but have no gradient, so `grad` has length P.
    """

    def __init__(self, module: nn.Module, spec: ModelSpec, device: torch.device | str = "cpu") -> None:
        self.module = module.to(device)
        self.spec = spec
        parameters = list(module.parameters())
        buffers = [b for b in module.buffers() if b.is_floating_point()]
        self.num_parameters = sum(p.numel() for p in parameters)
        with torch.no_grad():
            self.theta: Tensor = torch.cat([t.detach().reshape(-1).float() for t in (*parameters, *buffers)])
        self.grad: Tensor = torch.zeros_like(self.theta[: self.num_parameters])
        end = 0
        for tensor in (*parameters, *buffers):
            start, end = end, end + tensor.numel()
            shape = tensor.shape
            tensor.data = self.theta[start:end].view(shape)
            if isinstance(tensor, nn.Parameter):
                tensor.grad = self.grad[start:end].view(shape)
        self._scale = self._shift = torch.empty(0)
        if spec.mean is not None and spec.std is not None:  # (x/255 − mean)/std as one multiplication and one addition
            mean, std = torch.tensor(spec.mean), torch.tensor(spec.std)
            self._scale = (1.0 / (255.0 * std)).view(-1, 1, 1).to(device)
            self._shift = (-mean / std).view(-1, 1, 1).to(device)
            every_byte = torch.arange(256, dtype=torch.float32).expand(len(mean), 1, 256)
            self._table = (every_byte * self._scale.cpu() + self._shift.cpu()).view(-1, 256)
        self._layout = getattr(module, "input_layout", torch.contiguous_format)

    @property
    def device(self) -> torch.device:
        return self.theta.device

    @property
    def parameters(self) -> Tensor:
        """The part of θ that SGD moves, [P]; a view."""
        return self.theta[: self.num_parameters]

    @property
    def head_bias(self) -> slice:
        """Where in θ the bias of the model's head is: one number a class."""
        bias = getattr(self.module.head, "bias", None)
        if not isinstance(bias, nn.Parameter) or bias.shape != (self.spec.num_classes,):
            raise UserError(
                f"The head of the model {self.spec.name} has no bias of one number a class, which the selector needs:"
                " give the model a Linear head with a bias, or choose another selector."
            )
        start = (bias.data_ptr() - self.theta.data_ptr()) // self.theta.element_size()
        return slice(start, start + bias.numel())

    def head(self) -> tuple[slice, slice, int]:
        """Where in θ the weights and the bias of the model's linear head are, and how many features it takes."""
        head = self.module.head
        if not isinstance(head, nn.Linear) or head.bias is None or head.out_features != self.spec.num_classes:
            raise UserError(
                f"The model {self.spec.name} has no linear last layer with a bias, one output a class, that could be"
                " solved anew: leave rebalance out, or give it one."
            )
        places = []
        for part in (head.weight, head.bias):
            start = (part.data_ptr() - self.theta.data_ptr()) // self.theta.element_size()
            places.append(slice(start, start + part.numel()))
        return places[0], places[1], head.in_features

    def load(self, vector: Vector) -> None:
        """Take θ from a vector of the same length."""
        if vector.shape != self.theta.shape:
            raise UserError(
                f"θ has {vector.size:,} numbers, but the model {self.spec.name} has {self.theta.numel():,}."
            )
        if self.device.type == "cpu":
            np.copyto(self.theta.numpy(), vector)  # reads shared, read-only memory without a warning
        else:
            self.theta.copy_(torch.from_numpy(np.array(vector, dtype=np.float32)))

    def vector(self) -> Vector:
        """A copy of θ."""
        return self.theta.to("cpu", copy=True).numpy()

    def normalise(self, x: Tensor) -> Tensor:
        """uint8 pictures [n, channels, height, width] → floats on the model's device, ready for `module`; floats of any
        shape are taken as they are."""
        if self.spec.mean is None:
            return x.to(self.device, torch.float32)
        if self._layout is torch.channels_last and native.usable_for(self.theta) and x.dtype is torch.uint8:
            return native.look_up(x.contiguous(), self._table).permute(0, 3, 1, 2)
        pixels = x.to(self.device).to(torch.float32, memory_format=self._layout)
        return pixels.mul_(self._scale).add_(self._shift)
