"""The flame graph in a real browser: read without scripts, enlarged and searched with them; hostile names."""

from collections.abc import Iterator
from functools import partial

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from kprobe_exporter.model.snapshot import Snapshot
from kprobe_exporter.model.stacks import Profile, Weight
from kprobe_exporter.web.routes import create_app
from tests.support.browser import SCREENSHOTS, complaints, show
from tests.support.web_target import Served, serving

HOSTILE = b"</text></svg><script>document.title='owned'</script><image href=x onerror=\"alert(1)\"/>]]>"
STACKS = {
    (b"vfs_read", b"ksys_read", b"do_syscall_64"): Weight(30, 0),
    (b"vfs_write", b"ksys_write", b"do_syscall_64"): Weight(50, 0),
    (HOSTILE, b"kthread"): Weight(20, 0),
}
SHOWN = """
const shown = [...document.querySelectorAll('.f')].filter(e => e.style.display !== 'none')
return shown.map(e => e.dataset.n)
"""


@pytest.fixture
def address() -> Iterator[str]:
    profile = Profile("open", None, STACKS, 3, 0, 10**9)
    app = create_app(lambda: Snapshot((), ()), lambda: None, profile=lambda name: profile)
    with serving(Served(app)) as served:
        yield f"http://127.0.0.1:{served.port}/stacks/open.svg"


def said(browser: Chrome) -> str:
    return browser.find_element(By.ID, "said").text


@pytest.mark.parametrize("browser", ["scripts", "no scripts"], indirect=True)
def test_it_is_read_without_scripts(address: str, browser: Chrome) -> None:
    browser.get(address)
    show(browser, 800, 400)
    boxes = browser.find_elements(By.CLASS_NAME, "f")
    widths = {box.get_attribute("data-n"): box.rect["width"] for box in boxes}
    assert widths["do_syscall_64"] == pytest.approx(0.8 * widths["all"], abs=1)
    assert widths["vfs_read"] == pytest.approx(0.3 * widths["all"], abs=1)
    text = browser.find_element(By.TAG_NAME, "svg").text
    for part in (
        "open: kernel stacks by hits",
        "100 hits in 3 stacks; counted for 1 s; 3 hits lost",
        "vfs_write",
    ):
        assert part in text
    assert browser.title != "owned"
    assert complaints(browser) == []
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    assert browser.save_screenshot(str(SCREENSHOTS / "flame.png"))


def test_a_click_or_enter_enlarges_a_function(address: str, browser: Chrome) -> None:
    browser.get(address)
    everything = browser.execute_script(SHOWN)
    assert len(everything) == 8
    [ksys_write] = [
        box
        for box in browser.find_elements(By.CLASS_NAME, "f")
        if box.get_attribute("data-n") == "ksys_write"
    ]
    whole = browser.find_element(By.CLASS_NAME, "f").rect["width"]
    way_back = browser.find_element(By.ID, "whole")
    escape = partial(browser.find_element(By.CLASS_NAME, "f").send_keys, Keys.ESCAPE)
    for act, back in (
        (ksys_write.click, way_back.click),
        (lambda: ksys_write.send_keys(Keys.ENTER), escape),
    ):
        assert not way_back.is_displayed()
        act()
        assert browser.execute_script(SHOWN) == ["all", "do_syscall_64", "ksys_write", "vfs_write"]
        assert ksys_write.rect["width"] == pytest.approx(whole, abs=1)
        back()
        assert browser.execute_script(SHOWN) == everything
    assert complaints(browser) == []


def test_link_leads_to_the_page_of_the_probe(address: str, browser: Chrome) -> None:
    browser.get(address)
    browser.find_element(By.TAG_NAME, "a").click()
    assert browser.current_url.endswith("/probe/open")


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("^vfs_", "2 frames, 80.0 %"),
        ("read|do_sys", "4 frames, 100.0 %"),
        ("(", "This is not a regular expression."),
        ("", ""),
    ],
)
def test_a_search(address: str, browser: Chrome, asked: str, answer: str) -> None:
    browser.get(address)
    browser.find_element(By.ID, "find").click()
    alert = WebDriverWait(browser, 20).until(lambda driver: driver.switch_to.alert)
    alert.send_keys(asked)
    alert.accept()
    WebDriverWait(browser, 20).until(lambda driver: said(driver) == answer)
    assert complaints(browser) == []
