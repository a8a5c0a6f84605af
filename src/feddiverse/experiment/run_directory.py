"""A run directory: all there is to know about a run, in plain files, safe against being killed at any moment.

`rounds.jsonl` grows by a line a round; everything else is replaced whole. The checkpoint says how many of the lines
count: a run that goes on first cuts off those written after it.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from feddiverse import files
from feddiverse.errors import RunError, UserError
from feddiverse.experiment import checkpoint
from feddiverse.experiment.config import KEYS, PARTS, Config, differences, from_mapping, read_toml, to_toml
from feddiverse.messages import Vector

REBALANCED = "rebalanced.safetensors"
NAMED = ("federation", "selector", "aggregator", "seed")
LONGEST_NAME = 48


def run_name(config: Config) -> str:
    """What the run is, in a folder's name that fits a line: federation, selector, seed, then what differs from the
    defaults. Where that is long, eight letters of a digest of all settings stand for it."""
    usual = Config(federation=config.federation, selector=config.selector, aggregator=config.aggregator)
    federation = Path(config.federation).stem if "table:" in config.federation else config.federation
    parts = [federation, config.selector]
    parts += [config.aggregator] if config.aggregator != Config().aggregator else []
    named = _as_folder("-".join([*parts, f"seed{config.seed}"]))
    differing = [f"{key}{getattr(config, key)}" for key in KEYS
                 if key not in NAMED and getattr(config, key) != getattr(usual, key)]  # fmt: skip
    differing += [f"{name}{value}" for part in PARTS for name, value in config.parameters(part).items()]
    whole = _as_folder("-".join([named, *differing]))
    if len(whole) <= LONGEST_NAME:
        return whole
    digest = hashlib.sha256(to_toml(config).encode()).hexdigest()[:8]
    return f"{named[: LONGEST_NAME - 9].strip('-')}-{digest}"


def _as_folder(text: str) -> str:
    return re.sub(r"[^\w.+]+", "-", text).strip("-")


def read_config(path: Path) -> Config:
    """The config of the run in this directory."""
    file = path / "config.toml"
    if not file.is_file():
        raise UserError(f"There is no run in {path}: it has no config.toml.")
    values = read_toml(file)
    config = from_mapping(values, str(file))
    if "federation" not in values:  # every key is written; defaults would be another run
        raise UserError(f"{file} is damaged (it names no federation); delete that run and run it again.")
    return config


def check_config(config: Config, result: Mapping[str, Any]) -> None:
    """A `ValueError` where a finished run's config is not the one that its result was made with."""
    if made_with := result.get("config"):
        made = replace(from_mapping(made_with), rounds=config.rounds)  # more may have been asked for since
        if differing := differences(made.plain(), config.plain()):
            raise ValueError(f"config.toml was changed after the run: {', '.join(differing)}")


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object in a file, or None where there is no file."""
    try:
        content: dict[str, Any] = _parsed(path.read_bytes())
        if not isinstance(content, dict) or not content:
            raise ValueError("it should hold a JSON object")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); remove it and run again.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    return content


def _parsed(text: bytes) -> Any:
    """JSON, without what only Python takes for it: NaN and infinite numbers."""

    def refuse(name: str) -> Any:
        raise ValueError(f"it has a number that is {name}")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_checkpoint(path: Path) -> checkpoint.Snapshot | None:
    """The last checkpoint of the run in this directory, or None where there is none."""
    file = path / "checkpoint.safetensors"
    try:
        return checkpoint.unpack(file.read_bytes(), file) if file.exists() else None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from error


def read_rebalanced(path: Path) -> Vector:
    """The weights with the rebalanced head of the run in this directory, which `RunDirectory.write_result` wrote."""
    file = path / REBALANCED
    try:
        theta: Vector = load_file(file)["theta"]
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(f"{file} is damaged ({error}); make it anew with 'feddiverse rebalance {path}'.") from error
    return theta


def read_records(path: Path) -> list[dict[str, Any]]:
    """The lines of `rounds.jsonl`; a last one torn by a crash is left out."""
    return [record for record, _ in _complete_lines(path / "rounds.jsonl")]


def _complete_lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Each record with the position where its line ends, up to the first line that is not whole."""
    if not path.exists():
        return
    end = 0
    with path.open("rb") as stream:
        for line in stream:
            end += len(line)
            try:
                record = _parsed(line) if line.endswith(b"\n") else None
            except ValueError:
                record = None
            if not isinstance(record, dict) or not isinstance(record.get("round"), int):
                return
            yield record, end


