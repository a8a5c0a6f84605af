"""Files from the network: by https (pooch), npm, pip or the Hugging Face hub. Every failure is an `Unavailable`."""

import csv
import importlib
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from feddiverse.data import archives
from feddiverse.data.archives import Report
from feddiverse.data.pictures import SUFFIXES
from feddiverse.errors import how_to_install

_CONNECT_S = 10.0  # without a network, tell so soon and try the next source
_PACKAGE_S = 600.0
_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")
_PARTS = {"train": 0, "validation": 1, "valid": 1, "val": 1, "test": 2}  # as Waterbirds numbers them


class Unavailable(Exception):
    """One source cannot give the file now; another may."""


class _Arriving:
    """What pooch writes a download to, and its progress bar: it ends a download that is longer than it may be."""

    total = 0  # bytes announced, set by pooch; 0: unknown

    def __init__(self, name: str, limit_bytes: int, report: Report) -> None:
        self.name, self.limit_bytes, self.report, self.done = name, limit_bytes, report, 0
        self.stream: IO[bytes]

    def write(self, chunk: bytes) -> None:
        self.done += len(chunk)
        if self.done > self.limit_bytes:
            raise Unavailable(f"it sends more than {self.limit_bytes} bytes")
        self.stream.write(chunk)
        self.report(f"Downloading {self.name}", self.done, self.total or None)

    def _nothing(self, *_: object) -> None:
        """pooch's bar counts whole chunks, even of those that are shorter: `write` knows better."""

    flush = update = reset = close = _nothing


def https(
    url: str, target: Path, limit_bytes: int, report: Report, sha256: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Download a file, `limit_bytes` at most. It is there only if it came whole and, if given, has this SHA-256."""
    import pooch

    if not url.startswith("https://"):  # pooch would open others, too
        raise Unavailable("not an https address")
    pooch.get_logger().setLevel("WARNING")
    arriving = _Arriving(target.name, limit_bytes, report)
    as_is = {"Accept-Encoding": "identity", **(headers or {})}  # unpacking is ours, with limits
    downloader = pooch.HTTPDownloader(arriving, chunk_size=1 << 18, timeout=_CONNECT_S, headers=as_is)

    def download(url: str, path: str, _: object) -> None:
        with open(path, "wb") as arriving.stream:
            downloader(url, arriving, None)

    try:
        pooch.retrieve(url, sha256 and f"sha256:{sha256}", target.name, target.parent, downloader=download)
    except OSError as error:  # those of requests are, too
        if (read := getattr(_origin(error), "partial", None)) is not None:  # urllib3's IncompleteRead
            raise Unavailable(f"it broke off after {read} of {arriving.total} bytes") from error
        raise Unavailable(reason(error)) from error
    except ValueError as error:
        raise Unavailable(f"{target.name} arrived altered: its SHA-256 differs") from error


def reason(error: BaseException) -> str:
    """Why a connection failed, in a few words: what the server answered, or what the libraries' errors began with."""
    if (response := getattr(error, "response", None)) is not None:
        return f"it answers {response.status_code}"
    origin = _origin(error)
    return str(origin).strip().splitlines()[0] if str(origin).strip() else type(origin).__name__


def _origin(error: BaseException) -> BaseException:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


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


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PACKAGE_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(type(error).__name__) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        # pip may quote what it was given below what is wrong with it
        reasons = [line for line in said if line.startswith("ERROR")] or said
        raise Unavailable(reasons[-1].strip()[:200])


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise Unavailable("it brought no archive")
    return found[0]


def from_hub(repository: str, folder: Path, limit_bytes: int, report: Report) -> None:
    """Download a data set's archives, or else its Parquet files (`image`, `label`, `place`, as Waterbirds is often
    stored), and lay it out in `folder` as the official archive does.

    Only files whose SHA-256 the hub publishes are taken. huggingface_hub lists them and knows addresses and tokens;
    `https` downloads them, since it has a limit and tells its progress.
    """
    hub = _require("huggingface_hub")
    errors, utils = _require("huggingface_hub.errors"), _require("huggingface_hub.utils")
    http = _require("httpx")  # what huggingface_hub speaks through
    api = hub.HfApi()
    try:
        info = api.dataset_info(repository, timeout=_CONNECT_S, files_metadata=True)
        files = sorted((file.rfilename, file.lfs.size, file.lfs.sha256) for file in info.siblings if file.lfs)
    except errors.HFValidationError as error:
        raise Unavailable(f"'{repository}' is no repository: write OWNER/NAME") from error
    except (OSError, http.HTTPError) as error:
        raise Unavailable(reason(error)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable("its answer is not understood") from error
    chosen = [file for file in files if file[0].endswith(_ARCHIVES)]
    chosen = chosen or [file for file in files if file[0].endswith(".parquet")]
    if not chosen:
        raise Unavailable("it holds neither archives nor Parquet files")
    if sum(size for _, size, _ in chosen) > limit_bytes:
        raise Unavailable(f"it holds more than {limit_bytes} bytes")
    (downloads := folder.parent / "downloads").mkdir()
    for number, (name, size, sha256) in enumerate(chosen):
        path = downloads / f"{number}-{Path(name).name}"
        address = hub.hf_hub_url(repository, name, repo_type="dataset", revision=info.sha, endpoint=api.endpoint)
        https(address, path, size, report, sha256, utils.build_hf_headers())
        if path.suffix == ".parquet":
            _unpack_parquet(path, _part(name), folder)
        else:
            suffixes = SUFFIXES | {".csv"}
            archives.extract_all(path, folder, suffixes=suffixes, limit_bytes=limit_bytes, report=report)
        path.unlink()


def _require(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(f"{module.partition('.')[0]} is not installed: {how_to_install('hub')}") from error


def _part(path: str) -> int:
    found = re.search(rf"(?:^|[/_-])({'|'.join(_PARTS)})(?:[/_.-])", path)
    if found is None:
        raise Unavailable(f"{path} does not say whether it is for training or testing")
    return _PARTS[found[1]]


def _unpack_parquet(packed: Path, part: int, folder: Path) -> None:
    """Write the pictures of one Parquet file beside `metadata.csv`, and their labels into it."""
    from PIL import Image

    parquet = _require("pyarrow.parquet")
    table = folder / "metadata.csv"
    is_new = not table.exists()
    with table.open("a", newline="", encoding="utf-8") as stream:
        out = csv.writer(stream)
        if is_new:
            out.writerow(["img_id", "img_filename", "y", "split", "place", "place_filename"])
        (folder / packed.stem).mkdir()
        number = 0
        try:
            for batch in parquet.ParquetFile(packed).iter_batches(256, columns=["image", "label", "place"]):
                for row in batch.to_pylist():
                    picture = row["image"]["bytes"]
                    kind = str(Image.open(io.BytesIO(picture)).format).lower()
                    name = f"{packed.stem}/{number:06d}.{kind}"
                    (folder / name).write_bytes(picture)
                    out.writerow([number, name, int(row["label"]), part, int(row["place"]), ""])
                    number += 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unavailable("its Parquet files do not hold image, label and place") from error
