"""The fuzzer and the drill themselves: what goes wrong in a case is seen, and takes no other case with it."""

import os
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.drill import names_client
from benchmarks.fuzzing import harness
from feddiverse.errors import UserError

Rng = np.random.Generator
BAD = 2  # the number of the case in which it happens


def number_of(rng: Rng) -> int:
    """Which case this is, by its seed."""
    return next(n for n in range(9) if np.random.default_rng([0, n]).bit_generator.state == rng.bit_generator.state)


def traceback(rng: Rng, folder: Path) -> None:
    raise KeyError("a mistake of ours")


def no_sentence(rng: Rng, folder: Path) -> None:
    raise UserError("bad")


def death(rng: Rng, folder: Path) -> None:
    os._exit(3)


def sleep(rng: Rng, folder: Path) -> None:
    time.sleep(60)


def loop(rng: Rng, folder: Path) -> None:
    while True:
        pass


def memory(rng: Rng, folder: Path) -> None:
    np.ones(harness.MEMORY, np.uint8)  # by itself: a forked process begins with fewer pages than its parent has


@pytest.mark.parametrize(
    ("bad", "kind", "why"),
    [
        (traceback, "unexpected", "KeyError: 'a mistake of ours'"),
        (no_sentence, "unexpected", "no sentence: 'bad'"),
        (death, "died", "exit code 3"),
        (sleep, "hang", "no end after 4 s"),
        (loop, "hang", "no end after 1 s of processor time"),
        (memory, "too large", "GB (taken )"),
    ],
)
def test_a_finding_is_counted_and_the_others_are_tried(
    bad: harness.Case, kind: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "SECONDS", 1.0 if bad is loop else 60.0)  # of processor time
    monkeypatch.setattr(harness, "WAITING", 4.0 if bad is sleep else 120.0)
    if bad is memory:
        monkeypatch.setattr(harness, "MEMORY", psutil.Process().memory_info().rss + (200 << 20))

    def case(rng: Rng, folder: Path) -> None:
        if number_of(rng) == BAD:
            bad(rng, folder)
        elif number_of(rng) == 0:
            raise UserError("This is what a refusal looks like.")

    tally = harness.run_family(case, 0, range(5))
    assert tally.outcomes == {"refused": 1, "taken": 3, kind: 1}
    assert list(tally.findings) == [BAD]
    assert why in tally.findings[BAD]
    assert tally.num_bad == 1


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("Client 2 is left out of the sums: it alone …", True),
        ("Round 1: client 2 is left out: its loss is nan.", True),
        ("Round 2: 2 of 6 clients gave no usable answer to loss (2, 4); client 2: it gave no answer.", True),
        ("Round 2: 1 of 6 clients gave no usable answer to loss (4); client 4: its loss is 2.", False),
        ("Round 2: client 12 is left out.", False),
    ],
)
def test_a_liar_counts_as_named_by_its_own_number_alone(said: str, named: bool) -> None:
    assert names_client(2, said) is named
