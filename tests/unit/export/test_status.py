"""The status page: what it shows of each probe, and that hostile names stay names."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from kprobe_exporter.export.page import CONTENT_SECURITY_POLICY
from kprobe_exporter.export.status import render_status
from kprobe_exporter.model import Family, ProbeStatus, Snapshot
from tests.unit.export.conftest import HOSTILE, SNAPSHOT


class Page(HTMLParser):
    """Collects the tags, and the text of every cell of the table."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.cells[-1] += f"{data}|" if data.strip() else ""


def page_of(*probes: ProbeStatus, families: tuple[Family, ...] = ()) -> str:
    return render_status(Snapshot(families, probes), "/metrics").decode()


def probe(name: str = "p", rates: tuple[float, ...] = ()) -> ProbeStatus:
    return ProbeStatus(name, "up", "kprobe", "kprobe:f", "events", "", 1, 0, 1, rates=rates)


def lost(**reasons: int) -> Family:
    return Family(
        "kprobe_exporter_events_lost_total",
        "counter",
        "",
        ("reason",),
        {(reason,): number for reason, number in reasons.items()},
    )


def test_every_probe_has_its_row() -> None:
    page = Page(render_status(SNAPSHOT, "/metrics").decode())
    header, good, bad = (page.cells[i : i + 8] for i in (0, 8, 16))
    assert header == ["Probe|", "State|", "Target|", "Plan|", "Hits/s|", "Hits|", "Misses|", "Events|"]
    assert good == ["open|", "up|", "do_sys_openat2|kretprobe|", "events|", "", "23|", "0|", "23|"]
    assert bad == [
        *(f"{HOSTILE}|", f"failed|{HOSTILE}|", f"{HOSTILE}|kprobe|", f"{HOSTILE}|{HOSTILE}|"),
        *("", "", "", "0|"),
    ]
    assert page.tags.count("script") == 1


def test_help_reason_and_why_stand_below() -> None:
    one = ProbeStatus("p", "failed", "k", "t", "events", "a <reason>", 1, 0, 1, "takes <comm>", "my <help>")
    page = page_of(one)
    assert "<b>p</b><small>my &lt;help&gt;</small>" in page
    assert '<span class="state">failed</span><small>a &lt;reason&gt;</small>' in page
    assert "events<small>takes &lt;comm&gt;</small>" in page


def test_rates_are_a_line_and_the_last_one_a_number() -> None:
    page = page_of(probe(rates=(0.0, 50.0, 1234.5)))
    assert '<polyline points="0.0,23.0 60.0,22.1 120.0,1.0"/>' in page
    assert "<title>at most 1,234 hits a second</title>" in page
    assert "</svg>1,234</td>" in page
    assert "1,234</b> hits a second" in page


@pytest.mark.parametrize("rates", [(), (5.0,), (0.0, 0.0)])
def test_no_line_without_a_course(rates: tuple[float, ...]) -> None:
    assert "<svg" not in page_of(probe(rates=rates))


@pytest.mark.parametrize(
    ("rate", "text"), [(0.0, "0"), (0.02, "&lt; 0.1"), (0.25, "0.2"), (9.96, "10.0"), (1e6, "1,000,000")]
)
def test_rates_as_people_read_them(rate: float, text: str) -> None:
    assert f"<b>{text}</b> hits a second" in page_of(probe(rates=(rate,)))


def test_losses_by_reason() -> None:
    page = page_of(probe(), families=(lost(overrun=1200, dropped=0, unpaired=3),))
    assert "<b>1,203</b> events lost: overrun 1,200, unpaired 3</div>" in page
    assert "<b>0</b> events lost</div>" in page_of(probe(), families=(lost(overrun=0),))


@pytest.mark.parametrize(("age", "told"), [(12.0, "12 s ago"), (float("inf"), "never"), (9.0, None)])
def test_old_counts_are_called_old(age: float, told: str | None) -> None:
    family = Family("kprobe_exporter_kernel_read_age_seconds", "gauge", "", (), {(): age})
    assert (f"<b>{told}</b>" in page_of(families=(family,))) == (told is not None)


def test_a_quote_cannot_leave_an_attribute() -> None:
    page = render_status(Snapshot((), ()), '/x"><script>').decode()
    assert Page(page).tags.count("script") == 1


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = render_status(SNAPSHOT, "/custom").decode()
    assert 'href="/custom"' in page
    assert not re.search(r"\ssrc=|url\(|https?:|@import|<link", page)


def test_the_policy_lets_in_exactly_the_style_and_the_script_of_the_page() -> None:
    page = render_status(SNAPSHOT, "/metrics").decode()
    for tag in ("style", "script"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in CONTENT_SECURITY_POLICY
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none';")
    assert " style=" not in page


def test_a_lone_surrogate_is_shown_with_a_backslash() -> None:
    assert "<b>\\udcff</b>" in page_of(probe("\udcff"))
