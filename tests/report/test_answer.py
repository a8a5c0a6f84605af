"""The answer is honest, and so is what to try next."""

from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run, make_study
from scipy import stats

from feddiverse.experiment.finished import read
from feddiverse.report.advice import largest_share, steps
from feddiverse.report.answer import answers
from feddiverse.report.results import Results, load
from feddiverse.report.statistics import Difference, paired_difference, seeds_needed

OURS, THEIRS = ("FedDiverse", "f"), ("Uniform random", "f")


def study(path: Path, accuracies: dict[tuple[str, str], list[float]], **content: object) -> Results:
    return load(make_study(path, accuracies, **content))


def headline(results: Results) -> str:
    (answer,) = answers(results)
    return answer.headline


def test_an_interval_that_holds_zero_shows_no_difference(tmp_path: Path) -> None:
    results = study(tmp_path, {THEIRS: [0.80, 0.70, 0.75], OURS: [0.90, 0.72, 0.85]})
    interval = stats.ttest_rel([90, 72, 85], [80, 70, 75]).confidence_interval()
    assert interval.low < 0 < interval.high
    says = f"+7.3 points (−{-interval.low:.1f} to +{interval.high:.1f}, 3 seeds)"
    assert headline(results) == f"f: no difference shown between FedDiverse and Uniform random: {says}."
    assert "best" not in answers(results)[0].sentence


def test_of_many_methods_none_is_best_unless_it_is_ahead_of_all(tmp_path: Path) -> None:
    base = [0.70, 0.71, 0.72]
    ahead, noisy = [0.80, 0.81, 0.82], [0.75, 0.95, 0.80]
    results = study(tmp_path, {THEIRS: base, OURS: ahead, ("pow-d", "f"): noisy})
    assert headline(results) == "f: better than Uniform random: FedDiverse +10.0 points (+10.0 to +10.0, 3 seeds)."
    worse = study(tmp_path / "worse", {THEIRS: ahead, OURS: base, ("pow-d", "f"): [0.6, 0.9, 0.8]})
    assert headline(worse).startswith("f: worse than Uniform random: FedDiverse −10.0 points")
    nothing = study(tmp_path / "nothing", {THEIRS: base, OURS: [0.6, 0.9, 0.7], ("pow-d", "f"): [0.7, 0.6, 0.9]})
    assert "no method is shown to differ from Uniform random" in headline(nothing)


@pytest.mark.parametrize("num", [1, 2])
def test_too_few_seeds_have_no_interval(tmp_path: Path, num: int) -> None:
    results = study(tmp_path, {THEIRS: [0.70, 0.71][:num], OURS: [0.80, 0.81][:num]})
    seeds = "1 seed" if num == 1 else "2 seeds"
    assert headline(results) == f"f: too few seeds to say. FedDiverse against Uniform random: +10.0 points ({seeds})."
    (step,) = [step for step in steps(results, "f") if "cannot tell luck" in step.why]
    assert step.command == "feddiverse study made-up --seeds 0,1,2"


def test_at_chance_nobody_has_learnt(tmp_path: Path) -> None:
    """Worst groups differ surely, yet averaged over groups both guess: 50 % of two classes."""
    results = study(tmp_path, {THEIRS: [0.460, 0.461, 0.459], OURS: [0.480, 0.481, 0.479]})
    assert headline(results) == "f: neither method has learnt yet."
    assert "guessing gives 50 %" in answers(results)[0].certainty
    (step,) = steps(results, "f")  # and no other: differences mean nothing yet
    assert "Nothing is learnt yet" in step.why
    learnt = study(tmp_path / "learnt", {THEIRS: [0.60, 0.61, 0.59], OURS: [0.480, 0.481, 0.479]})
    assert "learnt" not in headline(learnt)


def test_rounds_saved_have_an_interval(tmp_path: Path) -> None:
    results = study(tmp_path, {THEIRS: [0.90, 0.91, 0.92], OURS: [0.90, 0.91, 0.92]})  # with made-up runs: sooner
    firsts = {row: [5 * next(t for t in range(1, 9) if run.curve[1][t - 1] >= 0.9) for run in at.values()]
              for (row, _), at in results.runs.items()}  # fmt: skip
    late = paired_difference(dict(enumerate(firsts["FedDiverse"])), dict(enumerate(firsts["Uniform random"])))
    assert late is not None
    speed = answers(results)[0].speed
    assert f"90 % after {np.mean(firsts['FedDiverse']):.0f} rounds with FedDiverse" in speed
    assert f"({late.mean:+.0f}, ".replace("-", "−") in speed


