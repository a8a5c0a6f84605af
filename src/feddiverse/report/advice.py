"""What to try next, from what was measured; each step with the numbers it rests on and a command to type."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from feddiverse.experiment.config import Config
from feddiverse.experiment.finished import Run
from feddiverse.report.answer import comparisons, has_learnt
from feddiverse.report.reproduce import command
from feddiverse.report.results import Results, Summary
from feddiverse.report.statistics import FEWEST_SEEDS, in_points, paired_difference, seeds_needed, spread

MOST = 3
RISING = 0.02  # of accuracy, in the last quarter of the rounds
BEHIND = 0.10  # the worst group behind the best
NARROW = 0.67  # effective clients, of all
MANY_SEEDS = 20  # to type
MISREAD = 0.90  # of samples whose attribute was read right


@dataclass(frozen=True)
class Step:
    """One thing to try: why, and the command."""

    why: str
    command: str = ""


def steps(results: Results, column: str) -> list[Step]:
    """The few that matter most, the most urgent first."""
    if results.view != "accuracy":
        return []
    ranked = results.ranked(column)
    if found := list(_learning(results, column, ranked)):
        return found  # the rest is about differences, which mean nothing yet
    for rule in (_groups, _alone, _seeds, _rising, _estimates, _coverage):
        found += rule(results, column, ranked)
    return found[:MOST]


def _learning(results: Results, column: str, ranked: list[Summary]) -> Iterator[Step]:
    if not any(has_learnt(results, s.row, column) for s in ranked):
        run = _first(results, ranked[0])
        longer = command(replace(run.config, rounds=4 * run.config.rounds))
        yield Step("Nothing is learnt yet, so there is nothing to compare: train longer, or from a checkpoint.", longer)


def _groups(results: Results, column: str, ranked: list[Summary]) -> Iterator[Step]:
    """A group far behind the best one: equal weight for hidden groups, or the model that has it."""
    run = _first(results, ranked[0])
    rebalanced = [s.row for s in ranked if results.rebalancing(s.row, column) is not None]
    if rebalanced:
        solved = {row: _solved(results, row, column) for row in rebalanced}
        best = max(rebalanced, key=lambda row: np.mean(list(solved[row].values())))
        trained = {seed: each.worst_accuracy for seed, each in results.at(ranked[0].row, column).items()}
        gain = paired_difference(solved[best], trained)
        if gain is not None and gain.is_sure and gain.mean > 0:
            over = "as trained" if best == ranked[0].row else f"to {ranked[0].row} as trained"
            what = f"Use the rebalanced model: {best}, {in_points(gain)} {over}."
            yield Step(f"{what} It is the one that predict and export give.")
        return
    accuracies = np.mean([r.group_accuracies for r in results.at(ranked[0].row, column).values()], axis=0)
    gap = float(np.ptp(accuracies))
    if gap < BEHIND or run.config.rebalance or not has_learnt(results, ranked[0].row, column):
        return
    worst = run.group_name(*run.tested_groups[int(np.argmin(accuracies))])
    why = f"({worst}) is {100 * gap:.0f} points behind the best group. "
    if run.attributes_known:
        share, most = _rarest(run)
        why += f"The rarest group has {_share(share)} of all data, and no {_chosen(run)} clients together more than "
        why += f"{_share(most)}: selection can do {'little' if most < 2 * share else 'something'} about that. "
    yield Step(why + "Give hidden groups equal weight:", _rebalance(results, run))


def _solved(results: Results, row: str, column: str) -> dict[int, float]:
    """Seed → the worst group's accuracy with the last layer solved anew."""
    runs = results.at(row, column).items()
    return {seed: worst for seed, run in runs if (worst := run.worst_rebalanced) is not None}


def _rebalance(results: Results, run: Run) -> str:
    """For the run itself where its directory is there, else as a new one."""
    for path in (results.path, results.path / "runs" / run.name):
        if (path / "result.json").is_file():
            return shlex.join(["feddiverse", "rebalance", str(path)])
    return command(replace(run.config, rebalance=True))


def _alone(results: Results, column: str, ranked: list[Summary]) -> Iterator[Step]:
    """One method is no comparison."""
    if len(ranked) > 1 or results.commands:
        return
    config = _first(results, ranked[0]).config
    other = "uniform" if config.selector != "uniform" else "feddiverse"
    why = f"To know whether {config.selector} helps, run {other} as well, and report the folder that has both."
    yield Step(why, command(replace(config, selector=other)))


