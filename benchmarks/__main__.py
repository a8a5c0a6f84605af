"""`make bench`, `python -m benchmarks`: measure everything, and put the tables into docs/performance.md.

python -m benchmarks                       # all; about 45 minutes on 2 quiet cores
python -m benchmarks --only peers growth   # some
python -m benchmarks --only peers --resume # go on with an interrupted race
python -m benchmarks --quick               # a trial: do the programs run? Its figures mean nothing
python -m benchmarks --render              # only the tables, from results/*.json
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import engine, growth, measuring, photographs, reach, selection, startup, step, tables
from benchmarks.peers import race

PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "startup": lambda given: startup.run(quick=given.quick),
    "measuring": lambda given: measuring.run(),
    "selection": lambda given: selection.run(),
    "step": lambda given: step.run(),
    "engine": lambda given: engine.run(1 if given.quick else 3),
    "growth": lambda given: growth.run(quick=given.quick),
    "photographs": lambda given: photographs.run(quick=given.quick),
    "reach": lambda given: reach.run(quick=given.quick),
    "peers": lambda given: race.run(quick=given.quick, resume=given.resume),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), metavar="PART")
    parser.add_argument("--quick", action="store_true", help="a trial whose figures mean nothing")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted race of peers")
    parser.add_argument("--render", action="store_true", help="only write the tables, from what was measured before")
    given = parser.parse_args()
    if given.quick:
        folder = Path(tempfile.mkdtemp(prefix="bench-"))
        print(f"A trial: what it measures goes to {folder}, and into no table.")
        for module in (startup, measuring, selection, step, engine, growth, photographs, reach, race):
            module.RESULT = folder / module.RESULT.name
    if not given.render:
        if os.getloadavg()[0] > 0.7:
            print(f"The load is {os.getloadavg()[0]:.1f}: other programs are busy, and figures will be noisy.")
        for name in given.only:
            print(f"== {name}", flush=True)
            started = time.perf_counter()
            PARTS[name](given)
            print(f"== {name} took {time.perf_counter() - started:.0f} s", flush=True)
    if not given.quick:
        tables.write()


if __name__ == "__main__":
    main()
