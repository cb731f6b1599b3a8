"""Panels of a dashboard drawn as SVG from a Prometheus' answers, for the README and for review."""

import math
from collections.abc import Callable, Sequence
from html import escape
from statistics import pstdev
from typing import NamedTuple

WIDTH, HEIGHT = 480, 264
"""Size of a panel in pixels."""

GAP = 12
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 36, 76
"""Margins of a panel's plot in pixels: room for axes, title and legend."""

LEGEND, ROW = 3, 14
"""Rows of a legend, and the height of a row in pixels."""

LONGEST, MORE = 40, 60
"""Characters of a name that are shown, and pixels for the text that counts the lines left out."""

COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#5fd8d8", "#e4e4ec")
"""Colours that are easy to tell apart; the number of lines in a graph is limited to them."""

HOT = ("#181b1f", "#4a2a12", "#7f3b08", "#b35806", "#e08214", "#fdb863", "#fee0b6")
Points = Sequence[tuple[float, float]]


class Line(NamedTuple):
    """A name, and points: pairs of a time in seconds and a value."""

    name: str
    points: Points


class Name(NamedTuple):
    """A text of the legend, and its position in the panel in pixels."""

    x: float
    y: float
    text: str


def graph(title: str, unit: str, lines: Sequence[Line], *, logarithmic: bool = False) -> str:
    """Lines over time: the largest ones that fit the legend and its colours; the rest is only counted."""
    lines = sorted(lines, key=lambda line: -max(value for _, value in line.points))
    legend, others = _legend([line.name for line in lines])
    lines = lines[: len(legend)]
    values = [value for line in lines for _, value in line.points]
    times = [at for line in lines for at, _ in line.points]
    scale = math.log10 if logarithmic else float
    low = min(values) if logarithmic else 0.0
    x = _scale(min(times), max(times), LEFT, WIDTH - RIGHT)
    high = (_rounded if logarithmic else _upper)(max(values))
    y = _scale(scale(low), scale(high), HEIGHT - BOTTOM, TOP)
    ticks = _logarithmic_ticks(values) if logarithmic else _ticks(max(values))
    drawn = [_frame(title), _seconds(x, min(times), max(times))]
    drawn += [_grid(y(scale(tick)), readable(tick, unit)) for tick in ticks]
    for colour, line in zip(COLOURS, lines, strict=False):
        points = " ".join(f"{x(at):.1f},{y(scale(value)):.1f}" for at, value in line.points)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
    for colour, (left, down, name) in zip(COLOURS, legend, strict=False):
        drawn.append(f'<rect x="{left:.0f}" y="{down - 6:.0f}" width="10" height="4" fill="{colour}"/>')
        drawn.append(_text(left + 14, down, name, 10))
    return "\n".join([*drawn, *(_text(*place, 10) for place in others)])


def lively(lines: Sequence[Line], *, logarithmic: bool = False) -> float:
    """How much happens in a graph: the sum of its lines' standard deviations, divided by its height."""
    scale = math.log10 if logarithmic else float
    drawn = [[scale(value) for _, value in line.points] for line in lines]
    values = [value for line in drawn for value in line]
    height = max(values, default=0) - (min(values, default=0) if logarithmic else 0)
    return sum(pstdev(line) for line in drawn) / height if height else 0.0


