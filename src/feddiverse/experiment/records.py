"""What a run directory says about a run, as plain data."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feddiverse.data.federation import Federation
from feddiverse.data.names import FEDERATIONS, parse
from feddiverse.experiment.config import Config
from feddiverse.experiment.truth import compare, statistics
from feddiverse.heterogeneity import Counts
from feddiverse.selection.base import Selector
from feddiverse.server.evaluation import Tested
from feddiverse.server.groups import LEAST, worst_class
from feddiverse.server.meter import Traffic
from feddiverse.server.rounds import Round

if TYPE_CHECKING:
    from feddiverse.models import ModelSpec


TESTED = (
    "accuracy", "worst_class_accuracy", "worst_group_accuracy", "groups",
    "worst_estimated_group_accuracy", "estimated_groups", "held_out",
)  # fmt: skip
"""Of a record, null where it was not evaluated. The last three came later: older records have not got them."""
FEWEST = LEAST  # samples of a group or client that may be called the worst
COUNTED = ("messages", "bytes_down", "bytes_up", "client_seconds")  # of each kind of question


def describe_federation(federation: Federation, num_selected: int) -> dict[str, Any]:
    """`federation.json`."""
    return {
        "name": federation.name,
        "source": federation.source.name,
        "split": _split(federation.name),
        "counts": federation.counts.tolist(),
        "client_names": list(federation.names),
        "class_names": list(federation.source.class_names),
        "attribute_names": list(federation.source.attribute_names),
        "attributes_known": federation.attributes_known,
        "num_test": len(federation.test_ids),
        "num_selected": num_selected,
    }


def _split(name: str) -> str:
    """The split a federation was made by; `own` where its clients are the user's."""
    return "own" if name.startswith("table:") or not (":" in name or name in FEDERATIONS) else parse(name)[0]


def as_record(done: Round) -> dict[str, Any]:
    """A round as one line of `rounds.jsonl`."""
    return {
        "round": done.round,
        "phase": done.phase,
        "selected": done.selected,
        "failed": done.failed,
        "lost": done.lost,
        "warnings": done.warnings,
        "train_loss": done.train_loss,
        **accuracies_of(done.tested),
        "rebalanced": done.rebalanced and accuracies_of(done.rebalanced),
        "seconds": done.seconds,
        "selection_seconds": done.selection_seconds,
        "bytes_down": sum(row["bytes_down"] for row in done.traffic.values()),
        "bytes_up": sum(row["bytes_up"] for row in done.traffic.values()),
        "traffic": done.traffic,
        **({"tables": {str(client): number for client, number in done.tables.items()}} if done.tables else {}),
        **({"updates": {str(client): number for client, number in done.updates.items()}} if done.updates else {}),
    }


def accuracies_of(tested: Tested | None) -> dict[str, Any]:
    """The keys of `TESTED`. `held_out`: what clients say of samples that they never trained on."""
    test, held_out = (tested.test, tested.held_out) if tested else (None, None)
    of_held_out = held_out and {
        **{name: getattr(held_out, name) for name in (*TESTED[:-1], "worst_client", "worst_client_accuracy")},
        "clients": {str(client): counted for client, counted in held_out.clients.items()},
    }
    return {**{name: getattr(test, name, None) for name in TESTED[:-1]}, "held_out": of_held_out}


def describe_model(spec: "ModelSpec", federation: Federation) -> dict[str, Any]:
    """`model.json`: what is needed to build the model again and to use it."""
    return {
        "model": spec.name,
        **({"options": dict(spec.options)} if spec.options else {}),
        "num_classes": spec.num_classes,
        "shape": list(spec.shape),
        "mean": spec.mean and list(spec.mean),
        "std": spec.std and list(spec.std),
        "classes": list(federation.classes),
        "class_names": list(federation.source.class_names),
        "attribute_names": list(federation.source.attribute_names),
    }


def triplets(
    selector: Selector, federation: Federation, confusion: NDArray[np.float64] | None = None
) -> dict[str, Any]:
    """What the selector found out about its clients; beside it, for evaluation only, the truth and how near it is.

    Where nobody knows the truth, nothing is compared, and it is said that this is so.
    """
    found = selector.findings()
    if not found.get("triplets"):
        return {}
    if federation.client_names:
        found["client_names"] = {k: federation.names[int(k)] for k in found["triplets"]}
    if not federation.attributes_known:
        return {**found, "not_compared": "The attributes of training samples are unknown, so there is no truth here."}
    estimated = {int(k): triplet for k, triplet in found["triplets"].items()}
    return {**found, "evaluation_only": compare(estimated, federation.counts, confusion)}


def worst_in_words(record: Mapping[str, Any]) -> str:
    """`worst group 91.2%`; `worst class …` where nobody knows the groups; nothing where nothing was evaluated."""
    if record["worst_group_accuracy"] is not None:
        return f"worst group {record['worst_group_accuracy']:.1%}"
    worst, estimated = worst_class_of(record), record.get("worst_estimated_group_accuracy")
    if worst is None:
        return ""
    return f"worst class {worst:.1%}" + ("" if estimated is None else f", worst estimated group {estimated:.1%}")


