"""The agent's pages in a real browser: desktop and phone, light and dark, without scripts, hostile names.

UPDATE_IMAGES=1 makes the README's picture, in some minutes, of an agent with real probes in a VM.
"""

import compileall
import math
import os
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from kprobe_exporter.model.snapshot import Family, HeatMap, ProbeStatus, Snapshot
from kprobe_exporter.web.routes import create_app
from tests.support.browser import SCREENSHOTS, complaints, prefer, show
from tests.support.patience import eventually, patience
from tests.support.web_target import Served, serving
from tests.vm import ROOT, boot
from tests.vm.kernels import MAIN
from tests.vm.process import Child
from tests.whole.vm import needs_a_vm

PICTURE = ROOT / "docs/images/status.png"
HOSTILE = "</td></table><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
COURSE = tuple(900 + 600 * math.sin(step / 5) + step for step in range(60))

WIDTH = 1000
RATES = 30
"""Points in the line of a probe that was there from the start, after two and a half minutes."""

LIMIT = 480
"""Seconds for the picture, under emulation."""

POINTS = "return Math.max(0, ...[...document.querySelectorAll('polyline')].map(line => line.points.length))"
CLIPPED = "return [...document.querySelectorAll('main *')].filter(e => e.clientWidth < e.scrollWidth - 1)"
BOXES = """
const range = document.createRange()
return [...arguments].map(selector =>
  [...document.querySelectorAll(selector)].flatMap(e => [...e.childNodes]).map(node => {
    range.selectNodeContents(node)
    return [...range.getClientRects()].map(box => [box.left, box.bottom])
  }).filter(boxes => boxes.length))
"""
"""For each selector, the left and bottom edges of the lines of each text, all read at one moment."""

TRIPPED = "it fired 412,000 times a second, and its limit is 100,000: it is off for 40 s"

HEAT = HeatMap(
    "duration_seconds",
    tuple(4**k / 1e6 for k in range(13)),
    tuple(
        tuple(int(900 * math.exp(-((row - 4 - 2 * math.sin(step / 9)) ** 2))) for row in range(14))
        for step in range(60)
    ),
    15.0,
)

PROBES = (
    ProbeStatus(
        *("open_errors", "up", "kretprobe", "kretprobe:do_sys_openat2", "events", "", 1_204_113, 0, 48_112),
        *("a metric takes 'comm'", "Opening a file", COURSE),
        metrics=("opens_total",),
        heat=(HEAT,),
        returns=True,
        stacks=True,
    ),
    ProbeStatus(
        *("vfs_read", "up", "kprobe", "kprobe:vfs_read", "count", "", 92_113_482, 0, 0),
        *("nothing but hits is asked for", "", tuple(reversed(COURSE))),
    ),
    ProbeStatus(
        *("unlink", "up", "kprobe", "kprobe:do_unlinkat", "events", "", 123_456, 12, 122_950),
        *("a metric takes 'path'", "Removing a file", tuple(rate * 100_000 for rate in COURSE), 506),
    ),
    ProbeStatus(
        *("fsync", "down", "call", "call:do_fsync", "", "call:do_fsync: the compiler inlined it."),
        *(None, None, 0),
    ),
    ProbeStatus(
        *("tcp_sendmsg", "tripped", "kprobe", "kprobe:tcp_sendmsg", "", TRIPPED, 9_001_223, 0, 8_812_001),
        *("", "", (*COURSE, 0.0)),
    ),
    ProbeStatus(HOSTILE, "up", "kprobe", HOSTILE, "events", HOSTILE, 1, 0, 1),
)


def family(name: str, value: float, **labels: str) -> Family:
    return Family(name, "gauge", "", tuple(labels), {tuple(labels.values()): value})


FAMILIES = (
    family("kprobe_exporter_build_info", 1, version="0.1.0"),
    family("kprobe_exporter_events_lost_total", 1200, reason="overrun"),
    family("kprobe_exporter_kernel_read_age_seconds", 0.4),
    family("kprobe_opens_total", 7, comm=HOSTILE),
)


@pytest.fixture
def address() -> Iterator[str]:
    """The address of an agent's page; each request finds more hits."""
    hits = 1_204_113

    def snapshot() -> Snapshot:
        nonlocal hits
        hits += 23
        return Snapshot(FAMILIES, (replace(PROBES[0], hits=hits), *PROBES[1:]))

    with serving(Served(create_app(snapshot, lambda: None))) as served:
        yield f"http://127.0.0.1:{served.port}/"


def hits(browser: Chrome) -> int:
    """The first probe's, read at once: the page's script may replace the row between two commands."""
    text = browser.execute_script("return document.querySelector('tbody.up td[data-name=Hits]').innerText")
    return int(text.replace(",", "").replace("Hits", ""))


def picture(
    browser: Chrome, name: str, width: int, height: int, *, dark: bool = False, phone: bool = False
) -> None:
    """Save a screenshot, and assert that the page is no wider than the screen."""
    prefer(browser, "dark" if dark else "light")
    show(browser, width, height, phone=phone)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    assert browser.save_screenshot(str(SCREENSHOTS / f"{name}.png"))


def test_on_a_desk_and_on_a_phone_light_and_dark(address: str, browser: Chrome) -> None:
    browser.get(address)
    assert browser.title == "4 of 6 probes up · kprobe_exporter"
    assert len(browser.find_elements(By.TAG_NAME, "tbody")) == len(PROBES)
    picture(browser, "status", 1000, 800)
    picture(browser, "status-dark", 1280, 800, dark=True)
    picture(browser, "status-phone", 390, 1400, phone=True)
    assert browser.find_element(By.TAG_NAME, "thead").is_displayed() is False
    picture(browser, "status-phone-dark", 390, 1400, dark=True, phone=True)


