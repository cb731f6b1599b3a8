"""The status page: every probe's state and numbers, as HTML that loads nothing from elsewhere."""

import base64
import hashlib
import re
from html import escape

from kprobe_exporter.model.values import WANTED, ProbeStatus, Snapshot

LOST = "kprobe_exporter_events_lost_total"
AGE = "kprobe_exporter_kernel_read_age_seconds"
BUILD = "kprobe_exporter_build_info"
OLD = 10.0
"""Seconds after which the page marks the kernel's own counts as old."""

SPARK_WIDTH, SPARK_HEIGHT = 80, 18

NONE = "–"  # noqa: RUF001
"""Shown where a number does not exist or is unknown."""

_COLUMNS = ("Probe", "State", "Target", "Plan", "Hits/s", "Hits", "Misses", "Events", "Lost")
_NUMBERS = frozenset(("Hits", "Misses", "Events", "Lost"))
_MEANING = {
    "Hits/s": "Firings a second, and their course in the last five minutes",
    "Hits": "Firings, before the filter",
    "Misses": "Firings that the kernel missed",
    "Events": "What came of them one by one, or was added up in the kernel",
    "Lost": "Events that did not come, at most: see below",
}

_NOTE = (
    "<b>Lost</b> A hit is no event where it is the agent's own, still on its way, kept out by a filter, or"
    " lost. The probes share the ring buffers, which do not say whose events they lost: ≤ is the most that a"
    f" probe can have lost, {NONE} is where it makes no events, or where it is unknown."
)

_STYLE = """
:root { color-scheme: light dark; --line: #8884 }
:root { --good: #1a7f37; --bad: #cf222e; --warn: #9a6700; --dim: #59636e; --link: #0969da }
@media (prefers-color-scheme: dark) {
  :root { --good: #3fb950; --bad: #f85149; --warn: #d29922; --dim: #9198a1; --link: #58a6ff }
}
body { margin: 0 auto; padding: 1rem; max-width: 70rem; font: 14px/1.45 system-ui, sans-serif }
header { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline; color: var(--dim) }
h1 { margin: 0; font-size: 1.35rem; color: CanvasText }
nav { margin-left: auto } nav a { margin-left: .75rem }
a, a:visited { color: var(--link); text-decoration: none } a:hover { text-decoration: underline }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0 }
.tile { padding: .5rem .9rem; border: 1px solid var(--line); border-radius: .5rem; color: var(--dim) }
.tile b { display: block; font-size: 1.35rem; color: CanvasText; font-variant-numeric: tabular-nums }
.good b { color: var(--good) } .bad b { color: var(--bad) }
table { width: 100%; border-collapse: collapse }
thead, tbody { border-bottom: 1px solid var(--line) }
th, td { padding: .5rem; text-align: left; vertical-align: baseline }
th:first-child, [data-name=Probe] { padding-left: 0 } th:last-child, td:last-child { padding-right: 0 }
th { color: var(--dim) } th[title] { cursor: help }
th:nth-child(1) { width: 8.5rem } th:nth-child(3) { width: 13rem }
td { overflow-wrap: anywhere; unicode-bidi: isolate }
td > * { unicode-bidi: isolate }
[data-name=Plan] { overflow-wrap: normal }
th, small, p, .more { font-size: 12.5px }
small, p, .more { color: var(--dim) }
.more td { padding-top: 0 }
tr:not(:last-child) td { padding-bottom: .1rem } tr td[rowspan] { padding-bottom: .5rem }
tbody tr:first-child { height: 1px }
p { max-width: 60rem } p b { color: CanvasText }
small { display: block }
code { font: 13px ui-monospace, monospace }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.state { font-weight: 600; white-space: nowrap }
.up .state { color: var(--good) } .down .state { color: var(--bad) }
.disabled .state, .absent .state { color: var(--dim) } .tripped .state { color: var(--warn) }
.rate { display: grid; grid-template-columns: 5rem minmax(max-content, 1fr); gap: .6rem }
.rate i { grid-column: 2; align-self: baseline; text-align: right }
.rate i { font-style: normal; font-variant-numeric: tabular-nums }
svg { grid-row: 1; align-self: center; width: 5rem; height: 1.125rem }
polyline { fill: none; stroke: var(--link); stroke-width: 1.5; vector-effect: non-scaling-stroke }
.stale main { opacity: .5 }
.stale header::after { content: "no answer"; color: var(--bad); font-weight: 600 }
@media (max-width: 56rem) {
  thead { display: none }
  .tile { flex: 1 0 auto }
  table { display: block }
  tbody { display: flex; flex-direction: column; margin: .75rem 0; padding: .5rem .75rem }
  tbody { border: 1px solid var(--line); border-radius: .5rem }
  tr { display: contents }
  tr td { display: grid; grid-template-columns: 4.5rem 1fr; align-items: baseline }
  tr td { padding: .1rem 0; order: 3 }
  td::before { content: attr(data-name); color: var(--dim) }
  td > * { grid-column: 2 }
  .more td { display: block; margin-left: 4.5rem }
  td[data-name=Probe] { order: 1 } td:is([data-name=State], [data-of=State]) { order: 2 }
  td:is([data-name="Hits/s"], .number) { order: 4 }
  .rate { grid-template-columns: 5rem auto; justify-content: start } .rate i:only-child { grid-column: 1 }
  .number { text-align: left; white-space: normal } .rate i { text-align: left }
}
"""

