"""The model, the data of one client, and what is done with them."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_CLASSES = 10


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, NUM_CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def load_data(partition_id: int, num_partitions: int) -> tuple[DataLoader, DataLoader]:
    """This client's digits, 80 % to train and 20 % to test on: each client sees some digits far more than others."""
    pixels, labels = load_digits(return_X_y=True)
    generator = np.random.default_rng(0)
    shares = generator.dirichlet([0.5] * num_partitions, size=NUM_CLASSES)
    owner = np.array([generator.choice(num_partitions, p=shares[label]) for label in labels])
    mine = generator.permutation(len(labels))
    mine = mine[owner[mine] == partition_id]
    x = torch.tensor(pixels[mine] / 16, dtype=torch.float32)
    y = torch.tensor(labels[mine], dtype=torch.long)
    cut = max(1, int(0.8 * len(mine)))
    train, test = TensorDataset(x[:cut], y[:cut]), TensorDataset(x[cut:], y[cut:])
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=32)


def train(model: nn.Module, loader: DataLoader, epochs: int, lr: float) -> float:
    """Plain SGD; the mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


def test(model: nn.Module, loader: DataLoader) -> float:
    """The share of right answers."""
    right = total = 0
    with torch.inference_mode():
        for x, y in loader:
            right += int((model(x).argmax(1) == y).sum())
            total += len(y)
    return right / max(1, total)
