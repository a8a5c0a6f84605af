"""The answer a report opens with: what was shown, how sure that is, or that nothing was; in plain sentences."""

from dataclasses import dataclass
from functools import partial
from math import sqrt

from feddiverse.experiment import estimating
from feddiverse.experiment.finished import Run
from feddiverse.report.results import Results, Summary
from feddiverse.report.statistics import (
    FEWEST_SEEDS,
    Difference,
    in_points,
    paired_difference,
    percent,
    signed,
    spread,
    stay_sure,
)


@dataclass(frozen=True)
class Answer:
    """`headline`: what was shown; `certainty`: what it rests on; `speed`: rounds saved; `head`: rebalancing;
    `hidden`: the worst of groups that nobody labelled."""

    column: str
    headline: str
    certainty: str
    speed: str = ""
    head: str = ""
    hidden: str = ""

    @property
    def sentence(self) -> str:
        """All of it in one line, for a terminal."""
        return " ".join(part for part in (self.headline, self.certainty, self.speed, self.head, self.hidden) if part)


@dataclass(frozen=True)
class Comparison:
    """How far `row` is ahead of `other`."""

    row: str
    other: str
    difference: Difference

    @property
    def interval(self) -> str:
        """`+8.6 points (−0.3 to +17.5, 3 seeds)`."""
        return in_points(self.difference)


def answers(results: Results) -> list[Answer]:
    """One answer per column that has runs."""
    if results.view == "estimators":
        return [_nearest(results, column) for column in results.columns if results.ranked(column)]
    if results.view == "overhead":
        return [_costs(results, column) for column in results.columns if results.ranked(column)]
    return [_answer(results, column, ranked) for column in results.columns if (ranked := results.ranked(column))]


def _answer(results: Results, column: str, ranked: list[Summary]) -> Answer:
    best = ranked[0]
    say = partial(Answer, column, head=_head(results, column, ranked), hidden=_hidden(results, column, ranked))
    whole = [s.row for s in ranked if not results.seeds_if_fewer(s)]
    levels = _levels(results, ranked)
    if not any(has_learnt(results, s.row, column) for s in ranked):
        return say(f"{column}: {_nobody(ranked)} yet.", _at_chance(results, column, ranked))
    if len(ranked) == 1:
        return say(f"{column}: {best.row} reaches {_level(results, best)}.", _lone(results, best))
    if len(whole) == 1:
        alone = f"{column}: so far only {best.row} has all its seeds, with {_level(results, best)}."
        return say(alone, "Finish the others to compare them.")
    compared = comparisons(results, column)
    if not compared:
        return say(f"{column}: nothing to compare yet.", f"No two methods share a seed. {levels}")
    fewest = min(each.difference.n for each in compared)
    if fewest < FEWEST_SEEDS:
        first = compared[0]
        said = f"{column}: too few seeds to say. {first.row} against {first.other}: {first.interval}."
        return say(said, f"Run at least {FEWEST_SEEDS} seeds. {levels}")
    speed = _speed(results, column, compared[0])
    trained = "with the last layer as trained, " if any(results.rebalancing(s.row, column) for s in ranked) else ""
    shown = _shown(results, column, whole, compared)
    return say(f"{column}: {trained}{shown}", (_many(compared) + levels).strip(), speed)


def comparisons(results: Results, column: str) -> list[Comparison]:
    """Each method with its baseline, the highest mean first; where there are no baselines, the first with the second.

    Only methods that have all their seeds: a lucky first one may look best.
    """
    whole = [s.row for s in results.ranked(column) if not results.seeds_if_fewer(s)]
    pairs = [(row, results.baselines[row]) for row in whole if results.baselines.get(row) in whole]
    pairs = [(row, other) for row, other in pairs if row != other] or [(whole[0], other) for other in whole[1:2]]
    found = [(row, other, results.difference(row, other, column)) for row, other in pairs]
    return [Comparison(row, other, difference) for row, other, difference in found if difference is not None]


