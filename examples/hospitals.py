"""A real tabular federation: 569 breast tumours (scikit-learn's Wisconsin set) at five hospitals, as a CSV.

Who has which tumour is ours to say, since the set names no hospital: `city` and `university` see large tumours, the
others small ones, and `village` has seen one patient. What the hospitals differ in is written nowhere in the table.

    python hospitals.py patients.csv
    feddiverse run --federation patients.csv --label diagnosis --client hospital --features texture,smoothness,…
"""

import csv
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

FEATURES = ("radius", "texture", "smoothness", "compactness", "symmetry")


def write_patients(path: Path, seed: int = 0) -> None:
    """One row a tumour: five numbers, the diagnosis, the hospital, and whether it is for training or for testing."""
    data = load_breast_cancer()
    columns = [list(data.feature_names).index(f"mean {name}") for name in FEATURES]
    rng = np.random.default_rng(seed)
    large = data.data[:, columns[0]] > np.median(data.data[:, columns[0]])
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream)
        table.writerow([*FEATURES, "diagnosis", "hospital", "split"])
        for i, numbers in enumerate(data.data[:, columns]):
            sees_large = large[i] if rng.random() < 0.8 else rng.random() < 0.5
            hospital = rng.choice(["city", "university"] if sees_large else ["coast", "hills"])
            is_test = rng.random() < 0.25 and i > 0
            site = "" if is_test else "village" if i == 0 else hospital
            table.writerow([*numbers, data.target_names[data.target[i]], site, "test" if is_test else "train"])


if __name__ == "__main__":
    write_patients(Path(sys.argv[1] if len(sys.argv) > 1 else "patients.csv"))