class RunDirectory:
    """The directory of a run that this process, and no other at the same time, works on."""

    def __init__(self, path: Path, config: Config, *, extend: bool = False):
        """Take the directory, making it if need be; refuse the directory of another config, but for more `rounds` where
        `extend` is set."""
        self.path = path
        self._rounds: IO[bytes] | None = None
        self._lock = files.take_lock(path, "run")
        try:
            self.is_new = not (path / "config.toml").exists()
            if self.is_new:
                self._refuse_foreign_files()
                files.write(path / "config.toml", to_toml(config).encode())
            else:
                self._take_over(read_config(path), config, extend)
        except BaseException:
            self.close()
            raise

    def _take_over(self, there: Config, config: Config, extend: bool) -> None:
        """Go on with the run that is there, which must be the same, or the same with fewer rounds."""
        if there == config:
            return
        if extend and replace(there, rounds=config.rounds) == config and config.rounds >= there.rounds:
            files.write(self.path / "config.toml", to_toml(config).encode())
        elif differing := differences(there.plain(), config.plain()):
            raise UserError(
                f"{self.path} holds a run with another config: {', '.join(differing)}; choose another folder with"
                " --out."
            )

    def _refuse_another_config(self, snapshot: checkpoint.Snapshot | None) -> None:
        """A config that was changed by hand since the checkpoint would make one run of two."""
        if snapshot is None or not snapshot.config:
            return
        now = read_config(self.path)
        began = replace(from_mapping(snapshot.config, "the checkpoint"), rounds=now.rounds)
        if differing := differences(began.plain(), now.plain()):
            raise UserError(
                f"{self.path / 'config.toml'} was changed since this run began: {', '.join(differing)}; put it back, or"
                " start a new run."
            )

    def _refuse_foreign_files(self) -> None:
        foreign = sorted(p.name for p in self.path.iterdir() if not p.name.startswith("."))
        if foreign:
            raise UserError(
                f"{self.path} is not empty and no run directory (it has {foreign[0]}); choose another with --out."
            )

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the directory back. Safe to call twice."""
        if self._rounds is not None:
            self._rounds.close()
        self._rounds = None
        self._lock.release()

    def abandon(self) -> None:
        """Leave no trace of a run that could not even start."""
        described = ("environment.json", "federation.json", "model.json", "triplets.json")
        for name in ("config.toml", *described, "rounds.jsonl", files.LOCK):
            with contextlib.suppress(OSError):
                (self.path / name).unlink()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a JSON file of the directory."""
        files.write_json(self.path / name, content)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the directory, or None where there is none yet."""
        return read_json(self.path / name)

    def append(self, record: Mapping[str, Any]) -> None:
        """One more line in `rounds.jsonl`: all of it or, on a full disk, nothing."""
        path = self.path / "rounds.jsonl"
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with files.writing(path):
            if self._rounds is None:
                self._rounds = path.open("ab", buffering=0)
            end = self._rounds.seek(0, os.SEEK_END)
            try:
                if self._rounds.write(line) != len(line):
                    raise OSError("the disk is full")
            except OSError:
                with contextlib.suppress(OSError):
                    self._rounds.truncate(end)
                raise

    def replace_last(self, record: Mapping[str, Any]) -> None:
        """Another last line in `rounds.jsonl`."""
        path = self.path / "rounds.jsonl"
        ends = [end for _, end in _complete_lines(path)]
        with files.writing(path):
            os.truncate(path, ends[-2] if len(ends) > 1 else 0)
        self.append(record)

    def write_checkpoint(self, snapshot: checkpoint.Snapshot) -> None:
        """Replace the checkpoint; the lines it counts on are on the disk before it is."""
        with files.writing(self.path / "rounds.jsonl"):
            if self._rounds is not None:
                os.fsync(self._rounds)
        files.write(self.path / "checkpoint.safetensors", checkpoint.pack(snapshot))

    def write_result(self, result: Mapping[str, Any], rebalanced: Vector | None) -> None:
        """`result.json`, and beside it the weights with the rebalanced head, if there are any.

        It never speaks of weights that are not there: before they are replaced, it is written without them.
        """
        path = self.path / REBALANCED
        if path.exists():
            self.write_json("result.json", {**result, "rebalanced": None})
            path.unlink()
        if rebalanced is not None:
            files.write(path, save({"theta": np.ascontiguousarray(rebalanced)}))
        self.write_json("result.json", result)

    def go_back_to_checkpoint(self) -> checkpoint.Snapshot | None:
        """The last checkpoint, with `rounds.jsonl` cut to its rounds; None (and no lines) before the first."""
        rounds = self.path / "rounds.jsonl"
        snapshot = read_checkpoint(self.path)
        self._refuse_another_config(snapshot)
        done = snapshot.round if snapshot else 0
        lines = [(record, end) for record, end in _complete_lines(rounds) if record["round"] <= done]
        if [record["round"] for record, _ in lines] != list(range(1, done + 1)):
            raise RunError(f"{rounds} lacks rounds that the checkpoint counts on; run again in another folder.")
        if rounds.exists():
            with files.writing(rounds):
                os.truncate(rounds, lines[-1][1] if lines else 0)
        return snapshot
