"""The report's pages that docs/studies.md shows: `python -m benchmarks.pages FOLDER [--docs docs]`.

Studies of the embedded digits go to FOLDER; what is there already is kept. Each page is opened in Chromium at 1280 and
375 pixels, light and dark, and saved whole in FOLDER/shots. `--docs` writes the cuts that the documentation shows.
"""

import argparse
import csv
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from feddiverse.selection.uniform import Uniform

ROOT = Path(__file__).parents[1]  # where a grid finds this file
TOWNS = (
    "Aarhus", "Bergen", "Bilbao", "Bologna", "Bordeaux", "Bremen", "Brno", "Coimbra", "Cork", "Dresden", "Ghent",
    "Graz", "Krakow", "Leeds", "Ljubljana", "Lund", "Lyon", "Porto", "Tartu", "Turku",
)  # fmt: skip
NAMES = [f"{town} {house}" for town in TOWNS for house in ("Central", "City", "North", "South", "University")]

GRID = """title = "{title}"
seeds = [0, 1, 2]
baseline = "Uniform random"
[base]
federation = "{federation}"
rounds = {rounds}
evaluate_every = 2
[rows."Uniform random"]
selector = "uniform"
[rows.FedDiverse]
selector = "feddiverse"
[rows."{third}"]
selector = "{selector}"
"""
# name, width in pixels, height of the cut, dark or not, what to begin with
DOCS = {
    "report-quickstart": ("quickstart", 1280, 1750, "light", ""),
    "report-dark": ("quickstart", 1280, 1750, "dark", ""),
    "report-phone": ("quickstart", 375, 2400, "light", ""),
    "report-phone-dark": ("quickstart", 375, 2400, "dark", ""),
    "report-hundred": ("hundred", 1280, 1900, "light", ""),
    "report-hundred-clients": ("hundred", 1280, 1500, "light", "#asked"),
    "report-four-classes": ("four-classes", 1280, 1750, "light", "#s3"),
    "report-one-run": ("one-run", 1280, 1750, "light", ""),
    "report-failed-run": ("failed-run", 1280, 1250, "light", ""),
}


class Leaving(Uniform):
    """Uniform until a round in which the machine gives up: what a run looks like that fails."""

    def choose(self, round: int, *rest: Any) -> Any:
        if round == 4:
            raise OSError("No space left on device")
        return super().choose(round, *rest)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", type=Path, help="write the documentation's pictures into this folder")
    given = parser.parse_args()
    folder = given.folder.absolute()
    make_studies(folder)
    with browser(folder / "profile") as driver:
        for name in ("quickstart", "hundred", "four-classes", "one-run", "failed-run"):
            for width in (1280, 375):
                for scheme in ("light", "dark"):
                    shot(driver, page_of(folder, name), width, scheme).save(
                        made(folder / "shots" / f"{name}-{width}-{scheme}.png")
                    )
        for file, (name, width, height, scheme, start) in DOCS.items() if given.docs else ():
            whole = shot(driver, page_of(folder, name), width, scheme)
            top = offset(driver, start)
            cut = whole.crop((0, top, width, min(top + height, whole.height)))
            cut.quantize(64, dither=Image.Dither.NONE).save(given.docs / f"{file}.png", optimize=True)


def make_studies(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    feddiverse(folder, "study", "quickstart", "--out", "quickstart")
    first = "quickstart/runs/digits-gsc-feddiverse-seed0"
    feddiverse(folder, "report", first, "--out", "one-run/report.html")
    feddiverse(folder, "report", str(ROOT / "results/table-1-cmnist"), "--out", "four-classes/report.html")
    feddiverse(folder, "federations", "export", "gci-100:digits", "--out", "shared")
    name_clients(folder / "shared/federation.csv", folder / "shared/hospitals.csv")
    grid(folder / "hundred.toml", "A hundred hospitals", "shared/hospitals.csv", 24, "HCSFed", "hcsfed")
    feddiverse(folder, "study", "hundred.toml", "--out", "hundred", "--set", "model=cnn", "--set", "image_size=28",
               "--set", "num_selected=12")  # fmt: skip
    grid(folder / "failed.toml", "A study with a failed run", "digits-gsc", 6, "Leaving", "benchmarks.pages:Leaving")
    feddiverse(folder, "study", "failed.toml", "--out", "failed-run", "--seeds", "0,1", fails=True)


def feddiverse(folder: Path, *arguments: str, fails: bool = False) -> None:
    root = str(Path(__file__).parents[1])  # where a grid finds this file
    start = (
        f"import sys; sys.path.insert(0, {root!r}); sys.argv[0] = 'feddiverse'; from feddiverse.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", start, *arguments], cwd=folder, check=False)
    if done.returncode != int(fails):
        raise SystemExit(f"feddiverse {' '.join(arguments)} ended with {done.returncode}.")


def grid(path: Path, title: str, federation: str, rounds: int, third: str, selector: str) -> None:
    path.write_text(GRID.format(title=title, federation=federation, rounds=rounds, third=third, selector=selector))


def name_clients(table: Path, named: Path) -> None:
    """The same table with names instead of numbers for its hundred clients."""
    rows = list(csv.DictReader(io.StringIO(table.read_text("utf-8"))))
    with open(named, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({**row, "client": NAMES[int(row["client"])] if row["client"] else ""} for row in rows)


def page_of(folder: Path, name: str) -> Path:
    return folder / name / "report.html"


def made(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    return path


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        yield driver
    finally:
        driver.quit()


def shot(driver: Any, page: Path, width: int, scheme: str) -> Image.Image:
    """The whole page as it looks at this width."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    driver.get(page.as_uri())
    height = driver.execute_script("return document.documentElement.scrollHeight")
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**screen, "height": height})
    return Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")


def offset(driver: Any, start: str) -> int:
    """Where this part of the page begins, with some room above it."""
    if not start:
        return 0
    found = "return document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY"
    return max(0, int(driver.execute_script(found, start)) - 24)


if __name__ == "__main__":
    main()