def worst_class_of(record: Mapping[str, Any]) -> float | None:
    """Of a round's record or a result; those from before it was recorded have the groups it comes from."""
    return worst_class(record["groups"]) if record["groups"] else None


def choices(records: list[dict[str, Any]]) -> list[list[int]]:
    """Whom the selector chose, round by round; rounds of pre-training ask everyone and are left out.

    A record of a packed study stands for all rounds since the one before it, with the `choices` of each.
    """
    chosen = [record.get("choices", [record["selected"]]) for record in records if record["phase"] == "selected"]
    return [each for several in chosen for each in several]


def total(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Rows of traffic added up."""
    rows = list(rows)
    return {name: float(sum(row[name] for row in rows)) for name in COUNTED}


def traffic_of(records: list[dict[str, Any]]) -> Traffic:
    """What all records together counted, by kind of question."""
    kinds = sorted({kind for record in records for kind in record["traffic"]})
    return {kind: total(r["traffic"][kind] for r in records if kind in r["traffic"]) for kind in kinds}


def num_rounds(records: list[dict[str, Any]]) -> int:
    """How many rounds the records stand for."""
    return sum(len(record.get("choices", [None])) for record in records)


def check_history(records: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> None:
    """A `ValueError` says what is wrong with a finished run's rounds: each must be there once, in order, and accuracies
    be some. Records of a packed study stand for several rounds each."""
    numbers = [record["round"] for record in records]
    packed = any("choices" in record for record in records)
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        raise ValueError("its rounds are not in order, or one is there twice")
    if not packed and numbers != list(range(1, len(numbers) + 1)):
        raise ValueError("rounds are missing")
    if not numbers or result["rounds"] != numbers[-1]:
        raise ValueError(f"{result['rounds']} rounds are promised, {numbers[-1] if numbers else 0} are there")
    for name in ("accuracy", "worst_group_accuracy"):
        if not packed and result[name] != records[-1][name]:
            raise ValueError(f"its {name} is not that of its last round")
    for record in records:
        for name in ("accuracy", "worst_group_accuracy"):
            if record[name] is not None and not 0 <= record[name] <= 1:
                raise ValueError(f"its {name} is {record[name]}")


def incomplete(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rounds in which an answer was lost (a worker was killed, a node went away): the same run made again may have it,
    and then ends in another θ."""
    return [{"round": r["round"], "clients": r["lost"]} for r in records if r.get("lost")]


def incomplete_in_words(lost: list[dict[str, Any]]) -> str:
    """`Incomplete: …` for a person; nothing where every answer came."""
    if not lost:
        return ""
    clients = sorted({client for each in lost for client in each["clients"]})
    named = ", ".join(map(str, clients[:10])) + (", …" if len(clients) > 10 else "")
    rounds = f"round {lost[0]['round']}" if len(lost) == 1 else f"{len(lost)} rounds, first in round {lost[0]['round']}"
    return (
        f"Incomplete: answers of {len(clients)} clients ({named}) were lost in {rounds}, so the same run made again may"
        " give another model."
    )


def _estimated(last: Mapping[str, Any], client_names: Sequence[str]) -> dict[str, Any]:
    """What a result says of estimated groups and of samples held out, where there are such."""
    held_out = last.get("held_out")
    if held_out and held_out["worst_client"] is not None and client_names:
        held_out = {**held_out, "worst_client_name": client_names[held_out["worst_client"]]}
    found = {
        "worst_estimated_group_accuracy": last.get("worst_estimated_group_accuracy"),
        "estimated_groups": last.get("estimated_groups"),
        "held_out": held_out,
    }
    return {name: value for name, value in found.items() if value is not None}


def summary(
    records: list[dict[str, Any]],
    counts: Counts,
    config: Config,
    seconds: float,
    theta_sha256: str,
    client_names: Sequence[str] = (),
) -> dict[str, Any]:
    """`result.json`: all of it from the records, since most rounds may have been made in other sessions.

    `client_names`: where clients are called more than 0, 1, …
    """
    last, found = records[-1], statistics(choices(records), counts)
    by_name = dict(zip(client_names, found.times_chosen.tolist(), strict=True)) if client_names else {}
    return {
        "worst_group_accuracy": last["worst_group_accuracy"],
        "worst_class_accuracy": worst_class_of(last),
        "accuracy": last["accuracy"],
        "groups": last["groups"],
        **_estimated(last, client_names),
        "rounds": last["round"],
        "seconds": seconds,
        "bytes_down": sum(record["bytes_down"] for record in records),
        "bytes_up": sum(record["bytes_up"] for record in records),
        "theta_sha256": theta_sha256,
        "incomplete": incomplete(records),
        "selection": {
            **found.summary(),
            "times_chosen": found.times_chosen.tolist(),
            **({"by_name": by_name} if by_name else {}),
            "pooled": found.pooled.tolist(),
            "smallest_share": found.smallest_share.tolist(),
        },
        "config": config.plain(),
    }
