"""`python -m benchmarks.drill [SCALE] [PART …]`: kills, lies, damaged run directories; a table (docs/trust.md).

Every run ends in the θ of an undisturbed one, or says that it is incomplete; every damage is told, or does no harm.
Exit code 1 if there is a finding. SCALE (1): share of the 100 kills, 200 replies and all damages. PART: runs, studies,
seam, wire, files; all of them if none is named.
"""

import contextlib
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.fuzzing.replies import hostile
from feddiverse import cli
from feddiverse.engine.local import LocalEngine
from feddiverse.errors import RunError, UserError
from feddiverse.experiment.config import Config, from_mapping
from feddiverse.experiment.result import load_run
from feddiverse.experiment.train import carry_out
from feddiverse.flower import wire
from feddiverse.messages import Reply, Task, Vector
from feddiverse.report.results import load

SMALL = {"federation": "dirichlet(alpha=0.3,clients=6,samples=240):digits", "num_selected": 3, "evaluate_every": 5}
LONG = from_mapping({**SMALL, "rounds": 40, "seed": 5, "selector": "feddiverse", "epochs": 3})
SHORT = from_mapping({**SMALL, "rounds": 6, "seed": 5, "evaluate_every": 2})
GRID = """title = "Killed"
seeds = [0]
[base]
federation = "dirichlet(alpha=0.3,clients=6,samples=240):digits"
num_selected = 3
rounds = 12
epochs = 3
[rows.uniform]
selector = "uniform"
[rows.pow-d]
selector = "pow_d"
"""
PATIENCE = 60.0  # seconds in which the workers of a killed run must be gone
LONGEST = 900.0  # seconds after which a run that nobody kills has no end
Row = tuple[str, int, int, int, list[str]]  # what, tries, same or complete, told, findings


def in_child(work: Callable[[], None]) -> psutil.Process:
    """A process of its own, without the seconds that importing torch would take."""
    context = multiprocessing.get_context("fork")

    def quietly() -> None:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        work()

    child = context.Process(target=quietly)
    child.start()
    return psutil.Process(child.pid)


def kill_again_and_again(
    work: Callable[[], None], rng: np.random.Generator, kills: int, typical: float
) -> tuple[int, list[str]]:
    """Start `work` until it was killed so often, or has ended; then let it end. How many kills there were, and what
    was wrong: processes that stayed behind, or no end."""
    done, wrong = 0, []
    while done < kills:
        process = in_child(work)
        time.sleep(float(rng.uniform(0.05, 1.0)) * typical)
        if process.status() == psutil.STATUS_ZOMBIE:
            process.wait()
            return done, wrong
        workers = process.children(recursive=True)
        victims = [process] if rng.random() < 0.6 else [*process.children(), process][:1]
        with contextlib.suppress(psutil.NoSuchProcess):
            victims[0].send_signal(signal.SIGKILL)
        done += 1
        if victims[0] is not process:  # a worker: the run goes on by itself
            if _ended(process, 0.3 * typical):
                return done, wrong
            workers = process.children(recursive=True)
            process.send_signal(signal.SIGKILL)
            done += 1
        process.wait()
        for left in psutil.wait_procs(workers, PATIENCE)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if left.status() != psutil.STATUS_ZOMBIE:  # else it ended, and its new parent does not ask how
                    wrong.append(f"process {left.pid} stayed behind")
                    left.kill()
    if not _ended(last := in_child(work), LONGEST):
        wrong.append(f"no end after {LONGEST:.0f} s")
        last.kill()
    return done, wrong