def test_seeds_needed_have_the_power_promised() -> None:
    """Simulated: with so many seeds an interval leaves zero out about four times in five."""
    rng = np.random.default_rng(0)
    sd, mean, n = 0.03, 0.02, 3
    half = stats.t.ppf(0.975, n - 1) * sd / np.sqrt(n)
    needed = seeds_needed(Difference(mean, mean - half, mean + half, n))
    assert needed is not None
    samples = rng.normal(mean, sd, (4000, needed))
    sure = stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05
    assert 0.76 < sure.mean() < 0.88
    assert seeds_needed(Difference(0.0001, -0.3, 0.3, 3)) is None


def test_the_largest_share_is_the_largest_of_all_choices() -> None:
    from itertools import combinations

    rng = np.random.default_rng(1)
    part, rest = rng.integers(0, 20, 9), rng.integers(1, 60, 9)
    whole = part + rest
    best = max(part[list(ids)].sum() / whole[list(ids)].sum() for ids in combinations(range(9), 4))
    assert largest_share(part, whole, 4) == pytest.approx(best)


def test_of_several_rebalanced_models_the_best_is_advised_not_the_one_that_gained_most(tmp_path: Path) -> None:
    places = {OURS: [0.2, 0.21, 0.2], THEIRS: [0.7, 0.71, 0.7]}
    results = study(tmp_path, places, rebalanced={OURS: [0.5] * 3, THEIRS: [0.8] * 3})
    (step,) = [step for step in steps(results, "f") if "Use the rebalanced model" in step.why]
    assert THEIRS[0] in step.why
    assert "+9.7 points" in step.why


def test_a_group_far_behind_leads_to_rebalancing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 0.6, names=(["a", "b"], ["x", "y"]))
    results = load(run)
    assert not [step for step in steps(results, "digits-gsc") if "rebalance" in step.command]  # 4 points: fine
    content = (run / "result.json").read_text().replace('"accuracy": 0.64', '"accuracy": 0.94')
    (run / "result.json").write_text(content)
    (step,) = [step for step in steps(load(run), "digits-gsc") if "rebalance" in step.command]
    assert step.command == f"feddiverse rebalance {run}"
    assert "(a, x) is 34 points behind the best group" in step.why
    counts = read(run).counts
    shares = counts.sum(axis=0) / counts.sum()
    assert f"rarest group has {100 * shares.min():.1f} %" in step.why


def test_one_method_leads_to_another(tmp_path: Path) -> None:
    found = steps(load(make_run(tmp_path / "run", 0.9, selector="feddiverse")), "digits-gsc")
    (step,) = [step for step in found if "run uniform as well" in step.why]
    assert "--selector uniform" in step.command
    assert "--set pretraining_rounds=1" in step.command  # no head start for either


def test_of_two_heads_it_is_said_which_is_compared(tmp_path: Path) -> None:
    """Else a method would be called best although another one's rebalanced model is better."""
    places = {THEIRS: [0.70, 0.71, 0.72], OURS: [0.80, 0.81, 0.82]}
    results = load(make_study(tmp_path, places, rebalanced={THEIRS: [0.9] * 3, OURS: [0.85] * 3}))
    assert headline(results).startswith("f: with the last layer as trained, FedDiverse is best, +10.0 points")


def test_seconds_and_rounds_to_levels_that_are_reached(tmp_path: Path) -> None:
    low = study(tmp_path, {THEIRS: [0.45], OURS: [0.55]})
    assert low.levels == (0.3, 0.4, 0.5)
    reached = low.summaries[OURS]
    assert reached.reached[0.5].mean is not None
    assert reached.seconds[0.5].mean == pytest.approx(0.1 * reached.reached[0.5].mean)  # 0.1 s a made-up round
    assert study(tmp_path / "high", {THEIRS: [0.85]}).levels == (0.8, 0.9, 0.95)
