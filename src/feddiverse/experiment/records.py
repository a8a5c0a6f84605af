"""What a run directory says about a run, as plain data."""

from typing import Any

from feddiverse.federation import Federation
from feddiverse.server.quality import compare
from feddiverse.server.rounds import Round
from feddiverse.server.selection.base import Selector
from feddiverse.server.selection.statistics import statistics
from feddiverse.splits import parse


def describe_federation(federation: Federation, num_selected: int) -> dict[str, Any]:
    """`federation.json`."""
    return {
        "name": federation.name,
        "source": federation.source.name,
        "split": "table" if federation.name.startswith("table:") else parse(federation.name)[0],
        "counts": federation.counts.tolist(),
        "class_names": list(federation.source.class_names),
        "attribute_names": list(federation.source.attribute_names),
        "num_test": len(federation.test_ids),
        "num_selected": num_selected,
    }


def as_record(done: Round) -> dict[str, Any]:
    """A round as one line of `rounds.jsonl`."""
    return {
        "round": done.round,
        "phase": done.phase,
        "selected": done.selected,
        "failed": done.failed,
        "warnings": done.warnings,
        "train_loss": done.train_loss,
        "accuracy": done.test and done.test.accuracy,
        "worst_group_accuracy": done.test and done.test.worst_group_accuracy,
        "groups": done.test and done.test.groups,
        "seconds": done.seconds,
        "selection_seconds": done.selection_seconds,
        "bytes_down": sum(row["bytes_down"] for row in done.traffic.values()),
        "bytes_up": sum(row["bytes_up"] for row in done.traffic.values()),
        "traffic": done.traffic,
    }


def triplets(selector: Selector, federation: Federation) -> dict[str, Any]:
    """What the selector found out about its clients; beside it, for evaluation only, the truth and how near it is."""
    found = selector.findings()
    if not found.get("triplets"):
        return {}
    estimated = {int(k): triplet for k, triplet in found["triplets"].items()}
    confusion = getattr(getattr(selector, "estimator", None), "confusion", None)
    return {**found, "evaluation_only": compare(estimated, federation.counts, confusion)}


def selection_statistics(records: list[dict[str, Any]], federation: Federation) -> dict[str, Any]:
    """Who was chosen how often, and which data each round pooled; rounds of pre-training do not count."""
    found = statistics([r["selected"] for r in records if r["phase"] == "selected"], federation.counts)
    return {
        **found.summary(),
        "times_chosen": found.times_chosen.tolist(),
        "pooled": found.pooled.tolist(),
        "smallest_share": found.smallest_share.tolist(),
    }
