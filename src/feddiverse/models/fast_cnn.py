"""The small CNN by the layers written in C."""

from typing import cast

import torch
from torch import Tensor, nn

from feddiverse.models import native
from feddiverse.models.cnn import CNN
from feddiverse.models.tape import Tape, play


class FastCNN(CNN):
    """The CNN with the same weights, outputs and gradients, by the layers written in C (see `tape.play`)."""

    input_layout = torch.channels_last

    def maps(self, x: Tensor) -> Tensor:
        if not native.usable_for(x):
            return super().maps(x)
        return play(_run, self, x.permute(0, 2, 3, 1).contiguous()).permute(0, 3, 1, 2)


def _run(model: CNN, x: Tensor, tape: Tape | None) -> Tensor:
    for layer in model.layers:
        conv, norm, _ = cast(nn.Sequential, layer)
        x = native.group_norm(native.convolution(x, cast(nn.Conv2d, conv), tape), cast(nn.GroupNorm, norm), tape, 0.0)
    if tape is not None:
        tape.append(lambda dy: dy.clone(memory_format=torch.contiguous_format))
    return x
