"""The bare PyTorch loop, in this process or spread over several: what federated averaging costs without a framework.

Nothing is clever and nothing is wasted: data are float tensors at hand, θ and the workers' sums lie in shared memory,
and "go" and "done" are all that is sent.
"""

from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor, multiprocessing
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.peers.work import BATCH_SIZE, EPOCHS, LR, MOMENTUM, NUM_SELECTED, Work, from_command_line


class Trainer:
    """A process's model and the data of all clients."""

    def __init__(self, work: Work) -> None:
        self.clients = work.clients()
        self.model = work.build_model().train()

    def add_up(self, theta: Tensor, chosen: list[int], total: Tensor) -> None:
        """Train each chosen client from θ and add its weights to `total`."""
        for client in chosen:
            vector_to_parameters(theta.clone(), self.model.parameters())  # parameters become views of it
            self._train(*self.clients[client])
            with torch.no_grad():
                total += parameters_to_vector(self.model.parameters())

    def _train(self, x: Tensor, y: Tensor) -> None:
        optimiser = torch.optim.SGD(self.model.parameters(), lr=LR, momentum=MOMENTUM)
        for _ in range(EPOCHS):
            for ids in torch.randperm(len(y)).split(BATCH_SIZE):
                optimiser.zero_grad()
                functional.cross_entropy(self.model(x[ids]), y[ids]).backward()
                optimiser.step()


def serve(trainer: Trainer, theta: Tensor, total: Tensor, pipe: Connection) -> None:
    torch.set_num_threads(1)
    while chosen := pipe.recv():
        total.zero_()
        trainer.add_up(theta, chosen, total)
        pipe.send("done")


def run(work: Work) -> None:
    trainer = Trainer(work)
    theta = parameters_to_vector(trainer.model.parameters()).detach().clone().share_memory_()
    totals = [torch.zeros_like(theta).share_memory_() for _ in range(work.processes)]
    context = multiprocessing.get_context("fork")
    pipes = []
    for total in totals if work.processes > 1 else []:
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(trainer, theta, total, theirs), daemon=True).start()
        pipes.append(ours)
    rng = np.random.default_rng(0)
    for number in range(1, work.rounds + 1):
        chosen = rng.choice(len(trainer.clients), NUM_SELECTED, replace=False).tolist()
        if pipes:
            for i, pipe in enumerate(pipes):
                pipe.send(chosen[i :: work.processes])
            for pipe in pipes:
                pipe.recv()
        else:
            totals[0].zero_()
            trainer.add_up(theta, chosen, totals[0])
        theta.copy_(torch.stack(totals).sum(0).div_(NUM_SELECTED))
        work.finished(number)


if __name__ == "__main__":
    run(from_command_line())