def heatmap(title: str, unit: str, buckets: Sequence[Line]) -> str:
    """A histogram over time. ``buckets`` are cumulative, each named by its upper bound."""
    rows = sorted(buckets, key=lambda line: float(line.name))
    times = sorted({at for row in rows for at, _ in row.points})
    counts: list[dict[float, float]] = []
    below: dict[float, float] = {}
    for row in rows:
        here = dict(row.points)
        counts.append({at: here.get(at, 0.0) - below.get(at, 0.0) for at in times})
        below = here
    # Keep one of the empty rows at each end.
    full = [number for number, row in enumerate(counts) if max(row.values()) > 0]
    first, last = max(min(full, default=0) - 1, 0), min(max(full, default=0) + 2, len(rows))
    most = max((count for row in counts for count in row.values()), default=0) or 1
    x = _scale(times[0], times[-1], LEFT, WIDTH - RIGHT)
    bottom = HEIGHT - BOTTOM + ROW * (LEGEND - 1)
    y = _scale(first, last, bottom, TOP)
    wide, high = (WIDTH - LEFT - RIGHT) / len(times), (bottom - TOP) / (last - first)
    drawn = [_frame(title), _seconds(x, times[0], times[-1], bottom)]
    for number in range(first, last):
        if number % max(1, (last - first) // 6) == 0:
            drawn.append(_grid(y(number + 1), readable(float(rows[number].name), unit)))
        for at, count in counts[number].items():
            if count > 0:
                heat = HOT[1 + min(int(len(HOT) * math.sqrt(count / most)), len(HOT) - 2)]
                place = f'x="{min(x(at), WIDTH - RIGHT - wide):.1f}" y="{y(number + 1):.1f}"'
                drawn.append(f'<rect {place} width="{wide:.1f}" height="{high:.1f}" fill="{heat}"/>')
    down = _row(LEGEND - 1)
    drawn.append(_text(LEFT, down, "0", 10))
    for step, heat in enumerate(HOT[1:]):
        place = f'x="{LEFT + 12 + 20 * step}" y="{down - 8:.0f}"'
        drawn.append(f'<rect {place} width="20" height="8" fill="{heat}"/>')
    drawn.append(_text(LEFT + 18 + 20 * len(HOT[1:]), down, readable(most, "short"), 10))
    return "\n".join(drawn)


def number(title: str, text: str, width: float, colour: str) -> str:
    """A panel with one number, ``width`` pixels wide."""
    frame = f'<rect width="{width:.0f}" height="70" rx="3" fill="#181b1f"/>'
    return frame + _text(10, 20, title, 11) + _text(width / 2, 54, text, 26, "middle", colour)


def page(title: str, numbers: Sequence[tuple[str, str, str]], panels: Sequence[str]) -> str:
    """A whole picture: numbers as (title, text, colour) at the top, panels below, two in a row."""
    wide = 2 * WIDTH + 3 * GAP
    high = 42 + 70 + GAP + -(-len(panels) // 2) * (HEIGHT + GAP)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif">',
        f'<rect width="{wide}" height="{high}" rx="6" fill="#111217"/>',
        _text(GAP, 27, title, 16),
    ]
    each = (wide - GAP) / len(numbers) - GAP
    for place, (name, text, colour) in enumerate(numbers):
        drawn.append(_at(GAP + place * (each + GAP), 42, number(name, text, each, colour)))
    for place, panel in enumerate(panels):
        down, right = divmod(place, 2)
        drawn.append(_at(GAP + right * (WIDTH + GAP), 42 + 70 + GAP + down * (HEIGHT + GAP), panel))
    return "\n".join([*drawn, "</svg>"]) + "\n"


def readable(value: float, unit: str) -> str:
    """A value as an axis shows it; ``unit`` is one of Grafana's names."""
    if math.isinf(value):
        return "∞"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s":
        for factor, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if value >= factor or name == "µs":
                return f"{value / factor:.3g} {name}"
    rates = {"cps": " c/s", "eps": " evt/s", "bytes": "B", "Bps": " B/s"}
    for factor, name in ((1e9, " G"), (1e6, " M"), (1e3, " K")):
        if value >= factor:
            return f"{value / factor:.3g}{name}{rates.get(unit, '').lstrip()}"
    return f"{value:.3g}{rates.get(unit, '')}"


def _legend(names: Sequence[str]) -> tuple[list[Name], list[Name]]:
    """The names that fit the legend and its colours, and a text that counts the others, if any."""
    room = WIDTH - RIGHT
    found: list[Name] = []
    left, row = float(GAP), 0
    for number, name in enumerate(names[: len(COLOURS)], 1):
        text = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
        wide = 30 + sum(7.5 if letter.isupper() else 6.2 for letter in text)
        x, down = (left, row) if left + wide <= room else (float(GAP), row + 1)
        if down == LEGEND or (down == LEGEND - 1 and number < len(names) and x + wide + MORE > room):
            break
        found.append(Name(x, _row(down), text))
        left, row = x + wide, down
    if len(found) == len(names):
        return found, []
    x, down = (left, row) if left + MORE <= room else (float(GAP), row + 1)
    return found, [Name(x, _row(down), f"+ {len(names) - len(found)} more")]


def _row(number: int) -> float:
    return HEIGHT - BOTTOM + 36 + ROW * number


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = high - low or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _rounded(value: float, steps: Sequence[int] = (1, 2, 5)) -> float:
    """The smallest number of the form step * 10^n that is not below the value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (*steps, 10) if value <= power * step * (1 + 1e-9))


def _upper(value: float) -> float:
    """The end of an axis from 0: just above the value, and such that a quarter of it is round."""
    return _rounded(value, (1, 2, 3, 4, 5, 6, 8))


def _ticks(most: float) -> list[float]:
    return [_upper(most) * part / 4 for part in range(5)]


def _logarithmic_ticks(values: Sequence[float]) -> list[float]:
    low, high = math.ceil(math.log10(min(values))), math.floor(math.log10(_rounded(max(values))))
    return [10.0**power for power in range(low, high + 1)]


def _frame(title: str) -> str:
    return f'<rect width="{WIDTH}" height="{HEIGHT}" rx="3" fill="#181b1f"/>' + _text(10, 20, title, 12)


def _grid(y: float, label: str) -> str:
    line = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#2c3235"/>'
    return line + _text(LEFT - 6, y + 3, label, 10, "end")


def _seconds(x: Callable[[float], float], first: float, last: float, bottom: float = HEIGHT - BOTTOM) -> str:
    """Marks at round distances from the last point in time."""
    step = max(_rounded((last - first) / 6), 1.0)
    drawn = []
    for number in range(int((last - first) / step) + 1):
        text = f"−{number * step:.0f} s" if number else "now"  # noqa: RUF001
        drawn.append(_text(x(last - number * step), bottom + 16, text, 10, "middle"))
    return "".join(drawn)


def _text(x: float, y: float, text: str, size: int, anchor: str = "start", colour: str = "#ccccdc") -> str:
    place = f'x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}">{escape(text)}</text>'


def _at(x: float, y: float, drawn: str) -> str:
    return f'<g transform="translate({x:.0f} {y:.0f})">\n{drawn}\n</g>'
