"""Three rounds of FedDiverse on a real Flower deployment over TLS, on this machine; strangers are turned away.

python examples/deployment/deploy.py [FOLDER]      (FOLDER keeps keys, logs and the run; default: a temporary one)
"""

import sys
import tempfile
import time
from pathlib import Path

from machinery import Deployment, deployment, say, tell, wait_for


def main(folder: Path) -> None:
    started = time.monotonic()
    with deployment(folder) as it:
        turn_strangers_away(it)
        say("running three rounds of FedDiverse")
        records = []
        for record in it.run(selector="feddiverse", rounds=3, query_timeout=120, train_timeout=120):
            tell(record)
            records.append(record)
        assert [record["phase"] for record in records] == ["pretraining", "selected", "selected"]
        assert not any(record["failed"] for record in records)
        assert (it.folder / "run/triplets.json").exists()
    say(f"done in {time.monotonic() - started:.0f} s: 3 rounds, run directory in {folder / 'run'}")


def turn_strangers_away(it: Deployment) -> None:
    """A node without a key, one with a key nobody registered, and one that does not speak TLS."""
    trusted = ("--root-certificates", it.folder / "ca.pem")
    strangers = {
        "keyless": trusted,
        "unregistered": (*trusted, "--auth-supernode-private-key", it.make_key("unregistered.key")),
        "plaintext": ("--insecure",),
    }
    for kind, options in strangers.items():
        it.start_intruder(kind, *options)
    for kind in strangers:
        wait_for(lambda kind=kind: not it.is_running(kind), 60, f"the {kind} node to give up")
        reason = it.log_of(kind).partition("Failed to initialize the connection to the SuperLink.\n")[2]
        assert reason, it.log_of(kind)
        say(f"the {kind} node was refused: {reason.splitlines()[0]}")
    assert len(it.nodes_online()) == 3


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary) / "deployment")
