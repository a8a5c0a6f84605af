"""`python -m benchmarks.fuzzing [CASES] [SEED] [FAMILY …]`: a table of all families of input, or of those named.

The exit code is 1 if there is a finding."""

import sys
import time
from collections.abc import Sequence

import torch

from benchmarks.fuzzing import files, replies, texts
from benchmarks.fuzzing.harness import Case, run_family

FAMILIES: dict[str, tuple[float, Case]] = {  # name → share of all cases
    "CSV": (0.25, texts.csv_table),
    "names": (0.20, texts.federation_name),
    "settings": (0.15, texts.settings),
    "study files": (0.07, texts.study_file),
    "image tables": (0.03, files.image_table),
    "archives": (0.10, files.archive),
    "weights": (0.04, files.weights),
    "runs with extreme keys": (0.005, texts.extreme_run),
    "replies to every question": (0.10, replies.to_the_door),
    "replies to every selector": (0.055, replies.to_selectors),
}


def main(cases: int = 10_000, seed: int = 0, only: Sequence[str] = ()) -> int:
    torch.set_num_threads(1)
    started, all_findings, total = time.monotonic(), 0, 0
    print("| input | cases | taken | refused | unexpected | hangs | over 2 GB | peak, MB | slowest, s | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    found = []
    for place, (name, (share, case)) in enumerate(FAMILIES.items()):
        if only and name not in only:
            continue
        num = max(1, round(share * cases))
        tally = run_family(case, seed * 100 + place, range(num))
        o = tally.outcomes
        print(
            f"| {name} | {num:,} | {o['taken']:,} | {o['refused']:,} | {o['unexpected'] + o['died']} | {o['hang']} |"
            f" {o['too large']} | {tally.peak >> 20:,} | {tally.slowest:.1f} | {tally.seconds:.0f} |",
            flush=True,
        )
        found += [f"{name} {number}: {what}" for number, what in tally.findings.items()]
        all_findings, total = all_findings + tally.num_bad, total + num
    print(f"\n{total:,} cases, seed {seed}, {time.monotonic() - started:.0f} s: {all_findings} findings.")
    for finding in found[:40]:
        print(f"\n{finding}")
    return 1 if all_findings else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3]), only=sys.argv[3:]))