# Updates the page every 2 s and keeps its scroll position. Without scripts, <noscript> reloads it every 10 s.
_SCRIPT = """
setInterval(async () => {
  if (document.hidden) return
  try {
    const answer = await fetch(location.href)
    if (!answer.ok) throw new Error(answer.status)
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html")
    document.querySelector("main").replaceWith(fresh.querySelector("main"))
    document.title = fresh.title
    document.body.classList.remove("stale")
  } catch {
    document.body.classList.add("stale")
  }
}, 2000)
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# The page shows names of processes and files. Should one ever get through the escaping, the browser
# still runs, loads and sends nothing: the hashes allow only our own style and script.
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def render_status(snapshot: Snapshot, telemetry_path: str) -> bytes:
    """Render the whole page; characters that UTF-8 cannot encode become backslash escapes."""
    states = [probe.state for probe in snapshot.probes]
    up, wanted = states.count("up"), sum(state in WANTED for state in states)
    version = next((labels[0] for labels in _samples(snapshot, BUILD)), "")
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<noscript><meta http-equiv="refresh" content="10"></noscript>\n'
        f"<title>{up} of {wanted} probes up · kprobe_exporter</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>kprobe_exporter</h1> {escape(version)}\n"
        f'<nav><a href="{escape(telemetry_path)}">metrics</a>'
        ' <a href="/-/healthy">healthy</a> <a href="/-/ready">ready</a></nav></header>\n'
        f"<main>\n{_summary(snapshot, up, wanted)}"
        f"<table>\n<thead>\n<tr>{''.join(map(_head, _COLUMNS))}</tr>\n</thead>\n"
        f"{''.join(map(_probe, snapshot.probes))}"
        f"</table>\n<p>{_NOTE}</p>\n</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )
    return page.encode("utf-8", "backslashreplace")


def _summary(snapshot: Snapshot, up: int, wanted: int) -> str:
    """Render the tiles: probes up, hits a second, events lost, and the age of the kernel's counts if old."""
    lost = {labels[0]: n for labels, n in _samples(snapshot, LOST).items() if n}
    reasons = ", ".join(f"{reason} {_count(n)}" for reason, n in lost.items())
    lost_text = f"events lost: {reasons}" if lost else "events lost"
    tiles = [
        _tile(f"{up} of {wanted}", "probes up", "good" if up == wanted else "bad"),
        _tile(_rate(sum(probe.rates[-1] for probe in snapshot.probes if probe.rates)), "hits a second"),
        _tile(_count(sum(lost.values())), lost_text, "bad" if lost else "good"),
    ]
    for age in _samples(snapshot, AGE).values():
        if age > OLD:
            ago = "never" if age == float("inf") else f"{age:.0f} s ago"
            tiles.append(_tile(ago, "the kernel's counts were read", "bad"))
    return f'<section class="tiles">{"".join(tiles)}</section>\n'


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
    rate = escape(_rate(probe.rates[-1])) if probe.rates else NONE
    cells = (
        f"<b>{_breakable(probe.name)}</b>{_small(probe.help)}",
        f'<span class="state">{escape(probe.state)}</span>',
        f"<code>{_breakable(probe.target)}</code>{_small(kind)}",
        escape(probe.plan) or NONE,
        f'<span class="rate">{_spark(probe.rates)}<i>{rate}</i></span>',
        _count(probe.hits),
        _count(probe.misses),
        _count(probe.events if probe.events or probe.plan in ("events", "kernel") else None),
        ("≤ " if probe.lost else "") + _count(probe.lost),
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


def _breakable(text: str) -> str:
    """Escape a text and allow line breaks after ``:``, ``_`` and ``/``."""
    return "<wbr>".join(map(escape, re.split(r"(?<=[:_/])", text)))


def _small(text: str) -> str:
    return f"<small>{escape(text)}</small>" if text else ""


def _spark(rates: tuple[float, ...]) -> str:
    """Render the hits a second over time as a line, with the maximum at the upper edge."""
    if len(rates) < 2 or not (most := max(rates)):
        return ""
    step = SPARK_WIDTH / (len(rates) - 1)
    points = " ".join(
        f"{number * step:.1f},{(1 - rate / most) * (SPARK_HEIGHT - 2) + 1:.1f}"
        for number, rate in enumerate(rates)
    )
    return (
        f'<svg viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" role="img">'
        f"<title>at most {_rate(most)} hits a second</title>"
        f'<polyline points="{points}"/></svg>'
    )


def _count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}" if value >= 0.1 else "< 0.1"
