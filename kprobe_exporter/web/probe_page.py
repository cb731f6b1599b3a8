"""The page of one probe: how it is attached, its counts, heat maps, errors, cost, and busiest label sets."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from heapq import nlargest
from html import escape
from urllib.parse import quote

from kprobe_exporter.model.snapshot import Family, HistogramValue, LabelValues, ProbeStatus, Snapshot
from kprobe_exporter.web.heat_map import render_heat_map
from kprobe_exporter.web.parts import NONE, breakable, count, document, rate, spark

OVERHEAD = "kprobe_exporter_probe_overhead_seconds_total"
BUSIEST = 10
"""Label sets of a metric that are shown, and errors."""


def render_probe(snapshot: Snapshot, name: str, *, stacks: bool = True) -> bytes | None:
    """Render the page of the probe with this name, None if there is none. ``stacks``: they are served."""
    probe = next((probe for probe in snapshot.probes if probe.name == name), None)
    if probe is None:
        return None
    main = (
        f"<h2>{breakable(probe.name)}</h2>\n{_facts(snapshot, probe)}"
        f"{_worst(snapshot, probe) if probe.worst_of else ''}"
        f"{_stacks(probe) if stacks and probe.stacks else ''}"
        f"{''.join(map(render_heat_map, probe.heat))}"
        f"{_errors(snapshot, probe) if probe.returns else ''}"
        f"{''.join(_metric(family, samples) for family, samples in _metrics(snapshot, probe))}"
    )
    header = '<header><h1>kprobe_exporter</h1>\n<nav><a href="/">all probes</a></nav></header>\n'
    return document(f"{probe.name}: {probe.state}", header, main)


def unknown(snapshot: Snapshot, name: str) -> str:
    """Return the sentence for a name that no probe has, with the nearest names."""
    near = get_close_matches(name, [probe.name for probe in snapshot.probes])
    hint = f"; the nearest are {', '.join(map(repr, near))}" if near else "; / lists all probes"
    return f"there is no probe {name!r}{hint}"


def _facts(snapshot: Snapshot, probe: ProbeStatus) -> str:
    rates = f"{spark(probe.rates)}<i>{escape(rate(probe.rates[-1]))}</i>" if probe.rates else NONE
    rows = (
        ("State", f'<span class="state">{escape(probe.state)}</span>'),
        ("Also tried" if probe.state == "up" else "Reason", escape(probe.reason)),
        ("Help", escape(probe.help)),
        ("Target", f"<code>{breakable(probe.target)}</code>"),
        ("Kind", escape(probe.kind)),
        ("Plan", escape(probe.plan) or NONE),
        ("Why this plan", escape(probe.because)),
        ("Hits a second", f'<span class="rate">{rates}</span>'),
        ("Hits", count(probe.hits)),
        ("Misses", count(probe.misses)),
        ("Events", count(probe.events)),
        ("Lost, at most", count(probe.lost)),
        ("Unpaired", _unpaired(probe)),
        ("Cost", _cost(snapshot, probe)),
    )
    pairs = "".join(f"<dt>{name}</dt><dd>{value}</dd>\n" for name, value in rows if value)
    return f'<dl class="{escape(probe.state)}">\n{pairs}</dl>\n'


def _unpaired(probe: ProbeStatus) -> str:
    if not probe.unpaired:
        return ""
    why = "events without the other one of their call or pair, as at a start"
    return f"{count(probe.unpaired)} {why}"


def _stacks(probe: ProbeStatus) -> str:
    """Return links to the counted stacks, in each form."""
    name = quote(probe.name, safe="")
    return (
        f'<h3>Stacks</h3>\n<p><a href="/stacks/{name}.svg">flame graph</a> · '
        f'<a href="/stacks/{name}">folded text</a> · <a href="/debug/pprof/{name}">pprof profile</a></p>\n'
    )


def _worst(snapshot: Snapshot, probe: ProbeStatus) -> str:
    """Return the largest value of the last minutes with the labels of its event."""
    title = f"<h3>Largest <code>{breakable(probe.worst_of)}</code></h3>\n"
    window = f"in the last {probe.worst_window:,.0f} s"
    if probe.worst is None:
        return f"{title}<p>No event {window}.</p>\n"
    of_time = _of_probe(snapshot, f"{snapshot.namespace}_worst_seconds", probe)
    value = probe.worst.value
    shown = _seconds(value) if of_time else f"{value:,.6g}" if value % 1 else count(value)
    labels = _labels(*zip(*probe.worst.labels, strict=True)) if probe.worst.labels else ""
    at = datetime.fromtimestamp(probe.worst.time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{title}<p>{window}, at {at}:</p>\n<ol>\n<li><b>{shown}</b> {labels}</li>\n</ol>\n"


def _cost(snapshot: Snapshot, probe: ProbeStatus) -> str:
    """Return the estimate of the time that the probe added to threads, also for each hit."""
    seconds = _of_probe(snapshot, OVERHEAD, probe).get((probe.name,))
    if not isinstance(seconds, int | float):
        return ""
    each = f", {seconds / probe.hits * 1e9:,.0f} ns a hit" if probe.hits else ""
    return f"about {_seconds(seconds)} of the time of the threads that hit it{each}"


def _seconds(seconds: float) -> str:
    """Return a time with three digits, in the unit in which it is at least 1."""
    unit, name = next(
        (one for one in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")) if seconds >= one[0]), (1e-9, "ns")
    )
    return f"{seconds / unit:,.3g} {name}"


def _errors(snapshot: Snapshot, probe: ProbeStatus) -> str:
    samples = _of_probe(snapshot, f"{snapshot.namespace}_return_errors_total", probe)
    by_name = {labels[1:]: value for labels, value in samples.items()}
    shown = _busiest(("errno",), by_name) if by_name else "<p>None was counted.</p>\n"
    return f"<h3>Errors</h3>\n{shown}"


def _of_probe(snapshot: Snapshot, name: str, probe: ProbeStatus) -> dict[LabelValues, float | HistogramValue]:
    """Return the samples of a built-in family, whose first label is the probe, that are this probe's."""
    return {
        labels: value
        for family in snapshot.families
        if family.name == name
        for labels, value in family.samples.items()
        if labels[0] == probe.name
    }


