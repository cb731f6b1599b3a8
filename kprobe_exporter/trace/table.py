"""Draws the table of counts in the lines and columns of a terminal. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kprobe_exporter.errors import one_line
from kprobe_exporter.model.snapshot import HistogramValue
from kprobe_exporter.trace.count import CountRow, CountTable

EIGHTHS = " ▏▎▍▌▋▊▉█"
"""Characters that fill 0 to 8 eighths of a column, from the left."""

HEIGHTS = "▁▂▃▄▅▆▇█"

BAR = 40
"""Columns of the longest bar, where there is room."""

FIGURES = 48
"""Columns of a row to the right of the name."""

MOST_ERRORS = 6

MOST_GROUPS = 20
"""Label sets that are shown."""

BOLD, RED, RESET = "\x1b[1m", "\x1b[31m", "\x1b[0m"

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def draw(table: CountTable, width: int, height: int, *, color: bool) -> list[str]:
    """Return the lines of a table: at most ``height``, each at most ``width`` long."""
    lines = [(_title(table, width), BOLD), *_headed(_rows(table.rows, width, height))]
    if table.rows and table.rows[0].errors:
        lines += [("", ""), (f"errors: {_listed(table.rows[0].errors)}", RED)]
    if table.lost:
        lines += [("", ""), (f"lost: {_listed(table.lost)}", RED)]
    if table.by:
        lines += _headed(_groups(table, height - len(lines) - 2))
    if table.histogram is not None and any(table.histogram.counts):
        room = height - len(lines) - 2
        lines += _headed(_histogram(table.histogram, table.what, width, room))
    cut = [(line[:width], style) for line, style in lines[: max(1, height)]]
    return [f"{style}{line}{RESET}" if color and style and line else line for line, style in cut]


def columns(table: CountTable) -> int:
    """The width at which no name is shortened."""
    return FIGURES + max((len(one_line(row.probe)) for row in table.rows), default=0)


def _headed(lines: Iterable[str]) -> list[tuple[str, str]]:
    """An empty line, a heading and its lines, each with its style."""
    heading, *others = lines
    return [("", ""), (heading, BOLD), *((line, "") for line in others)]


def _title(table: CountTable, width: int) -> str:
    """The trace's title, the sparkline of its rates, and the seconds since the start."""
    left, right = one_line(table.title), f"{table.seconds:.0f} s"
    room = max(0, width - len(left) - len(right) - 4)
    spark = _sparkline(table.rates[-room:] if room else ())
    return f"{left}  {spark:>{room}}  {right}"


def _sparkline(rates: Sequence[float]) -> str:
    most = max(rates, default=0)
    return "".join(HEIGHTS[min(7, int(rate / most * 8))] if most else HEIGHTS[0] for rate in rates)


def _rows(rows: Sequence[CountRow], width: int, height: int) -> Iterator[str]:
    """A line for each probe: its name, shortened if there is no room, and its figures."""
    room = max(5, width - FIGURES)
    names = [_shortened(one_line(row.probe), room) for row in rows]
    wide = max(5, *map(len, names))
    yield f"{'probe':<{wide}}  {'hits/s':>10}  {'hits':>12}  {'errors':>10}  {'missed':>8}"
    most = max(1, height - 6)
    for row, name in list(zip(rows, names, strict=True))[:most]:
        missed = "" if row.missed is None else f"{row.missed:,}"
        errors = sum(row.errors.values())
        yield f"{name:<{wide}}  {row.rate:>10,.0f}  {row.events:>12,}  {errors:>10,}  {missed:>8}".rstrip()
    if len(rows) > most:
        yield f"and {len(rows) - most} more"


def _groups(table: CountTable, room: int) -> Iterator[str]:
    """A line for each of the most frequent label sets."""
    yield f"{'events':>12}  by {', '.join(table.by)}"
    most = max(1, min(MOST_GROUPS, room - 1))
    for values, number in table.groups[:most]:
        yield f"{number:>12,}  {one_line(', '.join(values))}"
    if (more := len(table.groups) - most) > 0:
        yield f"{'':>12}  and {more} more"


def _shortened(name: str, room: int) -> str:
    """Cut the middle out of a name, since the names of one pattern begin or end alike."""
    if len(name) <= room:
        return name
    end = (room - 1) // 2
    return f"{name[: room - 1 - end]}…{name[len(name) - end :]}"


def _listed(counts: Mapping[str, int]) -> str:
    shown = [f"{name} {count:,}" for name, count in list(counts.items())[:MOST_ERRORS]]
    more = [f"and {len(counts) - MOST_ERRORS} more"] if len(counts) > MOST_ERRORS else []
    return ", ".join([*shown, *more])


def _histogram(value: HistogramValue, what: str, width: int, room: int) -> Iterator[str]:
    """A line for each bucket, from the first to the last one that is not empty."""
    filled = [number for number, count in enumerate(value.counts) if count]
    numbers = list(range(filled[0], filled[-1] + 1))
    names = [_bucket(value.bounds, number, what) for number in numbers]
    wide = max(len(what), *map(len, names))
    digits = max(len("count"), *(len(f"{value.counts[number]:,}") for number in numbers))
    yield f"{what:>{wide}}  {'count':>{digits}}"
    longest = max(value.counts)
    bar = max(0, min(BAR, width - wide - digits - 4))
    for number, name in list(zip(numbers, names, strict=True))[: max(0, room)]:
        count = value.counts[number]
        whole, part = divmod(round(count / longest * bar * 8), 8)
        yield f"{name:>{wide}}  {count:>{digits},}  {'█' * whole}{EIGHTHS[part]}".rstrip()


def _bucket(bounds: Sequence[float], number: int, what: str) -> str:
    """The range of a bucket: above the bound before it, up to its own."""
    above_all = number == len(bounds)
    if what == "duration":
        return f"> {_duration(bounds[-1])}" if above_all else f"≤ {_duration(bounds[number])}"
    if above_all:
        return f"> {int(bounds[-1]):,}"
    low = int(bounds[number - 1]) + 1 if number else int(bounds[0])
    high = int(bounds[number])
    return f"{high:,}" if low >= high else f"{low:,} to {high:,}"


def _duration(seconds: float) -> str:
    unit, name = next(((unit, name) for unit, name in UNITS if seconds >= unit), UNITS[-1])
    return f"{seconds / unit:.4g} {name}"
