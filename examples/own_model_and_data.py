"""My own pictures and my own model: a CSV that names them, and a function that builds an `nn.Module`.

Run it: python examples/own_model_and_data.py
"""

import csv
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from torch import nn

import feddiverse


def tiny_net(num_classes, shape):
    """A factory is called with the number of classes and the pictures' shape (channels, height, width)."""
    return nn.Sequential(nn.Conv2d(shape[0], 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
                         nn.Linear(8 * 16, num_classes))  # fmt: skip


def make_pictures(folder):
    """Squares and frames, bright or dark, at six sites that see them in different mixtures."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(480):
        shape, light = number % 2, number // 2 % 2
        picture = rng.integers(0, 60, (16, 16, 3)) + 100 * light
        picture[4:12, 4:12] += 90
        if shape:
            picture[6:10, 6:10] -= 90
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.png")
        agrees = shape == light if rng.random() < 0.6 else rng.random() < 0.5
        site = f"site{rng.integers(3) + 3 * agrees}"  # sites 3 to 5 see frames mostly when it is bright
        part = "test" if rng.random() < 0.25 else "train"
        rows.append([f"{number}.png", ["square", "frame"][shape], ["dark", "bright"][light], site, part])
    with (folder / "pictures.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["image", "class", "attribute", "client", "split"], *rows])
    return folder / "pictures.csv"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        result = feddiverse.train(
            federation=f"table:{make_pictures(Path(folder))}",
            model=tiny_net,
            selector="feddiverse",
            aggregator="fedavg",
            num_selected=3,
            rounds=20,
            evaluate_every=5,
            lr=0.1,
            image_size=16,
        )
    for group in result.groups:
        print(f"class {group['class']}, attribute {group['attribute']}: {group['accuracy']:.3f} of {group['count']}")
    print(f"worst-group accuracy {result.worst_group_accuracy:.3f}")
