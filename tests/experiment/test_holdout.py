"""Evaluation where the data is: samples that clients hold out, and hidden groups that nobody labelled."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from rows_of_numbers import people

import feddiverse as fd
from feddiverse.data.holdout import is_held_out
from feddiverse.errors import UserError
from feddiverse.messages import EvaluateHeldOut, Reply
from feddiverse.server.evaluation import Evaluation, _check
from feddiverse.server.groups import LEAST
from feddiverse.server.meter import Meter

QUICK: dict[str, Any] = {"rounds": 3, "evaluate_every": 3, "num_selected": 2, "seed": 3, "workers": 1, "model": "mlp"}


def test_a_share_of_every_class_is_held_out_and_never_a_whole_class() -> None:
    y = np.repeat([0, 1, 2, 3], [100, 10, 2, 1])
    held = is_held_out(y, 0.3, seed=5, client=2)
    assert [int(held[y == label].sum()) for label in range(4)] == [30, 3, 1, 0]
    assert (held == is_held_out(y, 0.3, seed=5, client=2)).all()
    assert (held != is_held_out(y, 0.3, seed=5, client=3)).any()
    assert (held != is_held_out(y, 0.3, seed=6, client=2)).any()
    assert not is_held_out(np.zeros(1, np.int64), 0.9, seed=0, client=0).any()


def test_what_is_held_out_is_not_trained_on_and_nothing_is_lost() -> None:
    whole = fd.federation("digits-gsc", 1)
    parted = whole.with_holdout(0.25, seed=1)
    for k in (0, 7):
        own, held = parted.client(k), parted.client(k).held_out
        assert held is not None
        assert parted.sizes[k] == len(own) == len(whole.client(k)) - len(held)
        both = np.concatenate([own.x, held.x]).reshape(len(whole.client(k)), -1)
        assert sorted(map(bytes, both)) == sorted(map(bytes, whole.client(k).x.reshape(len(both), -1)))
        assert parted.counts[k].sum(axis=1).tolist() == np.bincount(own.y, minlength=2).tolist()


def test_clients_count_and_the_server_adds_up() -> None:
    x, y, site, _ = people()
    federation = fd.Federation.from_arrays(x, y, site)  # no test set anywhere
    made = fd.train(federation, selector="feddiverse", holdout=0.3, **QUICK)
    found = made.summary["held_out"]

    parted = federation.with_holdout(0.3, seed=3)
    held = [parted.client(k).held_out for k in range(4)]
    right = [made.predict(part.x) == part.y for part in held]
    assert found["accuracy"] == made.accuracy == np.concatenate(right).mean()
    for k in range(4):
        counted = found["clients"][str(k)]
        assert (counted["correct"], counted["count"]) == (right[k].sum(), len(right[k]))
    worst = min(range(4), key=lambda k: right[k].mean())
    assert found["worst_client_accuracy"] == right[worst].mean()
    assert (found["worst_client"], found["worst_client_name"]) == (worst, federation.names[worst])
    labels, answers = np.concatenate([part.y for part in held]), np.concatenate(right)
    assert made.worst_class_accuracy == min(answers[labels == label].mean() for label in (0, 1))
    assert made.worst_group_accuracy is None
    assert made.history[-1]["traffic"]["evaluation"]["messages"] == 4 * 4  # moments, histogram, reading, counts
    assert made.history[0]["held_out"] is None


def test_estimated_groups_are_the_hidden_ones_and_the_worst_is_marked_as_estimated() -> None:
    x, y, site, _ = people()
    test_x, test_y, _, scanner = people(300, seed=1)
    federation = fd.Federation.from_arrays(x, y, site, test=(test_x, test_y))
    made = fd.train(federation, **QUICK)
    answers = made.predict(test_x) == test_y
    true = [answers[(test_y == label) & (scanner == a)] for label in (0, 1) for a in (0, 1)]
    groups = made.summary["estimated_groups"]
    # Which value is called 0 is by chance; values lie so far apart that every reading is right.
    orders = ([0, 1, 2, 3], [1, 0, 3, 2])
    assert any([groups[i]["count"] for i in order] == [len(group) for group in true] for order in orders)
    assert made.summary["worst_estimated_group_accuracy"] == pytest.approx(min(group.mean() for group in true))
    assert made.worst_group_accuracy is None
    assert "worst estimated group" in repr(made)
    told = [warning for record in made.history for warning in record["warnings"]]
    assert sum("estimators assume 2 values" in warning for warning in told) == 1

    plain = fd.train(federation, estimate_groups=False, **QUICK)
    assert plain.theta_sha256 == made.theta_sha256  # nothing but the evaluation differs
    assert "worst_estimated_group_accuracy" not in plain.summary
    assert "evaluation" not in plain.history[-1]["traffic"]


def test_beside_a_test_set_of_the_server_both_are_told() -> None:
    made = fd.train("digits-gsc", holdout=0.2, rounds=1, num_selected=2, workers=1)
    assert made.worst_group_accuracy is not None
    assert sum(group["count"] for group in made.groups) == 2800
    held_out = made.summary["held_out"]
    assert sum(group["count"] for group in held_out["groups"]) == 24 * 28
    assert held_out["worst_group_accuracy"] is None


def test_a_run_that_is_interrupted_gives_the_same_numbers(tmp_path: Path) -> None:
    x, y, site, _ = people()
    federation = fd.Federation.from_arrays(x, y, site)
    settings = {**QUICK, "evaluate_every": 1, "holdout": 0.3}
    whole = fd.train(federation, **settings)
    calls: list[int] = []

    def stop(record: dict[str, Any]) -> None:
        calls.append(record["round"])
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fd.train(federation, out=tmp_path / "run", on_round=stop, **settings)
    resumed = fd.train(federation, out=tmp_path / "run", **settings)
    assert resumed.theta_sha256 == whole.theta_sha256
    for one, other in zip(whole.history, resumed.history, strict=True):
        assert (one["held_out"], one["estimated_groups"]) == (other["held_out"], other["estimated_groups"])


def test_tiny_clients_hold_nothing_out_and_that_is_said() -> None:
    x, y, _, _ = people(40)
    site = np.arange(40) // 2  # two samples a client
    made = fd.train(fd.Federation.from_arrays(x, y, site), holdout=0.2, **QUICK)
    warnings = " ".join(warning for record in made.history for warning in record["warnings"])
    assert f"No client holds out {LEAST} samples or more" in warnings or made.accuracy is None


def test_a_table_without_test_rows_needs_clients_that_hold_out(tmp_path: Path) -> None:
    x, y, site, _ = people(80)
    path = tmp_path / "people.csv"
    rows = [f"{a:.3f},{b:.3f},{c:.3f},{label},{name},train" for (a, b, c), label, name in zip(x, y, site, strict=True)]
    path.write_text("\n".join(["a,b,c,class,client,split", *rows]))
    with pytest.raises(UserError, match=r"to test on: fill the column .* hold some out \(--set holdout=0.2\)"):
        fd.train(str(path), features="a,b,c", **QUICK)
    made = fd.train(str(path), features="a,b,c", holdout=0.25, **QUICK)
    assert made.accuracy == made.summary["held_out"]["accuracy"]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_no_honest_client_holds_out_more_than_it_is_believed(share: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        num_classes = int(rng.integers(2, 6))
        y = np.repeat(np.arange(num_classes), rng.integers(0, 9, num_classes))
        held = is_held_out(y, share, seed=0, client=3)
        of_class = np.bincount(y[held], minlength=num_classes).astype(np.float32)
        reply = Reply(0, int((~held).sum()), np.concatenate([of_class, of_class]))
        assert _check(num_classes, share, reply) is None


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ([3, 1, 2, 4], "more right answers than samples"),
        ([-1, 1, 2, 4], "-1, not within"),
        ([0.5, 1, 2, 4], "not all whole numbers"),
        ([1, 1], "numbers"),
        ([np.nan, 1, 2, 4], "finite"),
        ([2**39, 1, 2**39, 4], "samples held out, where 9 to train on leave 11"),  # it alone would decide the accuracy
        ([1, 1, 8, 4], "it counts 12 samples held out"),
    ],
)
def test_counts_that_cannot_be_are_left_out_by_name(sent: list[float], problem: str) -> None:
    class Liar:
        clients: ClassVar = {0: 9, 1: 9}

        def ask(self, task: EvaluateHeldOut, theta: np.ndarray, clients: list[int]) -> Any:
            for k in clients:
                yield Reply(k, 9, np.array(sent if k else [1, 2, 3, 4], np.float32))

        def close(self) -> None: ...

    evaluation, meter = Evaluation(held_out=True, share=0.5, num_classes=2), Meter(Liar())
    tested = evaluation(1, np.zeros(1, np.float32), Liar.clients, meter)
    assert tested.held_out is not None
    assert tested.held_out.clients == {0: {"correct": 3, "count": 7, "accuracy": 3 / 7}}
    (warning,) = meter.warnings()
    assert "client 1: " in warning
    assert problem in warning
