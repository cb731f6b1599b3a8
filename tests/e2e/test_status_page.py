"""The status page in a real browser: at a desk, on a phone, in the dark, without scripts, with odd names."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from kprobe_exporter.export.listen import listen
from kprobe_exporter.export.server import WebServer
from kprobe_exporter.export.web import create_app
from kprobe_exporter.model import Family, ProbeStatus, Snapshot

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
HOSTILE = "</td></table><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
COURSE = tuple(900 + 600 * math.sin(step / 5) + step for step in range(60))

PROBES = (
    ProbeStatus(
        *("open_errors", "up", "kretprobe", "kretprobe:do_sys_openat2", "events", "", 1_204_113, 0, 48_112),
        *("a metric takes 'comm'", "Opening a file", COURSE),
    ),
    ProbeStatus(
        *("vfs_read", "up", "kprobe", "kprobe:vfs_read", "count", "", 92_113_482, 0, 0),
        *("nothing but hits is asked for", "", tuple(reversed(COURSE))),
    ),
    ProbeStatus(
        *("fsync", "failed", "call", "call:do_fsync", "", "call:do_fsync: the compiler inlined it."),
        *(None, None, 0),
    ),
    ProbeStatus(
        *("tcp_sendmsg", "tripped", "kprobe", "kprobe:tcp_sendmsg", "events"),
        *(
            "it fired 412,000 times a second, and its limit is 100,000: it is off for 40 s",
            9_001_223,
            0,
            8_812_001,
        ),
    ),
    ProbeStatus(HOSTILE, "up", "kprobe", HOSTILE, "events", "", 1, 0, 1),
)


def family(name: str, value: float, **labels: str) -> Family:
    return Family(name, "gauge", "", tuple(labels), {tuple(labels.values()): value})


FAMILIES = (
    family("kprobe_exporter_build_info", 1, version="0.1.0"),
    family("kprobe_exporter_events_lost_total", 1200, reason="overrun"),
    family("kprobe_exporter_kernel_read_age_seconds", 0.4),
)


@pytest.fixture
def address() -> Iterator[str]:
    """An agent's page, on which every look finds more hits."""
    hits = 1_204_113

    def snapshot() -> Snapshot:
        nonlocal hits
        hits += 23
        return Snapshot(FAMILIES, (replace(PROBES[0], hits=hits), *PROBES[1:]))

    errors: list[BaseException] = []
    server = WebServer(create_app(snapshot, lambda: None), listen(["127.0.0.1:0"]), errors.append)
    server.start()
    yield f"http://{server.addresses[0]}/"
    server.close()
    assert not errors


@pytest.fixture
def browser(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Chrome]:
    """Chromium without a screen; the marker `scripts(False)` switches JavaScript off."""
    options = ChromeOptions()
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        f"user-data-dir={tmp_path}",
    ):
        options.add_argument(f"--{argument}")
    options.binary_location = "/usr/bin/chromium"
    if getattr(request, "param", "") == "no scripts":
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, Service("/usr/bin/chromedriver"))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def hits(browser: Chrome) -> int:
    cell = browser.find_element(By.CSS_SELECTOR, "tr.up td[data-name=Hits]")
    return int(cell.text.replace(",", "").replace("Hits", ""))


def picture(
    browser: Chrome, name: str, width: int, height: int, *, dark: bool = False, phone: bool = False
) -> None:
    """The page as it looks there; nothing is wider than the screen."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    assert browser.save_screenshot(str(SCREENSHOTS / f"{name}.png"))


def complaints(browser: Chrome) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]  # type: ignore[no-untyped-call]


def test_on_a_desk_and_on_a_phone_light_and_dark(address: str, browser: Chrome) -> None:
    browser.get(address)
    assert browser.title == "3 of 5 probes up · kprobe_exporter"
    assert len(browser.find_elements(By.CSS_SELECTOR, "tbody tr")) == len(PROBES)
    picture(browser, "status", 1280, 800)
    picture(browser, "status-dark", 1280, 800, dark=True)
    picture(browser, "status-phone", 390, 1400, phone=True)
    assert browser.find_element(By.TAG_NAME, "thead").is_displayed() is False
    picture(browser, "status-phone-dark", 390, 1400, dark=True, phone=True)


def test_the_numbers_are_live_and_the_page_stays(address: str, browser: Chrome) -> None:
    browser.get(address)
    browser.execute_script("window.same = true")
    first = hits(browser)
    WebDriverWait(browser, 20).until(lambda _: hits(browser) > first)
    assert browser.execute_script("return window.same") is True
    assert complaints(browser) == []


def test_hostile_names_stay_text(address: str, browser: Chrome) -> None:
    browser.get(address)
    first = hits(browser)
    WebDriverWait(browser, 20).until(lambda _: hits(browser) > first)  # in what the script put in, too
    assert browser.find_element(By.CSS_SELECTOR, "tbody tr:last-child td").text == HOSTILE
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert "owned" not in browser.title
    assert complaints(browser) == []


@pytest.mark.parametrize("browser", ["no scripts"], indirect=True)
def test_without_javascript(address: str, browser: Chrome) -> None:
    """All is there, and the page loads itself again."""
    browser.get(address)
    first = hits(browser)
    assert browser.find_element(By.TAG_NAME, "polyline").is_displayed()
    WebDriverWait(browser, 40, ignored_exceptions=[Exception]).until(lambda _: hits(browser) > first)
