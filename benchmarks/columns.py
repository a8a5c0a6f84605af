"""What several columns say together: `python -m benchmarks.columns results/table-1 results/table-1-cmnist`.

For every two methods that all columns have: by how much the first ends above the second, and in how many pairs of
column and seed. Then, of each federation, the rarest group and how much of it any choice of clients can reach.
"""

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddiverse.experiment.finished import Run
from feddiverse.report.results import load
from feddiverse.report.statistics import paired_difference

Cells = dict[str, dict[str, dict[int, Run]]]  # column → method → seed → run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.columns", description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", help="directories of studies")
    cells: Cells = {}
    for results in map(load, parser.parse_args().results):
        for (row, column), runs in results.runs.items():
            cells.setdefault(column, {})[row] = dict(runs)
    shared = [row for row in next(iter(cells.values())) if all(row in methods for methods in cells.values())]
    for one, other in combinations(shared, 2):
        print(compared(cells, one, other))
    for column, methods in cells.items():
        print(rarest(column, next(iter(next(iter(methods.values())).values()))))


def compared(cells: Cells, one: str, other: str) -> str:
    """`one` minus `other` in percentage points, paired by seed: each column's mean, and the mean of those with its
    interval over seeds. The columns are no sample: the interval says nothing of other federations."""
    pairs = {
        column: {s: 100 * (methods[one][s].worst_accuracy - methods[other][s].worst_accuracy)
                 for s in sorted(methods[one].keys() & methods[other].keys())}
        for column, methods in cells.items()
    }  # fmt: skip
    means = {column: float(np.mean(list(found.values()))) for column, found in pairs.items()}
    every = [difference for found in pairs.values() for difference in found.values()]
    in_all = set.intersection(*(set(found) for found in pairs.values()))
    of_seed = {s: float(np.mean([found[s] for found in pairs.values()])) for s in sorted(in_all)}
    interval = paired_difference(of_seed, dict.fromkeys(of_seed, 0.0))
    bounds = "" if interval is None or interval.low is None else f" [{interval.low:+.1f}, {interval.high:+.1f}]"
    each = ", ".join(f"{column} {mean:+.2f}" for column, mean in means.items())
    higher = sum(difference > 0 for difference in every)
    mean = np.mean(list(means.values()))
    return f"{one} − {other}: {mean:+.2f}{bounds} ({each}), higher in {higher} of {len(every)} pairs"


def rarest(column: str, run: Run) -> str:
    """The rarest group: who has any of it, its share of all data, and of the data of the clients richest in it."""
    group = np.unravel_index(np.argmin(run.counts.sum(axis=0)), run.counts.shape[1:])
    has, size, m = run.counts[:, *group], run.counts.sum(axis=(1, 2)), int(run.federation["num_selected"])
    return (
        f"{column}: the rarest group, class {group[0]} with attribute {group[1]}, has {has.sum()} samples with "
        f"{(has > 0).sum()} of {len(has)} clients, {100 * has.sum() / size.sum():.1f} % of the data; "
        f"any {m} clients reach at most {100 * largest_share(has, size, m):.1f} %"
    )


def largest_share(has: NDArray[np.int64], size: NDArray[np.int64], m: int) -> float:
    """max Σ has / Σ size over choices of m clients (Dinkelbach: choose for the share at hand until it stays)."""
    share = 0.0
    while True:
        chosen = np.argsort(share * size - has)[:m]
        better = float(has[chosen].sum() / size[chosen].sum())
        if better <= share:
            return share
        share = better


if __name__ == "__main__":
    main()
