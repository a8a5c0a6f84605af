"""The answer a report opens with: which selector is best here, by how much, how sure; in plain sentences."""

from dataclasses import dataclass
from functools import partial

from feddiverse.experiment import estimating
from feddiverse.report.results import LEVELS, Results, Summary
from feddiverse.report.statistics import Difference, spread
from feddiverse.report.tables import percent, signed


@dataclass(frozen=True)
class Answer:
    """`headline` says who is best and by how much, `certainty` how sure that is, `speed` what it saves."""

    column: str
    best: str
    headline: str
    certainty: str
    speed: str = ""

    @property
    def sentence(self) -> str:
        """All of it in one line, for a terminal."""
        return " ".join(part for part in (self.headline, self.certainty, self.speed) if part)


def answers(results: Results) -> list[Answer]:
    """One answer per column that has runs."""
    if results.view == "estimators":
        return [_nearest(results, column) for column in results.columns if results.ranked(column)]
    if results.view == "overhead":
        return [_costs(results, column) for column in results.columns if results.ranked(column)]
    return [_answer(results, column, ranked) for column in results.columns if (ranked := results.ranked(column))]


def _answer(results: Results, column: str, ranked: list[Summary]) -> Answer:
    best = ranked[0]
    say, level = partial(Answer, column, best.row), _level(results, best)
    if len(ranked) == 1:
        return say(f"{column}: {best.row} reaches {level}.", _lone(results, best))
    whole = [s.row for s in ranked if not results.seeds_if_fewer(s)]
    if len(whole) == 1:
        alone = f"{column}: so far only {best.row} has all its seeds, with {level}."
        return say(alone, "Finish the others to compare them.")
    # The best is compared with its baseline; if it has none, or is one itself, with the runner-up.
    baseline = results.baselines.get(best.row)
    other = baseline if baseline in whole and baseline != best.row else whole[1]
    ahead = results.difference(best.row, other, column)
    if ahead is None:
        return say(f"{column}: {best.row} is best with {level}.", f"{other} shares no seed with it.")
    gain = 100 * ahead.mean
    if abs(gain) < 0.005:
        return say(f"{column}: {best.row} and {other} are level at {level}.", "No method is ahead.")
    headline = f"{column}: {best.row} is best with {level}, {abs(gain):.2f} points"
    headline += f" {'above' if gain > 0 else 'below'} {other}."
    return say(headline, _certainty(ahead), _speed(best, results.summaries[other, column]))


def _level(results: Results, summary: Summary) -> str:
    fewer = results.seeds_if_fewer(summary)
    return f"{percent(summary.accuracy)} % {results.measured.lower()}" + (f" ({fewer})" if fewer else "")


def _certainty(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return "One seed cannot say how sure this is: run more seeds."
    interval = f"95 % interval of the paired difference, {difference.n} seeds: "
    interval += f"{signed(100 * difference.low)} to {signed(100 * difference.high)} points"
    if difference.is_sure:
        return f"That is beyond the noise of seeds ({interval})."
    return f"That is within the noise of seeds ({interval}, which includes zero)."


def _lone(results: Results, best: Summary) -> str:
    run = next(iter(results.at(best.row, best.column).values()))
    tested = [group for group in run.result["groups"] if group["accuracy"] is not None]
    worst = min(tested, key=lambda group: group["accuracy"])
    group = run.group_name(worst["class"], worst["attribute"])
    return f"Its weakest {run.yardstick} is ({group}). With one method there is nothing to compare it with."


def _speed(best: Summary, other: Summary) -> str:
    """Rounds saved at the highest level that all seeds of both reach."""
    for level in reversed(LEVELS):
        ours, theirs = best.reached[level], other.reached[level]
        if ours.rounds is None or theirs.rounds is None or ours.reached < ours.n or theirs.reached < theirs.n:
            continue
        return f"It reaches {100 * level:.0f} % after {ours.rounds:.0f} rounds, {other.row} after {theirs.rounds:.0f}."
    return ""


def _nearest(results: Results, column: str) -> Answer:
    """Which estimator comes nearest to the true triplets."""
    errors = {}
    for row in results.rows:
        found = [each["mae"] for run in results.at(row, column).values() if (each := estimating.of_run(run))]
        if found:
            errors[row] = spread([sum(mae.values()) / len(mae) for mae in found]).mean
    order = sorted(errors, key=lambda row: errors[row])
    words = ", ".join(f"{row} {errors[row]:.3f}" for row in order)
    return Answer(
        column, order[0], f"{column}: {order[0]} comes nearest to the true triplets.", f"Mean error: {words}."
    )


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
    return Answer(column, least, headline, f"{words}.")