@pytest.mark.parametrize("width", [WIDTH, 1280])
def test_numbers_and_lines_are_in_line(address: str, browser: Chrome, width: int) -> None:
    browser.get(address)
    show(browser, width, 800)
    rates, counts = browser.execute_script(BOXES, ".rate i", "tbody [data-name=Hits]")
    assert len(rates) == len(counts) == len(PROBES)
    for ((_, rate),), ((_, count),) in zip(rates, counts, strict=True):
        assert abs(rate - count) < 0.5
    lines = browser.execute_script(
        "return [...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect().left)"
    )
    assert len(set(lines)) == 1
    assert browser.execute_script(CLIPPED) == []


def test_a_target_is_whole_or_broken_between_words(address: str, browser: Chrome) -> None:
    browser.get(address)
    for width in (WIDTH, 920, 390):
        show(browser, width, 800)
        (words,) = browser.execute_script(BOXES, "tbody:not(:last-of-type) code")
        assert len(words) > len(PROBES)
        assert {len(boxes) for boxes in words} == {1}


def test_links_have_the_colour_of_the_scheme(address: str, browser: Chrome) -> None:
    browser.get(address)
    for scheme, colour in (("light", "rgb(9, 105, 218)"), ("dark", "rgb(88, 166, 255)")):
        prefer(browser, scheme)
        script = "return [...document.querySelectorAll('a')].map(e => getComputedStyle(e).color)"
        assert set(browser.execute_script(script)) == {colour}


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
    WebDriverWait(browser, 20).until(lambda _: hits(browser) > first)  # now the script has filled the table
    # The page's script replaces the rows, also between two commands of the driver.
    last = "return document.querySelector('tbody:last-of-type td').innerText"
    assert browser.execute_script(last) == HOSTILE
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert "owned" not in browser.title
    assert complaints(browser) == []


@pytest.mark.parametrize("browser", ["no scripts"], indirect=True)
def test_without_javascript(address: str, browser: Chrome) -> None:
    """The page shows everything, and reloads itself."""
    browser.get(address)
    first = hits(browser)
    assert browser.find_element(By.TAG_NAME, "polyline").is_displayed()
    WebDriverWait(browser, 40, ignored_exceptions=[Exception]).until(lambda _: hits(browser) > first)


@pytest.mark.parametrize("number", [0, len(PROBES) - 1], ids=["usual", "hostile"])
def test_the_page_of_a_probe_fits_small_screens(address: str, browser: Chrome, number: int) -> None:
    browser.get(address)
    browser.find_elements(By.CSS_SELECTOR, "td[data-name=Probe] a")[number].click()
    WebDriverWait(browser, 20).until(lambda _: browser.find_elements(By.TAG_NAME, "dl"))
    assert browser.find_element(By.TAG_NAME, "h2").text == PROBES[number].name
    picture(browser, f"probe-{number}", 1000, 800)
    picture(browser, f"probe-{number}-phone", 320, 1000, dark=True, phone=True)
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert complaints(browser) == []


@pytest.mark.parametrize("browser", ["", "no scripts"], indirect=True)
def test_the_page_of_a_probe_is_live(address: str, browser: Chrome) -> None:
    browser.get(f"{address}probe/open_errors")
    first = browser.find_element(By.TAG_NAME, "dl").text
    assert "a metric takes 'comm'" in first
    WebDriverWait(browser, 40, ignored_exceptions=[Exception]).until(
        lambda _: browser.find_element(By.TAG_NAME, "dl").text != first
    )


@pytest.mark.skipif(not os.environ.get("UPDATE_IMAGES"), reason="UPDATE_IMAGES=1 makes the picture anew")
def test_a_picture_for_the_documents(browser: Chrome, tmp_path: Path) -> None:
    with real_agent(tmp_path) as address:
        browser.get(address)
        WebDriverWait(browser, LIMIT, poll_frequency=2).until(
            lambda _: browser.execute_script(POINTS) >= RATES
        )
        prefer(browser, "light")
        browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        show(browser, WIDTH, 100)
        show(browser, WIDTH, browser.execute_script("return document.documentElement.scrollHeight"))
        assert browser.execute_script(CLIPPED) == []
        assert browser.save_screenshot(str(PICTURE))
        assert complaints(browser) == []


@contextmanager
def real_agent(directory: Path) -> Iterator[str]:
    """Yield the address of its page; the agent runs in a VM until the context is left."""
    needs_a_vm()
    for package in ("kprobe_exporter", "tests"):
        compileall.compile_dir(ROOT / package, quiet=2)  # the guest cannot write bytecode
    port = boot.free_port(boot.GUEST_PORT)
    command = [sys.executable, "-m", "tests.e2e.status_guest"]
    limit = round(patience(LIMIT))
    guest = boot.Guest(MAIN, command, directory, limit, port=port)
    log, stop = directory / "log", threading.Event()
    child = Child("status", boot.command(guest), log, limit + 30, boot.environment(), stop)
    running = threading.Thread(target=child.run)
    running.start()
    try:
        eventually(lambda: answers(port) or not running.is_alive(), LIMIT)
        assert running.is_alive(), log.read_text(errors="replace")
        yield f"http://127.0.0.1:{port}/"
    finally:
        stop.set()
        running.join()


def answers(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/-/healthy", timeout=patience(5)):
        return True
    return False
