"""A real federation of numbers: 333 penguins on three islands in three years (the package palmerpenguins).

Each island and year is a client, the class is a penguin's sex, and what clients differ in is the species: Gentoo are
larger than the others, female or male. Nobody tells it here; it is only compared with at the end.

    pip install palmerpenguins
    python penguins.py
"""

import numpy as np
from palmerpenguins import load_penguins

import feddiverse as fd

FEATURES = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]


def main() -> None:
    birds = load_penguins().dropna()
    x = birds[FEATURES].to_numpy(np.float32)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    is_test = np.random.default_rng(0).random(len(birds)) < 0.3
    client = (birds.island + " " + birds.year.astype(str)).to_numpy()
    gentoo = (birds.species == "Gentoo").to_numpy().astype(int)
    sex = birds.sex.to_numpy()
    fed = fd.Federation.from_arrays(
        x[~is_test], sex[~is_test], client[~is_test], test=(x[is_test], sex[is_test], gentoo[is_test])
    )

    found = fd.discover(fed, seed=0)
    agree = np.mean(found.attributes == gentoo[~is_test][found.sample])
    print(f"{fed.num_clients} clients. {found.headline}")
    print(f"It is the species (Gentoo or not) for {max(agree, 1 - agree):.0%} of the penguins.")

    result = fd.train(fed, "mlp", rounds=60, lr=0.05, seed=0, rebalance=True)
    print(f"worst group {result.worst_group_accuracy:.0%}, rebalanced {result.rebalanced['worst_group_accuracy']:.0%}")


if __name__ == "__main__":
    main()
