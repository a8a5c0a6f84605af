"""The page in a real browser: it renders, tables sort, nothing is logged as an error, nothing is fetched."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from made_runs import make_study

from feddiverse.report import page
from feddiverse.report.results import load

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip

pytestmark = [
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="no chromium and chromedriver here: the report was not tried in a browser",
    ),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    folder = tmp_path_factory.mktemp("browser")
    accuracies = {
        ("Uniform random", "digits-gsc"): [0.891, 0.896, 0.833],
        ("FedDiverse", "digits-gsc"): [0.920, 0.919, 0.891],
        ("pow-d", "digits-gsc"): [0.900, 0.870, 0.850],
    }
    report = page.write(load(make_study(folder / "study", accuracies)), folder / "report.html")
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        driver.get(report.as_uri())
        yield driver
    finally:
        driver.quit()


def column(browser: Any, table: str, index: int) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(c => c.firstChild.textContent.trim())"
    return list(browser.execute_script(script, f"#{table} tbody tr > :nth-child({index})"))


def press(browser: Any, table: str, index: int) -> str:
    """Presses a column's head with the keyboard; returns what aria-sort then says."""
    head = browser.find_element("css selector", f"#{table} thead th:nth-child({index})")
    head.find_element("tag name", "button").send_keys("\n")
    return str(head.get_attribute("aria-sort"))


def test_it_renders_the_answer_and_every_figure(browser: Any) -> None:
    assert "FedDiverse is best" in browser.find_element("css selector", "#answer .headline").text
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().height)"
    )
    assert len(sizes) == 6
    assert min(sizes) > 60


def test_tables_sort_by_keyboard_and_say_so(browser: Any) -> None:
    assert press(browser, "accuracy", 2) == "descending"
    assert column(browser, "accuracy", 1)[0] == "FedDiverse"
    assert press(browser, "accuracy", 2) == "ascending"
    assert column(browser, "accuracy", 1)[-1] == "FedDiverse"
    assert press(browser, "accuracy", 1) == "ascending"
    assert column(browser, "accuracy", 1) == ["FedDiverse", "pow-d", "Uniform random"]
    assert "sorted by Method" in browser.find_element("id", "announce").get_attribute("textContent")


def test_empty_cells_stay_last_whichever_way(browser: Any) -> None:
    place = 3  # difference to the baseline, which the baseline has not
    for _ in range(2):
        press(browser, "comparison", place)
        assert column(browser, "comparison", place)[-1] == "–"


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1200, "dark")])
def test_it_fits_and_follows_the_scheme(browser: Any, width: int, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}[scheme]


def test_nothing_is_wrong_and_nothing_is_fetched(browser: Any) -> None:
    assert browser.get_log("browser") == []
    requests = [entry["message"] for entry in browser.get_log("performance") if "requestWillBeSent" in entry["message"]]
    assert not [message for message in requests if '"url":"http' in message]
