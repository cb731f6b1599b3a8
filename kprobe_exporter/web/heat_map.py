"""Heat maps of histograms: a row for each bucket, a cell for each time with its number."""

import math

from kprobe_exporter.model.snapshot import HeatMap
from kprobe_exporter.web.parts import breakable, count

TITLES = {"duration_seconds": "Durations", "return_value": "Return values"}

FAINTEST = 0.2


def render_heat_map(heat: HeatMap) -> str:
    """Render the last minutes of a histogram, from the highest bucket that has anything to the lowest.

    A cell is the darker the more it has, by powers of 2; a pointer shows its number, and each row ends with
    its sum, so that nothing is told by colour alone.
    """
    rows = [[column[row] if column else 0 for column in heat.columns] for row in range(len(heat.bounds) + 1)]
    used = [number for number, row in enumerate(rows) if any(row)]
    if not used:
        return ""
    most = max(map(max, rows))
    minutes = round(len(heat.columns) * heat.seconds / 60)
    last = f"last {minutes} minutes" if minutes > 1 else "last minute"
    lines = (
        f"<dt>{_bucket(heat, number)}</dt>"
        f"<dd>{_strip(heat, rows[number], most)}<i>{count(sum(rows[number]))}</i></dd>\n"
        for number in range(max(used), min(used) - 1, -1)
    )
    title = TITLES.get(heat.kind) or f"<code>{breakable(heat.kind)}</code>"
    return (
        f"<h3>{title}</h3>\n"
        f"<p>The {last}, now at the right: {heat.seconds:.0f} s a cell, at most"
        f" {count(most)} in one. At the end of each row its sum.</p>\n"
        f'<dl class="heat">\n{"".join(lines)}</dl>\n'
    )


def _strip(heat: HeatMap, row: list[int], most: int) -> str:
    """Render one bucket over time."""
    width = len(row)
    cells = "".join(
        f'<rect x="{at}" width="1" height="1" fill-opacity="{_darkness(number, most):.2f}"><title>'
        f"{count(number)}, {(width - at) * heat.seconds:.0f} to {(width - at - 1) * heat.seconds:.0f} s ago"
        "</title></rect>"
        for at, number in enumerate(row)
        if number
    )
    return f'<svg viewBox="0 0 {width} 1" preserveAspectRatio="none" role="img">{cells}</svg>'


def _darkness(number: int, most: int) -> float:
    return FAINTEST + (1 - FAINTEST) * (math.log2(number) / math.log2(most) if most > 1 else 1)


def _bucket(heat: HeatMap, number: int) -> str:
    """Return the upper bound of a bucket, of the last one that it is above all bounds."""
    above = number == len(heat.bounds)
    bound = heat.bounds[number - above]
    in_seconds = heat.kind.endswith("_seconds")
    text = _seconds(bound) if in_seconds else f"{bound:,.6g}" if bound % 1 else count(bound)
    return f"{'&gt;' if above else '≤'} {text}"


def _seconds(bound: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if bound >= size:
            return f"{bound / size:.3g} {unit}"
    return f"{bound * 1e9:.3g} ns"
