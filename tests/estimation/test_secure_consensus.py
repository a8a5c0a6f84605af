"""The consensus estimator over secure sums: the same triplets, and what happens where a sum fails or is spoilt."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from synthetic_features import Clients, without_a_model

from feddiverse.client import secagg
from feddiverse.client.tasks import ANSWERS
from feddiverse.estimation.consensus import Consensus
from feddiverse.experiment.truth import compare
from feddiverse.messages import Reply, Summed, Task
from feddiverse.server.meter import Meter
from feddiverse.server.privacy import Privacy
from feddiverse.server.secagg import SecureSums

COUNTS = np.array(
    2 * [[[45, 45], [5, 5]]] + 2 * [[[5, 5], [45, 45]]] + 2 * [[[45, 5], [45, 5]]] + 2 * [[[5, 45], [5, 45]]]
    + 3 * [[[45, 5], [5, 45]]] + [[[5, 45], [45, 5]]]
)  # fmt: skip


class Engine:
    """The synthetic clients, with the real answers to the steps of a secure sum. `spoilt`: who adds nonsense."""

    def __init__(self, gap: float = 2.5) -> None:
        self.of = Clients(COUNTS, gap)
        self.spoilt: set[int] = set()
        self.gone: set[int] = set()

    @property
    def clients(self) -> dict[int, int]:
        return self.of.sizes

    def ask(self, task: Task, theta: Any, clients: Sequence[int]) -> Iterator[Reply]:
        for k in clients:
            if k in self.gone:
                yield Reply(k, failure="gone")
                continue
            samples: Any = self.of.samples[k]
            reply = ANSWERS[type(task)](task.of(k), theta, k, samples, self.of.model)
            if isinstance(task, Summed) and task.bits and reply.vector is not None:
                vector = reply.vector + (50 if k in self.spoilt else 0)
                reply = secagg.masked(task.of(k), vector, k, samples)
            yield replace(reply, num_examples=len(samples))

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _features(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_model(monkeypatch)


def estimated(engine: Engine, privacy: Privacy) -> tuple[dict[int, Any], Meter, Consensus]:
    estimator, meter = Consensus(0, 2, 2), Meter(engine, privacy)
    found = estimator.estimate(1, engine.clients, meter.with_theta(np.zeros(1, np.float32)))
    return found, meter, estimator


def test_triplets_are_those_of_plain_sums_up_to_rounding() -> None:
    """With 32 places the same samples are counted the same way; with 4 a few at the border are not."""
    plain, _, _ = estimated(Engine(), Privacy())
    secure, meter, _ = estimated(Engine(), Privacy(sums=SecureSums(neighbours=4)))
    assert meter.warnings() == []
    assert {k: t.tolist() for k, t in secure.items()} == {k: t.tolist() for k, t in plain.items()}
    rough, _, _ = estimated(Engine(), Privacy(sums=SecureSums(neighbours=4, bits=4)))
    assert compare(rough, COUNTS)["r"]["sc"] == pytest.approx(compare(plain, COUNTS)["r"]["sc"], abs=0.02)


def test_a_spoilt_sum_is_noticed_though_not_by_whom() -> None:
    engine = Engine()
    engine.spoilt = {3}
    found, meter, _ = estimated(engine, Privacy(sums=SecureSums(neighbours=4)))
    assert found == {}
    (warning,) = meter.warnings()
    assert "12 of 12 clients gave no usable answer to feature_moments" in warning
    assert "their secure sum counts 1300 samples where they have 1,200" in warning
    assert "nobody can see who" in warning


def test_where_too_few_are_left_the_run_is_told_and_goes_on() -> None:
    engine = Engine()
    engine.gone = set(range(2, 12))
    found, meter, _ = estimated(engine, Privacy(sums=SecureSums()))
    assert found == {}
    (warning,) = meter.warnings()
    assert "12 of 12 clients gave no usable answer to feature_moments" in warning
    assert "2 clients are left of the 3" in warning


def test_noisy_tables_give_rougher_triplets_the_smaller_epsilon_is() -> None:
    errors = []
    for epsilon in (0.0, 4.0, 0.25):
        found, _, _ = estimated(Engine(gap=6), Privacy(epsilon=epsilon, sums=SecureSums(neighbours=4)))
        assert set(found) == set(range(12))
        errors.append(compare(found, COUNTS)["mae"]["sc"])
    assert errors[0] < errors[1] < errors[2]
