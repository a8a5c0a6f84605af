"""A study in one small file, `study.jsonl.gz`: what its tables and its report need, and other studies can take over.

JSON lines, compressed to a quarter; `study.jsonl`, as gunzip gives it, is read as well. The first line is what all runs
share: the study, settings, federations, environments. Then comes a line a run: its own settings, its result, its rounds
as columns. Rounds between two evaluations are joined to the later one: seconds and traffic add up, choices are kept
round by round. What was measured, not counted, keeps six digits. No weights. Accuracies are kept as counts (class,
attribute, samples, right answers of each group) and computed anew.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddiverse import files
from feddiverse.errors import UserError
from feddiverse.experiment.config import from_mapping
from feddiverse.experiment.finished import Run, checked
from feddiverse.experiment.records import COUNTED, TESTED, accuracies_of, summary, traffic_of
from feddiverse.heterogeneity import triplet
from feddiverse.server.evaluation import Tested
from feddiverse.server.groups import Accuracies, HeldOut, accuracies, with_estimated

NAME, PLAIN_NAME = "study.jsonl.gz", "study.jsonl"
FORMAT = "feddiverse study 1"
Plain = dict[str, Any]


def find(path: Path) -> list[Path]:
    """The file itself, the one in a folder, or those in the folders of a folder."""
    if path.is_file():
        return [path]
    return _in(path) or [file for folder in sorted(path.glob("*/")) for file in _in(folder)]


def _in(folder: Path) -> list[Path]:
    return [file for name in (NAME, PLAIN_NAME) if (file := folder / name).is_file()][:1]


def write(folder: Path, study: Mapping[str, Any], runs: Iterable[Run]) -> Path:
    """Pack into a folder. The same study gives the same bytes."""
    files.write(folder / NAME, gzip.compress(pack(study, runs).encode(), mtime=0))
    (folder / PLAIN_NAME).unlink(missing_ok=True)  # an earlier version's, and only once the new one is there
    return folder / NAME


def pack(study: Mapping[str, Any], runs: Iterable[Run]) -> str:
    """The file's text. `study`: what `study.json` says; empty for runs of no study."""
    runs = list(runs)
    settings = [run.config.plain() for run in runs]
    first = settings[0] if settings else {}
    shared = {key: value for key, value in first.items() if all(each.get(key) == value for each in settings)}
    federations = _different(run.federation for run in runs)
    environments = _different(run.environment for run in runs)
    about = {key: value for key, value in study.items() if key not in ("runs", "published", "published_in")}
    if study:
        about["runs"] = [{key: entry[key] for key in ("name", "row", "column", "seed")} for entry in study["runs"]]
    head = {"study": about, "config": shared, "federations": federations, "environments": environments}
    lines: list[Plain] = [{"format": FORMAT, **head}]
    for run, own in zip(runs, settings, strict=True):
        kept = ("seconds", "theta_sha256", "stopped", "rebalanced", "warnings", "privacy", "incomplete")
        result = {key: run.result[key] for key in kept if run.result.get(key, []) != []}
        compared = {key: v for key, v in run.triplets.get("evaluation_only", {}).items() if key != "truth"}
        lines.append(
            {
                "name": run.name,
                "config": {key: value for key, value in own.items() if key not in shared},
                "federation": federations.index(run.federation),
                "environment": environments.index(run.environment),
                "result": _short(result),
                "triplets": _short({**run.triplets, "evaluation_only": compared} if compared else run.triplets),
                "rounds": _short(_columns(run)),
            }
        )
    return "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)


def unpack(path: Path) -> tuple[Plain, list[Run]]:
    """What `study.json` said (empty: no study), and the finished runs."""
    number = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as stream:
            head = json.loads(next(stream, "{}"))
            if head.get("format") != FORMAT:
                raise UserError(f"{path} is not a study that this version of feddiverse packed.")
            found = []
            for number, line in enumerate(stream, start=2):  # noqa: B007
                found.append(_run(head, json.loads(line), path))
    except OSError as error:
        what = error.strerror or f"it is damaged ({error}); take a good copy of the file"
        raise UserError(f"{path} cannot be read: {what}.") from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, zlib.error) as error:
        what = f"{type(error).__name__} {error}"
        raise UserError(f"{path}, line {number or 1}, is damaged ({what}); take a good copy of the file.") from error
    return head["study"], found


def _run(head: Plain, line: Plain, path: Path) -> Run:
    federation = head["federations"][line["federation"]]
    config = from_mapping({**head["config"], **line["config"]}, str(path))
    counts, rounds = np.asarray(federation["counts"], np.int64), _records(line["rounds"], federation)
    kept = line["result"]
    names = federation.get("client_names", ())
    own = names if list(names) != [str(k) for k in range(len(counts))] else ()
    result = summary(rounds, counts, config, kept["seconds"], kept["theta_sha256"], own) | kept
    if (solved := result.get("rebalanced")) and solved["groups"]:
        solved |= _tested(_rows(solved["groups"]), _hidden(solved), federation)
    found = line["triplets"]
    if "evaluation_only" in found:
        ids = [int(k) for k in found["triplets"]]
        found["evaluation_only"]["truth"] = dict(zip(map(str, ids), triplet(counts[ids]).tolist(), strict=True))
    environment = head["environments"][line["environment"]]
    return checked(Run(line["name"], config, result, federation, rounds, found, environment), f"{path}: {line['name']}")


