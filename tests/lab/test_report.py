"""The page in a browser: no request, nothing of a study is run; hover, keys and legend work.

Needs Debian's packages chromium and chromium-driver, and selenium.
"""

import shutil
from dataclasses import replace

import pytest

from lab.study.example import example_store
from secateurs_lab.report import page
from secateurs_lab.report.published import shipped_figures
from secateurs_lab.report.tables import Overlap

pytestmark = pytest.mark.slow

EVIL = "<img src=x onerror=\"document.title='run'\">"


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("needs the packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # In a container there is neither a sandbox of its own nor a display.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(driver)
    with webdriver.Chrome(options=options, service=service) as found:
        yield found


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    with example_store(tmp_path_factory.mktemp("browser") / "a.study") as store:
        return [replace(row, data="fashion-mnist") for row in store.rows()]


@pytest.fixture
def shown(browser, rows, tmp_path):
    """A page, opened: `shown(rows)`."""

    def show(some=rows, name="example", **more):
        file = tmp_path / "page.html"
        file.write_text(page(some, name=name, **more), encoding="utf-8")
        for kind in ("browser", "performance"):
            browser.get_log(kind)  # what earlier pages left
        browser.get(file.as_uri())
        return browser

    return show


def requests(browser):
    """Addresses that the browser asked for since the page was opened."""
    import json

    messages = (json.loads(e["message"]) for e in browser.get_log("performance"))
    sent = (m["message"] for m in messages)
    return [
        m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"
    ]


def in_figure(browser, script):
    """What a piece of JavaScript says of the frontier's figure, as `svg`."""
    return browser.execute_script(
        f"const svg = document.querySelector('figure svg.chart'); {script}"
    )


def test_a_page_asks_for_itself_only_and_complains_of_nothing(shown):
    browser = shown(published=shipped_figures())
    assert [url.partition(":")[0] for url in requests(browser)] == ["file"]
    assert browser.get_log("browser") == []


def test_names_that_are_programs_are_shown_as_text(shown, rows):
    evil = [replace(row, label=EVIL, model=EVIL, reason=EVIL, data=EVIL) for row in rows]
    laid = Overlap(
        data=EVIL,
        model=EVIL,
        compression=4,
        names=(EVIL, EVIL),
        shares=((1, 0.5), (0.5, 1)),
        chance=(0.25, 0.25),
    )
    browser = shown(evil, name=EVIL, overlaps=[laid])
    assert browser.title == EVIL  # not "run"
    assert browser.execute_script("return document.images.length") == 0
    assert EVIL in browser.find_element("tag name", "h1").text
    assert [url.partition(":")[0] for url in requests(browser)] == ["file"]
    assert browser.get_log("browser") == []


def test_a_script_put_into_the_page_does_not_run(shown):
    """The policy holds even where escaping would fail."""
    browser = shown()
    browser.execute_script(
        f"document.querySelector('h1').innerHTML = {EVIL!r};"
        "const s = document.createElement('script');"
        "s.textContent = 'document.title = \"run\"'; document.body.append(s);"
    )
    assert browser.title == "example"
    assert any("Content Security Policy" in e["message"] for e in browser.get_log("browser"))


def test_the_mark_under_the_pointer_speaks(shown):
    from selenium.webdriver import ActionChains

    browser = shown()
    mark = browser.find_element("css selector", "figure svg [data-t]")
    tip = browser.find_element("id", "tip")
    assert not tip.is_displayed()
    ActionChains(browser).move_to_element(mark).perform()
    assert tip.is_displayed()
    assert mark.get_attribute("data-t") in tip.text.splitlines()
    title = browser.find_element("tag name", "h1")
    ActionChains(browser).move_to_element(title).perform()
    assert not tip.is_displayed()


def test_arrow_keys_go_from_mark_to_mark(shown):
    browser = shown()
    figure = browser.find_element("css selector", "figure svg.chart")
    tip = browser.find_element("id", "tip")
    said = []
    for key in ("\ue014", "\ue014", "\ue012", "\ue015"):  # right, right, left, down
        figure.send_keys(key)
        said.append(tip.text)
    first, second, back, below = (text.splitlines()[0] for text in said)
    assert first.split(":")[0] == second.split(":")[0]
    assert first == back != second
    assert below.split(":")[0] != first.split(":")[0]
    figure.send_keys("\ue00c")  # escape
    assert not tip.is_displayed()


def test_the_legend_switches_lines_off_and_on(shown):
    browser = shown(published=shipped_figures())
    visible = (
        "return [...svg.querySelectorAll('g.line')]"
        ".filter(g => g.getBoundingClientRect().width).length"
    )
    before = in_figure(browser, visible)
    button = browser.find_element("css selector", ".legend button")
    button.send_keys(" ")  # by the keyboard, as by a click
    assert button.get_attribute("aria-pressed") == "false"
    assert in_figure(browser, visible) == before - 1
    button.click()
    assert in_figure(browser, visible) == before
    off = browser.find_element("css selector", ".legend button[aria-pressed=false]")
    off.click()  # a published method that we did not run
    assert in_figure(browser, visible) == before + 1


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_button(shown, system):
    browser = shown()
    features = [{"name": "prefers-color-scheme", "value": system}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    paper = "return getComputedStyle(document.body).backgroundColor"
    white, black = "rgb(255, 255, 255)", "rgb(22, 22, 22)"
    first, second = (white, black) if system == "light" else (black, white)
    assert browser.execute_script(paper) == first
    browser.find_element("id", "theme").click()
    assert browser.execute_script(paper) == second


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_its_window_and_its_text_can_be_read(shown, width):
    browser = shown(published=shipped_figures())
    size = {
        "width": width,
        "height": 844,
        "deviceScaleFactor": 1,
        "mobile": width < 600,
    }
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width  # nothing sticks out to the right
    heights = in_figure(
        browser,
        "return [...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect())"
        ".filter(b => b.width).map(b => Math.min(b.width, b.height))",
    )
    # The least of width and height: the width of a single figure.
    assert min(heights) > 6
    overlapping = in_figure(
        browser,
        "const b = [...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect())"
        ".filter(b => b.width);"
        "return b.some((p, i) => b.some((q, j) => i < j && p.left < q.right - 1 &&"
        " q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3))",
    )
    assert not overlapping
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
