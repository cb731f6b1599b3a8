"""The status page: every probe's state and numbers, as HTML that loads nothing from elsewhere."""

from html import escape
from urllib.parse import quote

from kprobe_exporter.model.snapshot import WANTED, ProbeStatus, Snapshot
from kprobe_exporter.web.parts import NONE, breakable, count, document, rate, spark

LOST = "kprobe_exporter_events_lost_total"
UNPAIRED = "unpaired"
"""The reason of a loss that belongs to normal operation."""

AGE = "kprobe_exporter_kernel_read_age_seconds"
BUILD = "kprobe_exporter_build_info"
OLD = 10.0
"""Seconds after which the page marks the kernel's own counts as old."""

_COLUMNS = ("Probe", "State", "Target", "Plan", "Hits/s", "Hits", "Misses", "Events", "Lost")
_NUMBERS = frozenset(("Hits", "Misses", "Events", "Lost"))
_MEANING = {
    "Hits/s": "Firings a second, and their course in the last five minutes",
    "Hits": "Firings, before the filter",
    "Misses": "Firings that the kernel missed",
    "Events": "Those that arrived one by one, or were added up in the kernel",
    "Lost": "Events that did not come, at most: see below",
}

_NOTE = (
    "<b>Lost</b> A hit is not an event if it is the agent's own, still on its way, kept out by a filter, or"
    " lost. The probes share the ring buffers, which do not say whose events they lost: ≤ is the most that a"
    f" probe can have lost, {NONE} is where it makes no events, or where it is unknown. An <b>unpaired</b>"
    " event is one of a call or a pair without the other one. It is normal if a thread was in the call at"
    " the start or exits in it. So it is if a pair begins anew before it ends."
)


def render_status(snapshot: Snapshot, telemetry_path: str) -> bytes:
    """Render the whole page; characters that UTF-8 cannot encode become backslash escapes."""
    states = [probe.state for probe in snapshot.probes]
    up, wanted = states.count("up"), sum(state in WANTED for state in states)
    version = next((labels[0] for labels in _samples(snapshot, BUILD)), "")
    header = (
        f"<header><h1>kprobe_exporter</h1> {escape(version)}\n"
        f'<nav><a href="{escape(telemetry_path)}">metrics</a>'
        ' <a href="/-/healthy">healthy</a> <a href="/-/ready">ready</a></nav></header>\n'
    )
    main = (
        f"{_summary(snapshot, up, wanted)}"
        f"<table>\n<thead>\n<tr>{''.join(map(_head, _COLUMNS))}</tr>\n</thead>\n"
        f"{''.join(map(_probe, snapshot.probes))}"
        f"</table>\n<p>{_NOTE}</p>\n"
    )
    return document(f"{up} of {wanted} probes up", header, main)


def _summary(snapshot: Snapshot, up: int, wanted: int) -> str:
    """Render the tiles: probes up, hits a second, events lost, and the age of the kernel's counts if old."""
    lost = {labels[0]: n for labels, n in _samples(snapshot, LOST).items() if n}
    unpaired = lost.pop(UNPAIRED, 0)
    reasons = ", ".join(f"{reason} {count(n)}" for reason, n in lost.items())
    lost_text = f"events lost: {reasons}" if lost else "events lost"
    if unpaired:
        lost_text += f"; {count(unpaired)} {UNPAIRED}"
    tiles = [
        _tile(f"{up} of {wanted}", "probes up", "good" if up == wanted else "bad"),
        _tile(rate(sum(probe.rates[-1] for probe in snapshot.probes if probe.rates)), "hits a second"),
        _tile(count(sum(lost.values())), lost_text, "bad" if lost else "good"),
    ]
    for age in _samples(snapshot, AGE).values():
        if age > OLD:
            ago = "never" if age == float("inf") else f"{age:.0f} s ago"
            tiles.append(_tile(ago, "the kernel's counts were read", "bad"))
    notice = f"<p><b>Notice</b> {escape(snapshot.notice)}</p>\n" if snapshot.notice else ""
    return f'<section class="tiles">{"".join(tiles)}</section>\n{notice}'


def _unpaired(probe: ProbeStatus) -> str:
    return f"{count(probe.unpaired)} {UNPAIRED}" if probe.unpaired else ""


def _samples(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of one family that are plain numbers."""
    return {
        labels: value
        for family in snapshot.families
        if family.name == name
        for labels, value in family.samples.items()
        if isinstance(value, int | float)
    }


def _tile(value: str, text: str, kind: str = "") -> str:
    return f'<div class="tile {kind}"><b>{escape(value)}</b> {escape(text)}</div>'


def _head(name: str) -> str:
    title = f' title="{_MEANING[name]}"' if name in _MEANING else ""
    return f"<th{' class=number' if name in _NUMBERS else ''}{title}>{name}</th>"


def _probe(probe: ProbeStatus) -> str:
    """Render a probe's rows: its numbers, why it has this plan, why it is not up or not as configured."""
    # A target begins with its kind. The kind is shown only if the probe was attached in another way.
    kind = "" if probe.target.startswith(f"{probe.kind}:") else probe.kind
    latest = escape(rate(probe.rates[-1])) if probe.rates else NONE
    cells = (
        f"<b>{_link(probe.name)}</b>{_small(probe.help)}",
        f'<span class="state">{escape(probe.state)}</span>',
        f"<code>{breakable(probe.target)}</code>{_small(kind)}",
        escape(probe.plan) or NONE,
        f'<span class="rate">{spark(probe.rates)}<i>{latest}</i></span>',
        count(probe.hits),
        count(probe.misses),
        count(probe.events if probe.events or probe.plan in ("events", "kernel") else None),
        f"{'≤ ' if probe.lost else ''}{count(probe.lost)}{_small(_unpaired(probe))}",
    )
    row = "".join(
        f'<td data-name="{name}"{_span(name, probe)}>{cell}</td>'
        for name, cell in zip(_COLUMNS, cells, strict=True)
    )
    more = _sentence("Plan", probe.because) + _sentence("State", probe.reason)
    return f'<tbody class="{escape(probe.state)}">\n<tr>{row}</tr>\n{more}</tbody>\n'


def _span(name: str, probe: ProbeStatus) -> str:
    """Return a cell's attributes. A cell spans the rows of explanations that begin further right."""
    beside = {"Probe": (probe.because, probe.reason), "State": (probe.because,), "Target": (probe.because,)}
    if number := sum(map(bool, beside.get(name, ()))):
        return f' rowspan="{1 + number}"'
    return ' class="number"' if name in _NUMBERS else ""


def _sentence(column: str, text: str) -> str:
    """Render a row that explains a column and spans all columns from that one on."""
    if not text:
        return ""
    room = len(_COLUMNS) - _COLUMNS.index(column)
    return f'<tr class="more"><td data-of="{column}" colspan="{room}">{escape(text)}</td></tr>\n'


def _small(text: str) -> str:
    return f"<small>{escape(text)}</small>" if text else ""


def _link(name: str) -> str:
    """Return a link to the probe's page. A name that UTF-8 cannot encode has no address, so no link."""
    try:
        return f'<a href="/probe/{quote(name, safe="")}">{breakable(name)}</a>'
    except UnicodeEncodeError:
        return breakable(name)