def _shown(results: Results, column: str, whole: list[str], compared: list[Comparison]) -> str:
    """What the intervals say. A method is `best` only if it is surely ahead of every other."""
    first = compared[0]
    ahead = [(other, results.difference(whole[0], other, column)) for other in whole[1:]]
    if all(d is not None and d.is_sure and d.n >= FEWEST_SEEDS for _, d in ahead):
        other, lead = ahead[0]
        assert lead is not None
        return f"{whole[0]} is best, {in_points(lead)} over {'' if len(whole) == 2 else 'the next, '}{other}."
    sure = [each for each in compared if each.difference.is_sure]
    better = [each for each in sure if each.difference.mean > 0]
    worse = [each for each in sure if each.difference.mean < 0]
    if better or worse:
        words = [_listed("better", better), _listed("worse", worse)]
        return "; ".join(word for word in words if word) + "."
    if len(compared) == 1:
        return f"no difference shown between {first.row} and {first.other}: {first.interval}."
    return f"no method is shown to differ from {_baseline(compared)}; the highest mean, {first.row}: {first.interval}."


def _listed(how: str, compared: list[Comparison]) -> str:
    if not compared:
        return ""
    each = "; ".join(f"{one.row} {one.interval}" for one in compared)
    return f"{how} than {_baseline(compared)}: {each}"


def _baseline(compared: list[Comparison]) -> str:
    others = {each.other for each in compared}
    return others.pop() if len(others) == 1 else "its baseline"


def _many(compared: list[Comparison]) -> str:
    """The more one looks at, the more luck one sees."""
    if len(compared) < 3 or not any(each.difference.is_sure for each in compared):
        return ""
    sure = stay_sure(each.difference for each in compared)
    left = " and ".join(each.row for place, each in enumerate(compared) if place in sure) or "none"
    return (
        f"Of {len(compared)} intervals at 95 %, one in 20 leaves zero out by luck; corrected for that, {left} stays. "
    )


def has_learnt(results: Results, row: str, column: str) -> bool:
    """Whether accuracy, averaged over groups, is above that of guessing by more than the test set's own noise.

    Averaged over groups, since a model that knows the attribute alone is right in as many groups as it is wrong.
    """
    runs = list(results.at(row, column).values())
    accuracy = sum(_over_groups(run) for run in runs) / len(runs)
    chance = _chance(runs[0])
    tested = sum(group["count"] for group in runs[0].result["groups"])
    return accuracy > chance + 3 * sqrt(chance * (1 - chance) / tested)


def _chance(run: Run) -> float:
    return 1 / len({y for y, _ in run.tested_groups})


def _over_groups(run: Run) -> float:
    return sum(run.group_accuracies) / len(run.group_accuracies)


def _nobody(ranked: list[Summary]) -> str:
    if len(ranked) == 1:
        return f"{ranked[0].row} has not learnt"
    return "neither method has learnt" if len(ranked) == 2 else f"none of the {len(ranked)} methods has learnt"


def _at_chance(results: Results, column: str, ranked: list[Summary]) -> str:
    each = []
    for s in ranked:
        runs = list(results.at(s.row, column).values())
        each.append(f"{s.row} {100 * sum(map(_over_groups, runs)) / len(runs):.1f} %")
    chance = 100 * _chance(runs[0])
    means = f"Accuracy averaged over groups: {', '.join(each)}; guessing gives {chance:.0f} %."
    return f"{means} Differences mean nothing yet."


def _level(results: Results, summary: Summary) -> str:
    fewer = results.seeds_if_fewer(summary)
    return f"{percent(summary.accuracy)} % {results.measured.lower()}" + (f" ({fewer})" if fewer else "")


def _levels(results: Results, ranked: list[Summary]) -> str:
    """The means that the differences are between; of many methods the table has them."""
    if len(ranked) > 4:
        return ""
    each = ", ".join(f"{s.row} {percent(s.accuracy)} %" for s in ranked)
    return f"{results.measured}: {each}."


def _lone(results: Results, best: Summary) -> str:
    run = next(iter(results.at(best.row, best.column).values()))
    tested = [group for group in run.result["groups"] if group["accuracy"] is not None]
    worst = min(tested, key=lambda group: group["accuracy"])
    group = run.group_name(worst["class"], worst["attribute"])
    return f"Its weakest {run.yardstick} is ({group}). With one method there is nothing to compare it with."


