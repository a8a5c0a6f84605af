"""What runs on the server."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from feddiverse.flower import FedDiverse
from quickstart.task import NUM_CLASSES, Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedDiverse(FedAvg(fraction_train=context.run_config["fraction-train"]), NUM_CLASSES)
    result = strategy.start(
        grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
    )
    print("accuracy of the last round:", result.evaluate_metrics_clientapp)
