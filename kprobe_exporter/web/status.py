"""The status page: every probe's state and numbers, as HTML that loads nothing from elsewhere."""

import re
from collections.abc import Iterable
from html import escape

from kprobe_exporter.model.values import WANTED, Family, ProbeStatus, Snapshot
from kprobe_exporter.web.page import SCRIPT, STYLE

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


def render_status(snapshot: Snapshot, telemetry_path: str) -> bytes:
    """Render the whole page; characters that UTF-8 cannot encode become backslash escapes."""
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<noscript><meta http-equiv="refresh" content="10"></noscript>\n'
        f"<title>{_title(snapshot)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>kprobe_exporter</h1> {escape(_version(snapshot))}\n"
        f'<nav><a href="{escape(telemetry_path)}">metrics</a>'
        ' <a href="/-/healthy">healthy</a> <a href="/-/ready">ready</a></nav></header>\n'
        f"<main>\n{_summary(snapshot)}"
        f"<table>\n<thead>\n<tr>{''.join(map(_head, _COLUMNS))}</tr>\n</thead>\n"
        f"{''.join(map(_probe, snapshot.probes))}"
        f"</table>\n<p>{_NOTE}</p>\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
    return page.encode("utf-8", "backslashreplace")


def _title(snapshot: Snapshot) -> str:
    up, wanted = _up(snapshot)
    return f"{up} of {wanted} probes up · kprobe_exporter"


def _up(snapshot: Snapshot) -> tuple[int, int]:
    """Return how many probes are up, and how many are meant to be."""
    states = [probe.state for probe in snapshot.probes]
    return states.count("up"), sum(state in WANTED for state in states)


def _version(snapshot: Snapshot) -> str:
    return next((labels[0] for labels in _samples(snapshot, BUILD)), "")


def _summary(snapshot: Snapshot) -> str:
    """Render the tiles: probes up, hits a second, events lost, and the age of the kernel's counts if old."""
    probes = snapshot.probes
    up, wanted = _up(snapshot)
    lost = {labels[0]: n for labels, n in _samples(snapshot, LOST).items() if n}
    tiles = [
        _tile(f"{up} of {wanted}", "probes up", "good" if up == wanted else "bad"),
        _tile(_rate(sum(probe.rates[-1] for probe in probes if probe.rates)), "hits a second"),
        _tile(
            _count(sum(lost.values())),
            "events lost"
            + (f": {', '.join(f'{reason} {_count(n)}' for reason, n in lost.items())}" if lost else ""),
            "bad" if lost else "good",
        ),
    ]
    for age in _samples(snapshot, AGE).values():
        if age > OLD:
            ago = "never" if age == float("inf") else f"{age:.0f} s ago"
            tiles.append(_tile(ago, "the kernel's counts were read", "bad"))
    return f'<section class="tiles">{"".join(tiles)}</section>\n'


def _samples(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of one family that are plain numbers."""
    found: Iterable[Family] = (family for family in snapshot.families if family.name == name)
    return {
        labels: value
        for family in found
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
        _at_most(probe.lost),
    )
    row = "".join(
        f'<td data-name="{name}"{_span(name, probe)}>{cell}</td>'
        for name, cell in zip(_COLUMNS, cells, strict=True)
    )
    more = _sentence("Plan", probe.because) + _sentence("State", probe.reason)
    return f'<tbody class="{escape(probe.state)}">\n<tr>{row}</tr>\n{more}</tbody>\n'


def _span(name: str, probe: ProbeStatus) -> str:
    """Return a cell's attributes. A cell spans the rows of explanations that begin further right."""
    beside = {
        "Probe": bool(probe.because) + bool(probe.reason),
        "State": bool(probe.because),
        "Target": bool(probe.because),
    }
    if number := beside.get(name, 0):
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


def _at_most(value: int | None) -> str:
    return f"≤ {_count(value)}" if value else _count(value)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}" if value >= 0.1 else "< 0.1"
