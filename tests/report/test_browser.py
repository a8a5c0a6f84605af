"""The page in a real browser: it renders and fits, tables sort, methods hide, commands copy, plots tell their values,
nothing is logged as an error, nothing is fetched."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_runs import hide_attributes, make_study

from feddiverse.report import page
from feddiverse.report.results import load

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--window-size=1280,1100", "--disable-background-networking",
    "--disable-component-update", "--disable-dev-shm-usage",
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
    accuracies = {  # FedDiverse against uniform: +3.7 [−1.0, +8.3]
        ("Uniform random", "digits-gsc"): [0.891, 0.896, 0.833],
        ("FedDiverse", "digits-gsc"): [0.920, 0.919, 0.891],
        ("pow-d", "digits-gsc"): [0.900, 0.870, 0.850],
    }
    study = make_study(folder / "study", accuracies, rebalanced=accuracies)
    report = page.write(load(study), folder / "report.html")
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


def test_it_renders_an_honest_answer_and_every_figure(browser: Any) -> None:
    answer = browser.find_element("css selector", "#answer").text
    assert "no method is shown to differ from Uniform random" in answer
    assert "best" not in answer  # the interval holds zero
    assert "−1.0 to +8.3, 3 seeds" in answer
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('.plot svg')].map(s => s.getBoundingClientRect().height)"
    )
    assert len(sizes) == 3 + 3 + 2 + 3 + 3 + 3  # groups, heads, two on all methods, kinds, shares, estimates
    assert min(sizes) > 60


def test_tables_sort_by_keyboard_and_say_so(browser: Any) -> None:
    assert press(browser, "comparison", 2) == "descending"
    assert column(browser, "comparison", 1)[0] == "FedDiverse"
    assert press(browser, "comparison", 2) == "ascending"
    assert column(browser, "comparison", 1)[-1] == "FedDiverse"
    assert press(browser, "comparison", 1) == "ascending"
    assert column(browser, "comparison", 1) == ["FedDiverse", "pow-d", "Uniform random"]
    assert "sorted by Method" in browser.find_element("id", "announce").get_attribute("textContent")


def test_empty_cells_stay_last_whichever_way(browser: Any) -> None:
    place = 3  # difference to the baseline, which the baseline has not
    for _ in range(2):
        press(browser, "comparison", place)
        assert column(browser, "comparison", place)[-1] == "–"


def test_a_method_can_be_hidden_everywhere(browser: Any) -> None:
    seen = (
        "return [...document.querySelectorAll(`[data-method='1']`)].filter(e => getComputedStyle(e).display != 'none')"
        ".map(e => e.tagName.toLowerCase())"
    )
    before = browser.execute_script(seen)
    assert {"div", "g", "tr"} <= set(before)  # plots of its own, lines in shared plots, rows of tables
    button = browser.find_element("css selector", ".toggle[data-toggles='1']")
    button.send_keys("\n")
    assert (button.get_attribute("aria-pressed"), browser.execute_script(seen)) == ("false", [])
    assert browser.find_element("id", "announce").get_attribute("textContent") == "FedDiverse hidden"
    button.send_keys("\n")
    assert browser.execute_script(seen) == before


def test_commands_are_copied(browser: Any) -> None:
    """Read back by pasting, as a person would."""
    from selenium.webdriver.common.keys import Keys

    browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    button = browser.find_element("css selector", ".steps .copy")
    button.send_keys("\n")
    wait_for(browser, "return document.querySelector('.steps .copy').textContent == 'Copied'")
    browser.execute_script("document.body.insertAdjacentHTML('beforeend', '<textarea id=pasted></textarea>')")
    area = browser.find_element("id", "pasted")
    area.send_keys(Keys.CONTROL, "v")
    wait_for(browser, "return document.getElementById('pasted').value != ''")
    assert area.get_attribute("value") == browser.find_element("css selector", ".steps code").text
    browser.execute_script("document.getElementById('pasted').remove()")


def wait_for(browser: Any, script: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 30).until(lambda driver: driver.execute_script(script))


def test_plots_tell_their_values_to_pointer_and_keyboard(browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    plot = browser.find_element("css selector", ".plot")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
    x, y, text, _ = browser.execute_script("return JSON.parse(arguments[0].dataset.points)[3]", plot)
    place = """const svg = arguments[0].querySelector('svg'), box = svg.getBoundingClientRect();
               const s = box.width / svg.viewBox.baseVal.width;
               return [arguments[1] * s - box.width / 2, arguments[2] * s - box.height / 2]"""
    right, down = browser.execute_script(place, plot, x, y)
    ActionChains(browser).move_to_element_with_offset(plot, round(right), round(down)).perform()
    tip = browser.find_element("id", "tip")
    wait_for(browser, "return !document.getElementById('tip').hidden")
    assert (tip.is_displayed(), tip.text) == (True, text)
    plot.send_keys(Keys.ARROW_RIGHT)
    assert tip.text == browser.execute_script("return JSON.parse(arguments[0].dataset.points)[0][2]", plot)
    assert browser.find_element("id", "announce").get_attribute("textContent") == tip.text
    plot.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()


@pytest.mark.parametrize(("width", "scheme"), [(375, "light"), (1280, "dark")])
def test_it_fits_and_follows_the_scheme(browser: Any, width: int, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    plots = browser.execute_script(
        """return [...document.querySelectorAll('.plot svg')].map(svg => {
             const box = svg.getBoundingClientRect(), s = box.width / svg.viewBox.baseVal.width;
             const texts = [...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect());
             const sizes = [...svg.querySelectorAll('text')].map(t => parseFloat(getComputedStyle(t).fontSize));
             return [Math.min(...texts.map(t => t.left)), Math.max(...texts.map(t => t.right)), box.left, box.right,
                     s * Math.min(...sizes)]
           })"""
    )
    assert all(left >= 0 and right <= width for *_, left, right, _ in plots)  # whole, without scrolling
    assert all(text_left >= left - 1 and text_right <= right + 1 for text_left, text_right, left, right, _ in plots)
    assert min(size for *_, size in plots) >= 9  # pixels of text
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}[scheme]


@pytest.mark.parametrize("width", [375, 1280])
def test_commands_break_between_words_and_unknown_values_cover_nothing(
    browser: Any, tmp_path: Path, width: int
) -> None:
    accuracies = {("Uniform random", "digits-gsc"): [0.1, 0.2, 0.3], ("FedDiverse", "digits-gsc"): [0.2, 0.3, 0.4]}
    study = hide_attributes(make_study(tmp_path / "study", accuracies))
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    browser.get(page.write(load(study), tmp_path / "report.html").as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    gaps = browser.execute_script(
        """return [...document.querySelectorAll('.verdict dd')].map(dd => {
             const text = document.createRange();
             text.selectNodeContents(dd.querySelector('.value-of'));
             return dd.querySelector('.track').getBoundingClientRect().left - text.getBoundingClientRect().right
           })"""
    )
    assert len(gaps) == 6
    assert min(gaps) > 0  # "unknown" ends before the scale begins
    ends = browser.execute_script(
        """return [...document.querySelectorAll('caption')].filter(c => c.offsetParent).map(caption => {
             const text = document.createRange();
             text.selectNodeContents(caption);
             return text.getBoundingClientRect().right
           })"""
    )
    assert max(ends) <= width  # a title is whole, however wide its table
    heights = browser.execute_script(
        """return [...document.querySelectorAll('.steps code span')].map(word =>
             word.getBoundingClientRect().height / parseFloat(getComputedStyle(word).fontSize))"""
    )
    assert len(heights) > 5
    assert max(heights) < 2  # every word on one line


def test_nothing_is_wrong_and_nothing_is_fetched(browser: Any) -> None:
    assert browser.get_log("browser") == []
    requests = [entry["message"] for entry in browser.get_log("performance") if "requestWillBeSent" in entry["message"]]
    assert not [message for message in requests if '"url":"http' in message]
