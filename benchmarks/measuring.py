"""What it costs to measure a million clients, beside a loop over scikit-learn and SciPy on a sample of them.

Both are timed in turn, several times, in a process of their own, whose memory is measured before and after. Both use
one core, so processor time is what an idle machine's clock would show. The ratio is of processor time per client within
one turn; figures are medians with their range.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse.heterogeneity import measure

RESULT = Path(__file__).parent / "results" / "measuring.json"
NUM_CLIENTS, NUM_SAMPLED, TURNS = 1_000_000, 300, 5


def run() -> dict[str, Any]:
    """Measure in a fresh process, so that nothing else counts as memory, and write the result."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measuring", "--here"], capture_output=True, text=True, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return result


def measure_here() -> dict[str, Any]:
    """The figures, taken in this process."""
    counts = np.random.default_rng(0).integers(0, 100, (NUM_CLIENTS, 2, 2))
    counts[:, 0, 0] += 1
    measure(counts[:10])
    before = _peak_mb()
    start = time.perf_counter()
    measured = measure(counts)
    wall_s, peak = time.perf_counter() - start, _peak_mb()
    sample = counts[:NUM_SAMPLED]
    np.testing.assert_allclose(measured.clients[:NUM_SAMPLED], _loop(sample), rtol=0, atol=1e-12)
    ours, theirs = [], []
    for _ in range(TURNS):
        ours.append(_seconds(measure, counts) / NUM_CLIENTS)
        theirs.append(_seconds(_loop, sample) / NUM_SAMPLED)
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    return {
        "what": f"six metrics of {NUM_CLIENTS:,} clients with 2x2 counts",
        "first_call_wall_s": round(wall_s, 3),
        "load_of_machine": os.getloadavg()[0],
        "seconds": round(statistics.median(ours) * NUM_CLIENTS, 3),
        "seconds_range": [round(value * NUM_CLIENTS, 3) for value in (min(ours), max(ours))],
        "times_faster_than_scikit_learn_loop": round(statistics.median(ratios)),
        "times_faster_range": [round(min(ratios)), round(max(ratios))],
        "scikit_learn_loop_clients": NUM_SAMPLED,
        "peak_process_mb": round(peak),
        "process_mb_before": round(before),
        "limits": {"seconds": 1, "peak_process_mb": 500},
        "machine": f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}",
    }


def _loop(sample: NDArray[np.int64]) -> list[list[float]]:
    """The triplets as one would write them with SciPy and scikit-learn, one client after another."""
    from scipy.stats import entropy
    from sklearn.metrics import normalized_mutual_info_score

    triplets = []
    for table in sample:
        rows, columns = np.nonzero(table)
        y, a = np.repeat(rows, table[rows, columns]), np.repeat(columns, table[rows, columns])
        ci, ai = (1 - entropy(table.sum(axis=axis)) / np.log(2) for axis in (1, 0))
        triplets.append([ci, ai, normalized_mutual_info_score(y, a) if len(rows) > 1 else 0.0])
    return triplets


def _seconds(function: Any, argument: Any) -> float:
    start = time.process_time()
    function(argument)
    return time.process_time() - start


def _peak_mb() -> float:
    """Of this process: `getrusage` would begin with the peak of the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


if __name__ == "__main__":
    if "--here" in sys.argv:
        print(json.dumps(measure_here()))
    else:
        print(json.dumps(run(), indent=2))
