"""Bringing one file from the network to the disk: by https, npm or pip. Every failure is an `Unavailable`."""

import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from feddiverse.data.archives import Report

_CONNECT_S = 10.0  # without a network, tell so soon and try the next source
_PACKAGE_S = 600.0


class Unavailable(Exception):
    """One source cannot give the file now; another may."""


def https(url: str, target: Path, limit_bytes: int, report: Report) -> None:
    """Download a file, `limit_bytes` at most. A connection that breaks leaves an incomplete file and an error."""
    try:
        with open_url(url) as answer, target.open("wb") as out:
            announced, done = answer.headers.get("Content-Length"), 0
            while chunk := answer.read(1 << 18):
                done += len(chunk)
                if done > limit_bytes:
                    raise Unavailable(f"it sends more than {limit_bytes} bytes")
                out.write(chunk)
                report(f"Downloading {target.name}", done, int(announced) if announced else None)
    except (OSError, HTTPException) as error:
        raise Unavailable(reason(error)) from error
    if announced is not None and done != int(announced):
        raise Unavailable(f"it broke off after {done} of {announced} bytes")


def open_url(url: str, method: str = "GET") -> Any:
    """Open an https address; no other scheme, so that no redirect or setting can read a local file."""
    if not url.startswith("https://"):
        raise Unavailable("not an https address")
    return urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=_CONNECT_S)


def npm_pack(package: str, folder: Path) -> Path:
    """Download an npm package's archive with the npm client and its own settings (registry, proxy)."""
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not installed")
    _run([npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder), package])
    return _only(folder, "*.tgz")


def pip_download(requirement: str, folder: Path) -> Path:
    """Download a wheel with pip and its own settings (index, proxy), without what it depends on."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    _run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement])
    return _only(folder, "*.whl")


def reason(error: BaseException) -> str:
    """Why a connection failed, in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        return f"it answers {error.code}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(cause).strip().splitlines()[0] if str(cause).strip() else type(error).__name__


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PACKAGE_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(type(error).__name__) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(said[-1].strip()[:200] if said else f"exit code {done.returncode}")


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise Unavailable("it brought no archive")
    return found[0]
