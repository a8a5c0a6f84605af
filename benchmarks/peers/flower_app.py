"""The work as a plain, idiomatic Flower 1.41 simulation: message API, FedAvg, one Ray actor a process."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.work import (
    BATCH_SIZE,
    EPOCHS,
    LR,
    MOMENTUM,
    NUM_CLIENTS,
    NUM_SELECTED,
    Work,
    from_command_line,
    from_environment,
    to_environment,
)

client_app = ClientApp()
_clients: list[tuple[torch.Tensor, torch.Tensor]] = []  # read once in each actor


@client_app.train()
def train(message: Message, context: Context) -> Message:
    work = from_environment()
    if not _clients:
        _clients.extend(work.clients())
    model = work.build_model().train()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = TensorDataset(*_clients[int(context.node_config["partition-id"])])
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for _ in range(EPOCHS):
        for x, y in DataLoader(data, batch_size=BATCH_SIZE, shuffle=True):
            optimiser.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimiser.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(data)})}
    return Message(RecordDict(content), reply_to=message)


class Told(FedAvg):
    def __init__(self, work: Work) -> None:
        super().__init__(
            fraction_train=NUM_SELECTED / NUM_CLIENTS, fraction_evaluate=0.0, min_train_nodes=NUM_SELECTED,
            min_evaluate_nodes=0, min_available_nodes=NUM_CLIENTS,
        )  # fmt: skip
        self.work = work

    def aggregate_train(self, server_round, replies):
        aggregated = super().aggregate_train(server_round, replies)
        self.work.finished(server_round)
        return aggregated


def run(work: Work) -> None:
    to_environment(work)
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        Told(work).start(grid, ArrayRecord(work.build_model().state_dict()), num_rounds=work.rounds)

    run_simulation(
        server_app, client_app, NUM_CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": work.processes}},
    )  # fmt: skip


if __name__ == "__main__":
    run(from_command_line())