def _speed(results: Results, column: str, compared: Comparison) -> str:
    """Rounds to the highest level that all seeds of both reach."""
    ours, theirs = (results.summaries[row, column].reached for row in (compared.row, compared.other))
    for level in reversed(results.levels):
        delay = results.delay(compared.row, compared.other, column, level)
        if delay is None or delay.low is None or delay.high is None:
            continue
        interval = f"{signed(delay.mean, 0)}, {signed(delay.low, 0)} to {signed(delay.high, 0)}"
        return (
            f"{100 * level:.0f} % after {ours[level].mean:.0f} rounds with {compared.row}, {theirs[level].mean:.0f} "
            f"with {compared.other} ({interval}{'' if delay.is_sure else ', within the noise'})."
        )
    return ""


def _head(results: Results, column: str, ranked: list[Summary]) -> str:
    """What solving the last layer anew did to each method."""
    found = [(s, results.rebalancing(s.row, column)) for s in ranked]
    each = [
        f"{s.row} {100 * s.accuracy.mean:.1f} → {100 * (s.accuracy.mean + d.mean):.1f} %, {in_points(d)}"
        for s, d in found
        if d is not None
    ]
    of = ", worst class" if any(run.yardstick == "class" for s in ranked for run in _runs(results, s)) else ""
    return f"Rebalancing the last layer{of}: {'; '.join(each)}." if each else ""


def _runs(results: Results, summary: Summary) -> list[Run]:
    return list(results.at(summary.row, summary.column).values())


def _hidden(results: Results, column: str, ranked: list[Summary]) -> str:
    """The worst of the groups that nobody labelled, as estimated: each method's, and the highest against its baseline.

    Of a run whose last layer was solved anew, that of the model which predicts.
    """
    trained: dict[str, dict[int, float]] = {}
    used: dict[str, dict[int, float]] = {}
    for s in ranked:
        found = {seed: run.by_estimate for seed, run in results.at(s.row, column).items()}
        runs = {seed: run for seed, run in found.items() if run is not None}
        if not runs or len(runs) < len(found):
            return ""
        trained[s.row] = {seed: run.worst_accuracy for seed, run in runs.items()}
        used[s.row] = {seed: run.worst_rebalanced or run.worst_accuracy for seed, run in runs.items()}
    means = {row: spread(list(values.values())).mean for row, values in used.items()}
    order = sorted(means, key=lambda row: -means[row])
    solved = {row: " (rebalanced)" if used[row] != trained[row] else "" for row in order}
    each = ", ".join(f"{row}{solved[row]} {100 * means[row]:.1f} %" for row in order)
    said = f"Worst estimated group (nobody labelled them): {each}."
    first, baseline = order[0], results.baselines.get(order[0])
    difference = paired_difference(used[first], trained[baseline]) if baseline in trained else None
    if difference is None or first == baseline:
        return said
    noise = "" if difference.is_sure or difference.n < FEWEST_SEEDS else " Within the noise."
    return f"{said} {first}{solved[first]} against {baseline}: {in_points(difference)}.{noise}"


def _nearest(results: Results, column: str) -> Answer:
    """Which estimator comes nearest to the true triplets."""
    errors = {}
    for row in results.rows:
        found = [each["mae"] for run in results.at(row, column).values() if (each := estimating.of_run(run))]
        if found:
            errors[row] = spread([sum(mae.values()) / len(mae) for mae in found]).mean
    order = sorted(errors, key=lambda row: errors[row])
    words = ", ".join(f"{row} {errors[row]:.3f}" for row in order)
    return Answer(column, f"{column}: {order[0]} comes nearest to the true triplets.", f"Mean error: {words}.")


def _costs(results: Results, column: str) -> Answer:
    """What everything sent and received amounts to, relative to the baseline."""
    totals = {
        row: spread([float(run.result["bytes_down"] + run.result["bytes_up"]) for run in found.values()]).mean
        for row in results.rows
        if (found := results.at(row, column))
    }
    least = min(totals, key=lambda row: totals[row])
    words = ", ".join(f"{row} {total / totals[least]:.2f}" for row, total in sorted(totals.items(), key=lambda t: t[1]))
    rounds = next(iter(results.at(least, column).values())).result["rounds"]
    headline = f"{column}: {least} sends least; over {rounds} rounds the others send, as multiples of it:"
    return Answer(column, headline, f"{words}.")