def _metrics(
    snapshot: Snapshot, probe: ProbeStatus
) -> Iterable[tuple[Family, Mapping[LabelValues, float | HistogramValue]]]:
    """Yield the probe's built-in histograms, then the metrics that the configuration gives it."""
    builtin = tuple(f"{snapshot.namespace}_{name}" for name in ("duration_seconds", "return_value"))
    configured = {f"{snapshot.namespace}_{name}" for name in probe.metrics}
    for family in snapshot.families:
        if family.name in builtin and (samples := _of_probe(snapshot, family.name, probe)):
            yield family, samples
    for family in snapshot.families:
        if family.name in configured:
            yield family, family.samples


def _metric(family: Family, samples: Mapping[LabelValues, float | HistogramValue]) -> str:
    show = _seconds if family.name.endswith("_seconds") else "{:.3g}".format
    shown = _busiest(family.labels, samples, show) if samples else "<p>No event has fed it yet.</p>\n"
    return f"<h3><code>{breakable(family.name)}</code></h3>\n<p>{escape(family.help)}</p>\n{shown}"


def _busiest(
    names: tuple[str, ...],
    samples: Mapping[LabelValues, float | HistogramValue],
    show: Callable[[float], str] = "{:.3g}".format,
) -> str:
    """Render the samples with the largest numbers, and how many others there are. ``show`` renders a mean."""
    items = "".join(
        f"<li><b>{_value(value, show)}</b> {_labels(names, labels)}</li>\n"
        for labels, value in nlargest(BUSIEST, samples.items(), key=lambda item: _size(item[1]))
    )
    others = len(samples) - BUSIEST
    return f"<ol>\n{items}</ol>\n{f'<p>and {others:,} more</p>' if others > 0 else ''}\n"


def _size(value: float | HistogramValue) -> float:
    return sum(value.counts) if isinstance(value, HistogramValue) else value


def _value(value: float | HistogramValue, show: Callable[[float], str]) -> str:
    if not isinstance(value, HistogramValue):
        return f"{value:,.6g}" if value % 1 else count(value)
    number = sum(value.counts)
    return f"{count(number)}, mean {show(value.sum / number)}" if number else count(number)


def _labels(names: tuple[str, ...], labels: LabelValues) -> str:
    pairs = ", ".join(f"{name}={value}" for name, value in zip(names, labels, strict=True))
    return f"<code>{breakable(pairs)}</code>" if pairs else ""
