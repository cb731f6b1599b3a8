"""The status page: every probe with its state and numbers, in HTML that needs nothing from anywhere else."""

from collections.abc import Iterable
from html import escape

from kprobe_exporter.export.page import SCRIPT, STYLE
from kprobe_exporter.model import Family, ProbeStatus, Snapshot

LOST = "kprobe_exporter_events_lost_total"
AGE = "kprobe_exporter_kernel_read_age_seconds"
BUILD = "kprobe_exporter_build_info"
OLD = 10.0
"""Seconds after which the kernel's own counts are called old."""

SPARK_WIDTH, SPARK_HEIGHT = 120, 24

_COLUMNS = ("Probe", "State", "Target", "Plan", "Hits/s", "Hits", "Misses", "Events")
_NUMBERS = frozenset(("Hits/s", "Hits", "Misses", "Events"))


def render_status(snapshot: Snapshot, telemetry_path: str) -> bytes:
    """The whole page; a value that is no valid text appears with backslashes."""
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<noscript><meta http-equiv="refresh" content="10"></noscript>\n'
        f"<title>{_title(snapshot)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>kprobe_exporter</h1> {escape(_version(snapshot))}\n"
        f'<nav><a href="{escape(telemetry_path)}">metrics</a>'
        ' <a href="/-/healthy">healthy</a> <a href="/-/ready">ready</a></nav></header>\n'
        f"<main>\n{_summary(snapshot)}"
        f"<table>\n<thead>\n<tr>{_heads()}</tr>\n</thead>\n<tbody>\n"
        f"{''.join(map(_row, snapshot.probes))}"
        f"</tbody>\n</table>\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
    return page.encode("utf-8", "backslashreplace")


def _title(snapshot: Snapshot) -> str:
    up = sum(probe.state == "up" for probe in snapshot.probes)
    return f"{up} of {len(snapshot.probes)} probes up · kprobe_exporter"


def _version(snapshot: Snapshot) -> str:
    return next((labels[0] for labels in _samples(snapshot, BUILD)), "")


def _summary(snapshot: Snapshot) -> str:
    """What a person wants to know first: how much works, how much happens, what was lost."""
    probes = snapshot.probes
    up = sum(probe.state == "up" for probe in probes)
    lost = {labels[0]: n for labels, n in _samples(snapshot, LOST).items() if n}
    tiles = [
        _tile(f"{up} of {len(probes)}", "probes up", "good" if up == len(probes) else "bad"),
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
            told = "never" if age == float("inf") else f"{age:.0f} s ago"
            tiles.append(_tile(told, "the kernel's counts were read", "bad"))
    return f'<section class="tiles">{"".join(tiles)}</section>\n'


def _samples(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], float]:
    """The plain samples of one family."""
    found: Iterable[Family] = (family for family in snapshot.families if family.name == name)
    return {
        labels: value
        for family in found
        for labels, value in family.samples.items()
        if isinstance(value, int | float)
    }


def _tile(value: str, text: str, kind: str = "") -> str:
    return f'<div class="tile {kind}"><b>{escape(value)}</b> {escape(text)}</div>'


def _heads() -> str:
    return "".join(
        f'<th class="number">{name}</th>' if name in _NUMBERS else f"<th>{name}</th>" for name in _COLUMNS
    )


def _row(probe: ProbeStatus) -> str:
    rate = _rate(probe.rates[-1]) if probe.rates else ""
    cells = (
        f"<b>{escape(probe.name)}</b>{_small(probe.help)}",
        f'<span class="state">{escape(probe.state)}</span>{_small(probe.reason)}',
        f"<code>{escape(probe.target)}</code>{_small(probe.kind)}",
        f"{escape(probe.plan)}{_small(probe.because)}",
        f"{_spark(probe.rates)}{rate}",
        _count(probe.hits),
        _count(probe.misses),
        _count(probe.events),
    )
    row = "".join(
        f'<td data-name="{name}"{" class=number" if name in _NUMBERS else ""}>{cell}</td>'
        for name, cell in zip(_COLUMNS, cells, strict=True)
    )
    return f'<tr class="{escape(probe.state)}">{row}</tr>\n'


def _small(text: str) -> str:
    return f"<small>{escape(text)}</small>" if text else ""


def _spark(rates: tuple[float, ...]) -> str:
    """The course of the hits a second, the highest at the upper edge."""
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
    return "" if value is None else f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}" if value >= 0.1 else "< 0.1"
