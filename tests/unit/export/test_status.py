"""The status page against hostile names."""

import base64
import hashlib
import re
from html.parser import HTMLParser

from kprobe_exporter.export.status import CONTENT_SECURITY_POLICY, render_status
from kprobe_exporter.model import ProbeStatus, Snapshot
from tests.unit.export.conftest import HOSTILE, SNAPSHOT


class Page(HTMLParser):
    """Collects the tags, and the text of every cell of the table."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells and self.tags[-1] in ("td", "th", "small"):
            self.cells[-1] += data


def test_every_probe_has_its_row() -> None:
    page = Page(render_status(SNAPSHOT, "/metrics").decode())
    header, good, bad = (page.cells[i : i + 9] for i in (0, 9, 18))
    assert header[0] == "Probe"
    assert [cell.strip() for cell in good] == [
        *("open", "up", "kretprobe", "events", "do_sys_openat2", "23", "0", "23", "")
    ]
    assert [cell.strip() for cell in bad] == [
        *(HOSTILE, "failed", "kprobe", f"{HOSTILE} {HOSTILE}", HOSTILE, "", "", "0", HOSTILE)
    ]
    assert "script" not in page.tags


def test_the_reason_of_a_plan_stands_below_it() -> None:
    probe = ProbeStatus("p", "up", "kprobe", "f", "events", "", 1, 0, 1, "a metric takes <comm>")
    page = render_status(Snapshot((), (probe,)), "/metrics")
    assert b"<td>events <small>a metric takes &lt;comm&gt;</small></td>" in page


def test_a_quote_cannot_leave_an_attribute() -> None:
    page = render_status(Snapshot((), ()), '/x"><script>').decode()
    assert "script" not in Page(page).tags


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = render_status(SNAPSHOT, "/custom").decode()
    assert 'href="/custom"' in page
    assert not re.search(r"\ssrc=|url\(|https?:|@import|<link", page)


def test_the_policy_lets_in_exactly_the_style_of_the_page() -> None:
    page = render_status(SNAPSHOT, "/metrics").decode()
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}';" in CONTENT_SECURITY_POLICY
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none';")
    assert " style=" not in page


def test_a_lone_surrogate_is_shown_with_a_backslash() -> None:
    probe = ProbeStatus("\udcff", "up", "kprobe", "", "", "", 1, 2, 3)
    assert b"<td>\\udcff</td>" in render_status(Snapshot((), (probe,)), "/metrics")