def _ended(process: psutil.Process, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except psutil.TimeoutExpired:
        return False
    return True


def killed_runs(kills: int, rng: np.random.Generator, folder: Path) -> Row:
    started = time.monotonic()
    whole = carry_out(LONG, out=folder / "whole", workers=2, device="cpu").theta_sha256
    typical, done, same, told = time.monotonic() - started, 0, 0, 0
    findings: list[str] = []
    number = 0
    while done < kills:
        out = folder / f"run{number}"
        number += 1
        killed, wrong = kill_again_and_again(
            lambda out=out: carry_out(LONG, out=out, workers=2, device="cpu"), rng, min(8, kills - done), typical
        )  # type: ignore[misc]
        done += killed
        findings += [f"{out.name}: {what}" for what in wrong]
        result = carry_out(LONG, out=out, workers=2, device="cpu")
        if result.theta_sha256 == whole:
            same += 1
        elif result.summary["incomplete"]:
            told += 1
        else:
            findings.append(f"{out.name}: another θ, and nothing is said")
        shutil.rmtree(out)
    return f"kill -9, {number} runs", done, same, told, findings


def killed_studies(kills: int, rng: np.random.Generator, folder: Path) -> Row:
    grid = folder / "grid.toml"
    grid.write_text(GRID)

    def study(out: Path) -> None:
        sys.argv = ["feddiverse", "study", str(grid), "--out", str(out), "--workers", "2", "--device", "cpu"]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told := io.StringIO()):
            try:
                cli.main()
            except SystemExit as ended:  # a command always ends so; without a reason it went well
                if ended.code:
                    raise RuntimeError(told.getvalue()) from ended

    def results(out: Path) -> dict[str, dict[str, Any]]:
        return {path.parent.name: json.loads(path.read_text()) for path in sorted(out.glob("runs/*/result.json"))}

    started = time.monotonic()
    study(folder / "whole")
    typical, whole = time.monotonic() - started, results(folder / "whole")
    done, same, told, number = 0, 0, 0, 0
    findings: list[str] = []
    while done < kills:
        out = folder / f"study{number}"
        number += 1
        killed, wrong = kill_again_and_again(lambda out=out: study(out), rng, min(5, kills - done), typical)  # type: ignore[misc]
        done += killed
        findings += [f"{out.name}: {what}" for what in wrong]
        made = results(out)
        if {name: r["theta_sha256"] for name, r in made.items()} == {n: r["theta_sha256"] for n, r in whole.items()}:
            same += 1
        elif any(result["incomplete"] for result in made.values()):
            told += 1
        else:
            findings.append(f"{out.name}: other results, and nothing is said")
    return f"kill -9, {number} studies", done, same, told, findings


class Lying:
    """The local engine with one client that lies, at the engine's seam or over Flower's wire."""

    def __init__(self, run: Any, workers: int, device: str, *, seed: int, over_wire: bool) -> None:
        self._engine = LocalEngine(run.federation, run.spec, device="cpu", in_process=True)
        self._rng, self._over_wire = np.random.default_rng(seed), over_wire
        self.clients = self._engine.clients
        self.evaluate = self._engine.evaluate
        self.close = self._engine.close

    def ask(self, task: Task, theta: Vector, clients: Sequence[int]) -> Iterator[Reply]:
        for reply in self._engine.ask(task, theta, clients):
            if reply.client != 2:
                yield reply
                continue
            lie = hostile(reply, self._rng)
            if self._over_wire:
                with contextlib.suppress(Exception):  # what no record can hold cannot be sent
                    lie = wire.decode_reply(2, wire.encode_reply(lie))
            yield lie


def names_client(client: int, warning: str) -> bool:
    """Whether a warning is about this client."""
    return re.search(rf"\b[Cc]lient {client}\b", warning) is not None


SELECTORS = ["feddiverse", "pow_d", "fedpns", "hcsfed", "oort", "fed_cbs", "haccs", "group_balance"]
AGGREGATORS = ["fedavgm", "fednova", "fedadam", "feddyn"]


