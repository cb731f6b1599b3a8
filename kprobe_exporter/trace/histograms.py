"""Draws a histogram in lines of text, as bcc's tools do. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kprobe_exporter.errors import one_line
from kprobe_exporter.model.snapshot import HistogramValue
from kprobe_exporter.tools.tool_model import Unit
from kprobe_exporter.trace.interval_numbers import Histogram

UNITS: Mapping[Unit | None, tuple[float, str]] = {
    "s": (1, "secs"),
    "ms": (1e3, "msecs"),
    "us": (1e6, "usecs"),
    "ns": (1e9, "nsecs"),
    "KB": (1 / 1024, "KB"),
    "MB": (1 / (1 << 20), "MB"),
    "hex": (1, "value"),
    None: (1, "value"),
}
"""The factor of a histogram's bounds, which are in seconds or bytes, and the heading of the ranges."""

STARS = 40
"""Characters of the longest bar."""


def histogram_lines(found: Sequence[Histogram], unit: Unit | None) -> list[str]:
    """Return the lines of all histograms, each below its labels."""
    lines: list[str] = []
    several = len({one.name for one in found}) > 1
    for one in found:
        said = [one.name] if several else []
        said += [f"{name} = {one_line(value) or '-'}" for name, value in one.labels.items()]
        lines += ["", *([", ".join(said)] if said else []), *bars(one.value, unit)]
    return lines


def bars(value: HistogramValue, unit: Unit | None) -> Iterator[str]:
    """Yield a line for each bucket from the first to the last one that is not empty."""
    filled = [number for number, count in enumerate(value.counts) if count]
    factor, heading = UNITS[unit]
    yield f"     {heading:<19} : count     distribution"
    most = max(value.counts)
    for number in range(filled[0], filled[-1] + 1):
        low, high = _range(value.bounds, number, factor)
        count = value.counts[number]
        yield f"{low:>10} -> {high:<10} : {count:<8} |{'*' * (count * STARS // most):<{STARS}}|"


def _range(bounds: Sequence[float], number: int, factor: float) -> tuple[str, str]:
    """Return the least and the greatest value of a bucket, in whole units if the bounds are."""
    scaled = [bound * factor for bound in bounds]
    whole = all(abs(bound - round(bound)) < 1e-6 * max(1, abs(bound)) for bound in scaled)
    texts = [f"{bound:g}" if not whole else str(round(bound)) for bound in scaled]
    high = texts[number] if number < len(bounds) else "..."
    if number == 0:
        return ("0" if bounds[0] >= 0 else "..."), high
    low = texts[number - 1]
    if whole:
        low = str(int(low) + 1 if number == len(bounds) else min(int(low) + 1, int(high)))
    return low, high


def histogram_object(one: Histogram) -> dict[str, Any]:
    """Return a histogram for JSON; ``le`` is null for what is above all bounds."""
    bounds: list[float | None] = [*one.value.bounds, None]
    buckets = [
        {"le": bound, "count": count} for bound, count in zip(bounds, one.value.counts, strict=True) if count
    ]
    count = sum(one.value.counts)
    return {
        "name": one.name,
        "labels": dict(one.labels),
        "count": count,
        "sum": one.value.sum,
        "buckets": buckets,
    }
