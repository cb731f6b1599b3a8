"""The status page: what it shows of each probe, and that hostile names are escaped."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from kprobe_exporter.model.snapshot import Family, ProbeStatus, Snapshot
from kprobe_exporter.web.parts import CONTENT_SECURITY_POLICY
from kprobe_exporter.web.status import render_status
from tests.unit.export.conftest import HOSTILE, SNAPSHOT


class Page(HTMLParser):
    """Collects the tags of a page, and the text of every cell of its table."""

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


def test_notice_about_the_whole_agent() -> None:
    page = render_status(Snapshot((), (), notice="<x> is unknown"), "/metrics").decode()
    assert "<b>Notice</b> &lt;x&gt; is unknown" in page
    assert "Notice" not in page_of(probe())


def test_every_probe_has_its_row() -> None:
    page = Page(render_status(SNAPSHOT, "/metrics").decode())
    header, good, bad = (page.cells[i : i + 9] for i in (0, 9, 18))
    names = ("Probe", "State", "Target", "Plan", "Hits/s", "Hits", "Misses", "Events", "Lost")
    assert header == [f"{name}|" for name in names]
    assert good == [
        *("open|", "up|", "do_|sys_|openat2|kretprobe|", "events|"),
        *("–|", "23|", "0|", "23|", "0|"),  # noqa: RUF001
    ]
    assert bad == [
        *(f"{HOSTILE}|", "down|", f"{HOSTILE}|kprobe|", f"{HOSTILE}|"),
        *("–|",) * 5,  # noqa: RUF001
    ]
    assert page.cells[27:] == [f"{HOSTILE}|", f"{HOSTILE}|"]
    assert page.tags.count("script") == 1


def test_sentences_stand_below_what_they_explain() -> None:
    one = ProbeStatus("p", "down", "k", "t", "events", "a <reason>", 1, 0, 1, "takes <comm>", "my <help>")
    page = page_of(one)
    assert (
        '<td data-name="Probe" rowspan="3"><b><a href="/probe/p">p</a></b><small>my &lt;help&gt;</small></td>'
        in page
    )
    assert '<td data-name="State" rowspan="2">' in page
    assert '<tr class="more"><td data-of="Plan" colspan="6">takes &lt;comm&gt;</td></tr>' in page
    assert '<tr class="more"><td data-of="State" colspan="8">a &lt;reason&gt;</td></tr>' in page
    assert ' rowspan="' not in page_of(probe())


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("kprobe:vfs_read", "<code>kprobe:<wbr>vfs_<wbr>read</code></td>"),
        ("eprobe:x", "<code>eprobe:<wbr>x</code><small>kprobe</small>"),
        ("/usr/x", "<code>/<wbr>usr/<wbr>x</code><small>kprobe</small>"),
        ("&_<wbr>:&amp;", "<code>&amp;_<wbr>&lt;wbr&gt;:<wbr>&amp;amp;</code>"),
        ("__", "<code>_<wbr>_<wbr></code>"),
        ("", "<code></code>"),
    ],
)
def test_a_target_is_broken_between_words_and_stays_text(target: str, shown: str) -> None:
    assert shown in page_of(replace(probe(), target=target))


@pytest.mark.parametrize(
    ("plan", "events", "shown"),
    [("events", 0, "0"), ("kernel", 0, "0"), ("count", 0, "–"), ("", 0, "–"), ("", 7, "7")],  # noqa: RUF001
)
def test_events_where_there_are_to_be_any(plan: str, events: int, shown: str) -> None:
    page = page_of(replace(probe(), plan=plan, events=events))
    assert f'<td data-name="Events" class="number">{shown}</td>' in page
    assert ('<td data-name="Plan">–</td>' in page) == (plan == "")  # noqa: RUF001


@pytest.mark.parametrize(("lost", "shown"), [(None, "–"), (0, "0"), (1234, "≤ 1,234")])  # noqa: RUF001
def test_losses_of_a_probe(lost: int | None, shown: str) -> None:
    page = page_of(replace(probe(), lost=lost))
    assert f'<td data-name="Lost" class="number">{shown}</td>' in page
    assert "do not say whose events they lost" in page


def test_unpaired_events_are_told_from_losses() -> None:
    def page(**reasons: int) -> str:
        return page_of(replace(probe(), lost=0, unpaired=2258), families=(lost(**reasons),))

    normal, bad = page(unpaired=2258, overrun=0), page(unpaired=2258, overrun=3)
    assert '<td data-name="Lost" class="number">0<small>2,258 unpaired</small></td>' in normal
    assert '<div class="tile good"><b>0</b> events lost; 2,258 unpaired</div>' in normal
    assert '<div class="tile bad"><b>3</b> events lost: overrun 3; 2,258 unpaired</div>' in bad


def test_rates_are_a_line_and_the_last_one_a_number() -> None:
    page = page_of(probe(rates=(0.0, 50.0, 1234.5)))
    assert '<polyline points="0.0,17.0 40.0,16.4 80.0,1.0"/>' in page
    assert "<title>at most 1,234 hits a second</title>" in page
    assert "</svg><i>1,234</i></span></td>" in page
    assert "1,234</b> hits a second" in page


@pytest.mark.parametrize("rates", [(), (5.0,), (0.0, 0.0)])
def test_no_line_without_a_course(rates: tuple[float, ...]) -> None:
    assert "<svg" not in page_of(probe(rates=rates))


@pytest.mark.parametrize(
    ("rate", "text"), [(0.0, "0"), (0.02, "&lt; 0.1"), (0.25, "0.2"), (9.96, "10.0"), (1e6, "1,000,000")]
)
def test_rates_as_people_read_them(rate: float, text: str) -> None:
    page = page_of(probe(rates=(rate,)))
    assert f"<b>{text}</b> hits a second" in page
    assert f'<span class="rate"><i>{text}</i></span>' in page


def test_losses_by_reason() -> None:
    page = page_of(probe(), families=(lost(overrun=1200, dropped=0, unpaired=3),))
    assert "<b>1,200</b> events lost: overrun 1,200; 3 unpaired</div>" in page
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
