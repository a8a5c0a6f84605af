"""The work with fluke 0.8.1: one process, client after client, each keeping its model and optimiser between rounds."""

import benchmarks.peers.torchvision_without_operators  # noqa: F401  # isort: skip (before fluke imports it)
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from fluke.utils import FederationObserver
from torch.nn import CrossEntropyLoss

from benchmarks.peers.work import (
    BATCH_SIZE,
    EPOCHS,
    LR,
    MOMENTUM,
    NUM_CLASSES,
    NUM_CLIENTS,
    NUM_SELECTED,
    Work,
    from_command_line,
)


class Split:
    """Our clients in place of fluke's own splitter."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def assign(self, n_clients: int, batch_size: int):
        loaders = [
            FastDataLoader(x, y, num_labels=NUM_CLASSES, batch_size=batch_size, shuffle=True)
            for x, y in self.work.clients()
        ]
        return (loaders, [None] * n_clients), None


class Told(FederationObserver):
    def __init__(self, work: Work) -> None:
        self.work = work

    def end_round(self, round: int) -> None:
        self.work.finished(round)


def run(work: Work) -> None:
    FlukeENV().set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
    parameters = DDict(
        client=DDict(
            batch_size=BATCH_SIZE, local_epochs=EPOCHS, loss=CrossEntropyLoss,
            optimizer=DDict(name="SGD", lr=LR, momentum=MOMENTUM), scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        ),
        server=DDict(weighted=False),
        model=work.build_model(),
    )  # fmt: skip
    algorithm = FedAVG(NUM_CLIENTS, Split(work), parameters)
    algorithm.set_callbacks(Told(work))
    algorithm.run(work.rounds, NUM_SELECTED / NUM_CLIENTS)


if __name__ == "__main__":
    run(from_command_line())
