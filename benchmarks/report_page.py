"""How large a page is, and how soon it answers: from the order to open it to the first tip.

`python benchmarks/report_page.py demo/report.html`, after `make demo`. Asked: at most 6 MB, and
interactive in less than a second. Needs the packages chromium and chromium-driver, and selenium.
"""

import shutil
import sys
from pathlib import Path
from time import perf_counter

from selenium import webdriver

TIMES = 5


def browser() -> webdriver.Chrome:
    """Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def opened(chromium: webdriver.Chrome, page: Path) -> tuple[float, float]:
    """Seconds until the page is interactive, as the browser says; and until a key is answered."""
    chromium.get("about:blank")
    start = perf_counter()
    chromium.get(page.resolve().as_uri())
    chromium.find_element("css selector", "figure svg.chart").send_keys("\ue014")
    if not chromium.find_element("id", "tip").is_displayed():
        raise SystemExit("the page does not answer")
    answered = perf_counter() - start
    script = "return performance.getEntriesByType('navigation')[0].domInteractive"
    return chromium.execute_script(script) / 1e3, answered


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "demo/report.html")
    with browser() as chromium:
        opened(chromium, path)  # the first page also starts the browser
        times = [opened(chromium, path) for _ in range(TIMES)]
    interactive, answered = (sorted(column) for column in zip(*times, strict=True))
    middle = TIMES // 2
    print(
        f"{path}: {path.stat().st_size / 1e6:.2f} MB (6); interactive after"
        f" {interactive[middle]:.2f} s (1), a key answered after {answered[middle]:.2f} s;"
        f" medians of {TIMES}, least {interactive[0]:.2f} and {answered[0]:.2f} s"
    )
