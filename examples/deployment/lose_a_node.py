"""A SuperNode dies in the middle of a round; the run goes on without it, and takes it back when it returns.

python examples/deployment/lose_a_node.py [FOLDER]

Flower itself notices a dead node after 60 s. Our engine waits no longer than `train_timeout`, leaves the node out of
the rounds that follow, and greets it again. Until Flower notices, it refuses the node that comes back, which then ends:
someone has to start it until it is let in, here as a service manager would.
"""

import sys
import tempfile
import time
from pathlib import Path

from machinery import deployment, say, tell

PATIENCE = 40  # seconds for one round; ample for the two that live, on a slow machine too
ROUNDS = 12


def main(folder: Path) -> None:
    started = time.monotonic()
    with deployment(folder) as it:
        say("training with everyone there")
        state = "whole"
        for last in it.run(
            selector="everyone", rounds=ROUNDS, train_timeout=PATIENCE, query_timeout=PATIENCE, hello_timeout=120
        ):
            tell(last)
            if state in ("restarted", "on without it") and not it.is_running("node-2"):
                it.start_node(2)
                say("node 2 was refused, since the dead one counts as alive: started it once more")
            if state == "whole":
                time.sleep(1)  # into the next round
                it.kill_node(2)
                say("killed node 2 in the middle of round 2")
                state = "killed"
            elif state == "killed" and last["failed"] == [2]:
                it.start_node(2)
                say("started node 2 again")
                state = "restarted"
            elif state == "restarted" and last["selected"] == [0, 1]:
                state = "on without it"
            elif state == "on without it" and last["selected"] == [0, 1, 2] and not last["failed"]:
                say(f"node 2 takes part again in round {last['round']}")
                state = "back"
                break
        assert state == "back", f"the run went as far as: {state}"
    say(f"done in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary) / "deployment")
