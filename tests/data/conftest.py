"""What the tests of data share: caches of their own, and tiny photo sets."""

from pathlib import Path

import numpy as np
import pytest
from small_photos import save_picture


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path / "home"
    monkeypatch.setenv("FEDDIVERSE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def warm_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that keeps the parsed digits from one test to the next."""
    return tmp_path_factory.mktemp("warm")


@pytest.fixture
def warm_home(warm_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDDIVERSE_HOME", str(warm_cache))
    return warm_cache


@pytest.fixture
def waterbirds(tmp_path: Path) -> Path:
    """Waterbirds in small: for each part and group, pictures whose red is their row in the table."""
    root = tmp_path / "photos" / "waterbirds_v1.0"
    lines, number = ["img_id,img_filename,y,split,place,place_filename"], 0
    for split, count in ((0, 5), (1, 1), (2, 2)):
        for y in (0, 1):
            for place in (0, 1):
                for _ in range(count):
                    save_picture(root / f"{y}" / f"{number}.png", (number, 0, 0))
                    lines.append(f"{number},{y}/{number}.png,{y},{split},{place},x")
                    number += 1
    (root / "metadata.csv").write_text("\n".join(lines))
    return root


@pytest.fixture
def spawrious(tmp_path: Path) -> Path:
    """Spawrious in small: 20 pictures of every breed in two locations; red tells the breed, green the location."""
    root = tmp_path / "photos" / "spawrious224"
    for i, breed in enumerate(("bulldog", "corgi", "dachshund", "labrador")):
        for j, location in enumerate(("beach", "snow")):
            for n in range(20):
                save_picture(root / str(n % 2) / location / breed / f"{n}.png", (i, j, n))
    return root


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