def hostile_replies(tries: int, over_wire: bool) -> Row:
    """Runs of two rounds, each with one client that lies whenever it is asked."""
    finished, told, findings = 0, 0, []
    for number in range(tries):
        config = from_mapping({
            **SMALL, "rounds": 2, "num_selected": 6, "seed": number, "selector": SELECTORS[number % len(SELECTORS)],
            "aggregator": AGGREGATORS[number // 8 % 4],
            "estimator": "consensus" if number % 8 == 7 or number // 32 % 2 == 0 else "paper",
        })  # fmt: skip
        try:
            with np.errstate(all="ignore"):
                result = carry_out(
                    config,
                    engine=lambda *a, n=number: Lying(*a, seed=n, over_wire=over_wire),  # type: ignore[misc]
                )
            finished += len(result.history) == 2
            told += any(names_client(2, warning) for record in result.history for warning in record["warnings"])
        except Exception as error:
            findings.append(f"{config.selector}, {config.aggregator}, seed {number}: {type(error).__name__}: {error}")
    where = "Flower's wire" if over_wire else "the engine's seam"
    return f"runs with a hostile client, at {where}", tries, finished, told, findings


DAMAGES: dict[str, Callable[[bytes, np.random.Generator], bytes | None]] = {
    "gone": lambda data, rng: None,
    "empty": lambda data, rng: b"",
    "cut": lambda data, rng: data[: int(rng.integers(len(data) or 1))],
    "a bit flipped": lambda data, rng: _flipped(data, int(rng.integers(len(data) or 1))),
    "nonsense": lambda data, rng: rng.bytes(200),
    "nested": lambda data, rng: b"[" * 100_000,
    "another object": lambda data, rng: b'{"a": 1}\n',
    "twice": lambda data, rng: data + data,
    "lines reversed": lambda data, rng: b"\n".join(data.split(b"\n")[::-1]),
    "a line less": lambda data, rng: b"\n".join(data.split(b"\n")[:2] + data.split(b"\n")[3:]),
    "NaN": lambda data, rng: data.replace(b"0.", b"NaN, 0.", 1),
    "other numbers": lambda data, rng: data.replace(b"0.02", b"0.5").replace(b"seed = 5", b"seed = 6"),
}


def _flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[place] ^= 1 << place % 8
    return bytes(changed)


def damaged_directories(share: float, rng: np.random.Generator, folder: Path) -> Row:
    """Each file of a finished and of an unfinished run damaged in each way; then shown, read and resumed."""
    finished, unfinished = folder / "finished", folder / "unfinished"
    whole = carry_out(SHORT, out=finished, workers=1, device="cpu")
    with contextlib.suppress(KeyboardInterrupt):
        carry_out(SHORT, out=unfinished, workers=1, device="cpu", on_round=_interrupt)
    tries, same, told, findings = 0, 0, 0, []
    for source in (finished, unfinished):
        for file in sorted(path.name for path in source.iterdir() if not path.name.startswith(".")):
            for kind, damage in DAMAGES.items():
                if rng.random() >= share:
                    continue
                out = shutil.copytree(source, folder / "damaged")
                data = damage((out / file).read_bytes(), rng)
                (out / file).unlink()
                if data is not None:
                    (out / file).write_bytes(data)
                for name, use in USES.items():
                    tries += 1
                    try:
                        theta = use(out)
                        if theta in (None, whole.theta_sha256):
                            same += 1
                        else:
                            findings.append(f"{source.name}/{file} {kind}: {name} gives another θ")
                    except (UserError, RunError):
                        told += 1
                    except Exception as error:
                        findings.append(f"{source.name}/{file} {kind}: {name}: {type(error).__name__}: {error}")
                shutil.rmtree(out)
    return "damaged files of run directories, shown, read and resumed", tries, same, told, findings


def _interrupt(record: dict[str, Any]) -> None:
    if record["round"] == 4:
        raise KeyboardInterrupt


def _resumed(out: Path) -> str:
    config: Config = SHORT
    return carry_out(config, out=out, workers=1, device="cpu", resume=True).theta_sha256


USES: dict[str, Callable[[Path], str | None]] = {
    "report": lambda out: (load(out), None)[1],
    "load_run": lambda out: load_run(out).theta_sha256,
    "resume": _resumed,
}


def main(scale: float = 1.0, only: Sequence[str] = ()) -> int:
    torch.set_num_threads(1)
    rng, started, bad = np.random.default_rng(0), time.monotonic(), 0
    parts: dict[str, Callable[[Path], Row]] = {
        "runs": lambda here: killed_runs(round(80 * scale), rng, here),
        "studies": lambda here: killed_studies(round(20 * scale), rng, here),
        "seam": lambda here: hostile_replies(round(120 * scale), over_wire=False),
        "wire": lambda here: hostile_replies(round(80 * scale), over_wire=True),
        "files": lambda here: damaged_directories(scale, rng, here),
    }
    if unknown := set(only) - set(parts):
        raise SystemExit(f"There is no part {min(unknown)!r} of the drill; there are {', '.join(parts)}.")
    print("| what | tries | as undisturbed | told | findings | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    told: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        for part, drill in parts.items():
            if only and part not in only:
                continue
            (here := Path(name) / part).mkdir()
            began = time.monotonic()
            what, tries, same, said, findings = drill(here)
            seconds = time.monotonic() - began
            print(f"| {what} | {tries} | {same} | {said} | {len(findings)} | {seconds:.0f} |", flush=True)
            told, bad = told + findings, bad + len(findings)
    print(f"\n{time.monotonic() - started:.0f} s, {bad} findings.")
    for finding in told[:40]:
        print(f"- {finding}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:2]), only=sys.argv[2:]))
