"""Seconds to an accuracy (`benchmarks.reach`): what a run is charged for, and where its rounds come from."""

import pytest

from benchmarks import reach, tables
from benchmarks.reach import SOLVED, TRAINED, Costs


def test_a_run_is_charged_for_all_its_parts() -> None:
    costs = Costs(start=3, pretraining=5, once=7, round=2, evaluation=4, choice=11, solving=13)
    # 3 + 5 + 7, nineteen rounds after pre-training, two evaluations
    assert costs.until(20, solved=False) == 15 + 19 * 2 + 2 * 4
    assert costs.until(20, solved=True) == 15 + 19 * 2 + 2 * 4 + 11 + 13


@pytest.mark.parametrize("federation", reach.GOALS)
def test_rounds_are_those_of_kept_runs(federation: str) -> None:
    found = {(method.name, method.head): method for method in reach.methods(federation)}
    assert all(method.config.federation == federation for method in found.values())
    assert found["Uniform random", SOLVED].at_most  # solved once, at the end
    assert not found["Uniform random, balanced", SOLVED].at_most
    assert found["Uniform random, balanced", SOLVED].rounds.mean < found["Uniform random", TRAINED].rounds.mean


def test_rounds_to_95_are_those_of_table_i() -> None:
    uniform, feddiverse, pow_d, *_ = reach.methods("cmnist-gsc")
    assert [round(m.rounds.mean) for m in (uniform, feddiverse, pow_d)] == [173, 107, 97]  # docs/results.md, Table I


def test_the_table_says_who_does_not_get_there() -> None:
    spread = {"median": 1.0, "min": 0.5, "max": 1.5}
    row = {"method": "m", "head": TRAINED, "rounds": 50.0, "at_most": False, "reached": 1, "seeds": 3,
           "round_s": spread, "seconds": spread}  # fmt: skip
    never = row | {"method": "n", "rounds": None, "reached": 0, "seconds": None}
    machine = {"processor": "p", "cores": 2, "memory_gb": 4, "python": "3", "torch": "2", "load_before": 0.0}
    plain = {"rounds": None, "round_s": spread, "seconds": None}
    result = {"machine": machine, "federations": {"f": {"level": 0.95, "plain": plain, "methods": [row, never]}}}
    lines = tables.reach(result).splitlines()
    assert "| m | trained | 50 (1 of 3 seeds) | 1.00 (0.50–1.50) | **1** (0–2) |" in lines
    assert "| n | trained | – | 1.00 (0.50–1.50) | – |" in lines
