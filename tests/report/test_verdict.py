"""Where a federation lies among known ones, and that what is said to have helped is what results/ say."""

import json

import numpy as np
import pytest

from benchmarks import evidence
from feddiverse.data.names import counts_of
from feddiverse.heterogeneity import measure
from feddiverse.report.verdict import IID, judge, known
from feddiverse.splits import PAPER


def test_the_file_is_what_results_say() -> None:
    assert json.loads(evidence.FILE.read_text("utf-8")) == json.loads(json.dumps(evidence.collect()))


def test_a_known_federation_is_like_itself() -> None:
    assert list(known()) == [IID, *PAPER]
    for name in ("spawrious-gai", "waterbirds-dist", "spawrious-4"):
        verdict = judge(measure(counts_of(name)).six)
        assert verdict.nearest == f"Like {name} (distance 0.00)."
        assert all("points (" in sentence for sentence in verdict.helped)
    even = judge(measure(np.full((5, 2, 2), 7)).six)
    assert even.nearest.startswith("Like iid")
    assert {placed.among for placed in even.placed} == {"as even as iid"}


def test_the_bar_and_the_rank_agree_with_the_numbers() -> None:
    six = measure(counts_of("waterbirds-dist")).six
    placed = {each.metric: each for each in judge(six).placed}
    assert placed["csc"].value == pytest.approx(0.761, abs=0.001)
    assert placed["csc"].bar(101).index("●") == 76
    assert placed["csc"].among == "more than 6 of the paper’s 7, like waterbirds-dist"
    assert judge([0.9] * 6).placed[0].among == "more than any of the paper’s 7"


def test_without_attributes_only_classes_are_judged() -> None:
    verdict = judge([0.2, 0, 0, 0.3, 0, 0], attributes_known=False)
    assert [placed.metric for placed in verdict.placed if placed.value is not None] == ["gci", "cci"]
    assert "by classes alone" in verdict.nearest