def _columns(run: Run) -> Plain:
    """The rounds, joined, key by key. Who was chosen is null where it was everyone; accuracies are in the counts."""
    records = joined(run.rounds)
    everyone = list(range(len(run.counts)))
    kinds = sorted({kind for record in records for kind in record["traffic"]})
    zero = dict.fromkeys(COUNTED, 0)
    tested: list[Plain] = next((record["groups"] for record in records if record["groups"]), [])
    solved = [record.get("rebalanced") or {} for record in records]
    seldom: dict[str, list[Any]] = {
        "rebalanced": [_correct(record) for record in solved],
        "hidden": [_hidden(record) for record in records],
        "hidden_rebalanced": [_hidden(record) for record in solved],
    }
    return {
        **{key: [r[key] for r in records] for key in ("round", "train_loss", "seconds", "selection_seconds")},
        **{key: [r.get(key, []) for r in records] for key in ("failed", "warnings")},
        "pretraining": sum(r["phase"] == "pretraining" for r in records),
        "choices": [[None if ids == everyone else ids for ids in r["choices"]] for r in records],
        "groups": [row[:3] for row in _rows(tested)],
        "correct": [_correct(r) for r in records],
        **{key: column for key, column in seldom.items() if any(column)},
        "traffic": {k: {c: [r["traffic"].get(k, zero)[c] for r in records] for c in COUNTED} for k in kinds},
    }


def _records(columns: Plain, federation: Plain) -> list[Plain]:
    """The records that `_columns` was made of."""
    records, num_clients, none = [], len(federation["counts"]), [None] * len(columns["round"])

    def tested(i: int, correct: str, hidden: str) -> Plain | None:
        if not (right := columns.get(correct, none)[i]):
            return None
        rows = [[*group, answers] for group, answers in zip(columns["groups"], right, strict=True)]
        return _tested(rows, columns.get(hidden, none)[i] or {}, federation)

    for i, number in enumerate(columns["round"]):
        choices = [list(range(num_clients)) if ids is None else ids for ids in columns["choices"][i]]
        traffic = {kind: {c: rows[c][i] for c in COUNTED} for kind, rows in columns["traffic"].items()}
        traffic = {kind: row for kind, row in traffic.items() if row["messages"] or kind == "train"}
        record = {
            "round": number,
            "phase": "pretraining" if i < columns["pretraining"] else "selected",
            "selected": choices[-1],
            "choices": choices,
            **{key: columns[key][i] for key in ("failed", "warnings", "train_loss")},
            **(tested(i, "correct", "hidden") or dict.fromkeys(TESTED)),
            "rebalanced": tested(i, "rebalanced", "hidden_rebalanced"),
            **{key: columns[key][i] for key in ("seconds", "selection_seconds")},
            **{way: sum(row[way] for row in traffic.values()) for way in ("bytes_down", "bytes_up")},
            "traffic": traffic,
        }
        records.append(record)
    return records


def _correct(record: Plain) -> list[int] | None:
    """Right answers of each group, where a round was evaluated."""
    return [group["correct"] for group in record["groups"]] if record.get("groups") else None


def _rows(groups: list[Plain]) -> list[list[int]]:
    return [[group[key] for key in ("class", "attribute", "count", "correct")] for group in groups]


def _hidden(record: Plain) -> Plain:
    """What was counted of groups as they are read off samples, and by clients of samples that they hold out."""
    found: Plain = {"estimated": _rows(record["estimated_groups"])} if record.get("estimated_groups") else {}
    if held_out := record.get("held_out"):
        clients = {client: [told["count"], told["correct"]] for client, told in held_out["clients"].items()}
        found["held_out"] = {"groups": _rows(held_out["groups"]), "clients": clients, **_hidden(held_out)}
    return found


def _tested(rows: list[list[int]], hidden: Plain, federation: Plain) -> Plain:
    """The keys of `TESTED`, from what `_rows` and `_hidden` gave."""
    held_out = None
    if told := hidden.get("held_out"):
        clients = {int(client): (correct, count) for client, (count, correct) in told["clients"].items()}
        held_out = HeldOut.of(_accuracies(told["groups"], told, 0), clients)
        if not federation["num_test"]:
            return accuracies_of(Tested(held_out, held_out))
    return accuracies_of(Tested(_accuracies(rows, hidden, len(federation["attribute_names"])), held_out))


def _accuracies(rows: list[list[int]], hidden: Plain, num_known: int) -> Accuracies:
    """`num_known`: attribute values that have names, be it of training samples only."""
    table = _table(rows)
    found = accuracies(table, attributes_known=table.shape[2] == num_known)
    return with_estimated(found, _table(hidden["estimated"])) if "estimated" in hidden else found


def _table(rows: list[list[int]]) -> NDArray[np.int64]:
    """[2, classes, attributes]: right answers, then samples."""
    y, a, count, correct = np.array(rows).T
    table = np.zeros((2, y.max() + 1, a.max() + 1), np.int64)
    table[:, y, a] = correct, count
    return table


def joined(records: list[Plain]) -> list[Plain]:
    """The first and last rounds of each phase and those that were evaluated; others are added to the next of these."""
    phases = [None, *(record["phase"] for record in records), None]
    kept, waiting = [], []
    for i, record in enumerate(records):
        waiting.append(record)
        tested = record["accuracy"] is not None or record.get("rebalanced") is not None
        if tested or not phases[i] == phases[i + 1] == phases[i + 2]:
            kept.append(_sum(waiting))
            waiting = []
    return kept


def _sum(records: list[Plain]) -> Plain:
    return {
        **records[-1],
        "choices": [ids for record in records for ids in record.get("choices", [record["selected"]])],
        **{key: [each for record in records for each in record.get(key, [])] for key in ("failed", "warnings")},
        **{key: sum(record[key] for record in records) for key in ("seconds", "selection_seconds")},
        "traffic": traffic_of(records),
    }


def _different(values: Iterable[Plain]) -> list[Plain]:
    found: list[Plain] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _short(value: Any) -> Any:
    """Fractions with six digits, wherever they are."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list) else value
