"""What runs on each client."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, load_data, test, train

app = ClientApp()


def prepare(message: Message, context: Context):
    """The global model, and this client's data."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model, *load_data(context.node_config["partition-id"], context.node_config["num-partitions"])


@app.train()
def train_here(message: Message, context: Context) -> Message:
    model, train_loader, _ = prepare(message, context)
    loss = train(model, train_loader, context.run_config["local-epochs"], context.run_config["learning-rate"])
    metrics = MetricRecord({"loss": loss, "num-examples": len(train_loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_here(message: Message, context: Context) -> Message:
    model, _, test_loader = prepare(message, context)
    metrics = MetricRecord({"accuracy": test(model, test_loader), "num-examples": len(test_loader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
