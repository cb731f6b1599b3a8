"""A headless Chromium, a screen of any size in it, and what it complains of."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"


@contextmanager
def chromium(profile: Path, *, scripts: bool = True) -> Iterator[Chrome]:
    """Yield a browser whose profile is in this directory."""
    options = ChromeOptions()
    switches = ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage")
    for argument in (*switches, f"user-data-dir={profile}"):
        options.add_argument(f"--{argument}")
    options.binary_location = "/usr/bin/chromium"
    if not scripts:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, Service("/usr/bin/chromedriver"))
    driver.set_page_load_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


def prefer(browser: Chrome, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def show(browser: Chrome, width: int, height: int, *, phone: bool = False) -> None:
    """Emulate a screen of this size in pixels, and wait until it has this width."""
    size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    WebDriverWait(browser, 20).until(lambda _: browser.execute_script("return innerWidth") == width)


def complaints(browser: Chrome) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]  # type: ignore[no-untyped-call]