def _seeds(results: Results, column: str, ranked: list[Summary]) -> Iterator[Step]:
    compared = comparisons(results, column)
    if not compared or (compared[0].difference.is_sure and compared[0].difference.n >= FEWEST_SEEDS):
        return
    first = compared[0]
    needed = FEWEST_SEEDS
    if first.difference.n < FEWEST_SEEDS:
        why = f"{first.difference.n} seed{'s' if first.difference.n > 1 else ''} cannot tell luck from a difference."
    else:
        enough = seeds_needed(first.difference)
        if enough is None:
            yield Step(f"{first.row} and {first.other} are too near to be told apart, even by 100 seeds.")
            return
        needed = enough
        why = f"If the difference is what it seems, {needed} seeds would show it four times in five."
    yield Step(why, _with_seeds(results, needed) if results.commands and needed <= MANY_SEEDS else "")


def _rising(results: Results, column: str, ranked: list[Summary]) -> Iterator[Step]:
    runs = [run for s in ranked for run in results.at(s.row, column).values()]
    gains = []
    for run in runs:
        rounds, accuracy = run.curve
        late = rounds >= 0.75 * rounds[-1]
        gains.append(float(np.polyfit(rounds[late], accuracy[late], 1)[0] * rounds[-1] / 4) if late.sum() > 1 else 0.0)
    gain = spread(gains).mean
    if gain >= RISING:
        config = runs[0].config
        longer = command(replace(config, rounds=2 * config.rounds))
        yield Step(
            f"It still rises, by {100 * gain:.0f} points in the last quarter of the rounds: train longer.", longer
        )


def _estimates(results: Results, column: str, ranked: list[Summary]) -> Iterator[Step]:
    run = _first(results, ranked[0])
    if not run.attributes_known:
        yield Step("Nobody wrote down what clients differ in. Look:", _discover(run.config))
        return
    estimating = [s for s in ranked if _first(results, s).triplets]
    if any(_first(results, s).config.estimator == "consensus" for s in estimating):
        return
    for s in estimating:
        runs = list(results.at(s.row, column).values())
        read = [r.triplets.get("evaluation_only", {}).get("attribute_accuracy") for r in runs]
        known = [share for share in read if share is not None]
        if known and (share := spread(known).mean) < MISREAD:
            better = command(replace(runs[0].config, estimator="consensus"))
            yield Step(f"{s.row} read the attribute of {100 * share:.0f} % of samples right: try consensus.", better)
            return


def _discover(config: Config) -> str:
    """With all that says how the table is read."""
    usual = Config(config.federation)  # numbers are compared as they are, without a model
    words = ["feddiverse", "discover", config.federation.removeprefix("table:")]
    for key in ("columns", "features", "data_dir", *(() if config.features else ("image_size", "model"))):
        if (value := getattr(config, key)) != getattr(usual, key):
            words += ["--set", f"{key}={value}"]
    return shlex.join(words)


def _coverage(results: Results, column: str, ranked: list[Summary]) -> Iterator[Step]:
    for s in ranked:
        runs = [run for run in results.at(s.row, column).values() if run.choices]
        if not runs or runs[0].config.selector != "feddiverse" or runs[0].config.coverage:
            continue
        effective, clients = spread([run.selection.effective_clients for run in runs]).mean, len(runs[0].counts)
        if effective < NARROW * clients:
            why = f"{s.row} trains on effectively {effective:.0f} of {clients} clients. To give others their turn "
            why += "(on digits no sure gain):"
            yield Step(why, command(replace(runs[0].config, coverage=1.5)))
            return


def _first(results: Results, summary: Summary) -> Run:
    return next(iter(results.at(summary.row, summary.column).values()))


def _chosen(run: Run) -> int:
    return int(run.config.num_selected or run.federation["num_selected"])


def _rarest(run: Run) -> tuple[float, float]:
    """The rarest group's share of all data, and the most it can have of what the chosen clients have together."""
    total = run.counts.sum(axis=0)
    y, a = np.unravel_index(np.argmin(total), total.shape)
    mine, sizes = run.counts[:, y, a], run.counts.sum(axis=(1, 2))
    return float(total[y, a] / total.sum()), largest_share(mine, sizes, _chosen(run))


def largest_share(part: np.ndarray, whole: np.ndarray, num: int) -> float:
    """The largest Σ part / Σ whole over `num` clients (Dinkelbach: take those with most `part − share · whole`)."""
    share = 0.0
    while True:
        chosen = np.argsort(share * whole - part, kind="stable")[:num]
        larger = float(part[chosen].sum() / whole[chosen].sum())
        if larger <= share:
            return share
        share = larger


def _with_seeds(results: Results, num: int) -> str:
    """The last command that made the study, for seeds 0 to `num` − 1; what is done is not done again."""
    words = shlex.split(results.commands[-1])
    kept = [w for i, w in enumerate(words) if not w.startswith("--seeds") and (i == 0 or words[i - 1] != "--seeds")]
    return shlex.join([*kept, "--seeds", ",".join(map(str, range(num)))])


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"
