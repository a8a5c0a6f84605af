"""A deployment whose server has no data: three sites say what their samples are like, and test on some of their own.

python examples/deployment/no_data_at_server.py [FOLDER]

Afterwards the same run is made in this process, where all partitions are at hand: it gives the same weights, bit for
bit, and the same accuracies.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from machinery import FEDERATION, deployment, say, tell

import feddiverse as fd

SETTINGS = {"selector": "feddiverse", "model": "cnn", "rounds": 3, "holdout": 0.2, "num_selected": 2, "seed": 0}


def main(folder: Path) -> None:
    started = time.monotonic()
    with deployment(folder) as it:
        say("running three rounds of FedDiverse over sites that hold out a fifth of their samples")
        for record in it.run(federation="sites", query_timeout=120, train_timeout=120, **SETTINGS):
            tell(record)
            assert not record["failed"]
    deployed = json.loads((folder / "run/result.json").read_text())
    found = deployed["held_out"]
    say(f"on samples that sites hold out: accuracy {found['accuracy']:.1%}, worst class"
        f" {found['worst_class_accuracy']:.1%}, worst client {found['worst_client_name']}"
        f" {found['worst_client_accuracy']:.1%}")  # fmt: skip
    here = fd.train(fd.federation(FEDERATION, seed=0), **SETTINGS).summary
    assert deployed["theta_sha256"] == here["theta_sha256"]
    for name in ("accuracy", "worst_class_accuracy", "worst_client_accuracy"):  # this process knows true groups, too
        assert found[name] == here["held_out"][name]
    say("the same run in one process gives the same weights and the same accuracies")
    say(f"done in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary) / "deployment")
