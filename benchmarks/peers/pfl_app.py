"""The work with pfl (Apple's pfl-research) 0.6.0; two processes by torchrun.

Differs from the rest in two ways that are pfl's own: clients come in a fixed cycle, and a client's batches are cut once
and never shuffled. It would evaluate every client in round 0, so we count from 1.
"""

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch.nn import functional

from benchmarks.peers.work import BATCH_SIZE, EPOCHS, LR, MOMENTUM, NUM_SELECTED, Work, from_command_line


class Told(TrainingProcessCallback):
    def __init__(self, work: Work) -> None:
        self.work = work

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if get_framework_module().distributed.global_rank == 0:
            self.work.finished(central_iteration)
        return False, Metrics()


def with_loss(module: torch.nn.Module) -> torch.nn.Module:
    """pfl asks the module itself for its loss and metrics."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        module.train()
        return functional.cross_entropy(module(x), y)

    @torch.no_grad()
    def metrics(x: Tensor, y: Tensor) -> dict[str, Weighted]:
        module.eval()
        return {"loss": Weighted(functional.cross_entropy(module(x), y, reduction="sum").item(), len(y))}

    module.loss, module.metrics = loss, metrics
    return module


def run(work: Work) -> None:
    module = with_loss(work.build_model())
    model = PyTorchModel(
        module,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    from pfl.data.pytorch import PyTorchTensorDataset  # only once a PyTorch model has chosen the framework

    clients = work.clients()
    users = {k: PyTorchTensorDataset(tensors=data) for k, data in enumerate(clients)}
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    algorithm = FederatedAveraging()
    algorithm._current_central_iteration = 1
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=work.rounds + 1, evaluation_frequency=1_000_000, train_cohort_size=NUM_SELECTED,
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data),
        model,
        NNTrainHyperParams(local_num_epochs=EPOCHS, local_learning_rate=LR, local_batch_size=BATCH_SIZE),
        NNEvalHyperParams(local_batch_size=BATCH_SIZE),
        [Told(work)],
        send_metrics_to_platform=False,
    )  # fmt: skip


if __name__ == "__main__":
    run(from_command_line())
