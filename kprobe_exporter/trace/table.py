"""Draws the table of counts in the lines and columns of a terminal. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from kprobe_exporter.model.values import HistogramValue
from kprobe_exporter.trace.count import CountRow, CountTable
from kprobe_exporter.trace.output import escaped

EIGHTHS = " ▏▎▍▌▋▊▉█"
"""Characters that fill 0 to 8 eighths of a column, from the left."""

HEIGHTS = "▁▂▃▄▅▆▇█"

BAR = 40
"""Columns of the longest bar, where there is room."""

FIGURES = 48
"""Columns of a row to the right of the name."""

MOST_ERRORS = 6

BOLD, RED, RESET = "\x1b[1m", "\x1b[31m", "\x1b[0m"

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def draw(table: CountTable, width: int, height: int, *, color: bool) -> list[str]:
    """Return the lines of a table: at most ``height``, each at most ``width`` long."""
    lines = [(_title(table, width), BOLD), ("", "")]
    rows = enumerate(_rows(table.rows, width, height))
    lines += [(line, BOLD if number == 0 else "") for number, line in rows]
    if errors := _errors(table.rows):
        lines += [("", ""), (errors, RED)]
    if table.lost:
        lines += [("", ""), (f"lost: {_listed(table.lost)}", RED)]
    if table.histogram is not None and any(table.histogram.counts):
        room = height - len(lines) - 2
        shown = _histogram(table.histogram, table.what, width, room)
        lines += [("", ""), *((line, BOLD if number == 0 else "") for number, line in enumerate(shown))]
    lines = lines[: max(1, height)]
    return [_colored(line[:width], style if color else "") for line, style in lines]


def columns(table: CountTable) -> int:
    """The width at which no name is shortened."""
    return FIGURES + max((len(_name(row)) for row in table.rows), default=0)


def _colored(line: str, style: str) -> str:
    return f"{style}{line}{RESET}" if style and line else line


def _title(table: CountTable, width: int) -> str:
    """The trace's title, the sparkline of its rates, and the seconds since the start."""
    left, right = escaped(table.title).replace("\n", "\\n"), f"{table.seconds:.0f} s"
    room = max(0, width - len(left) - len(right) - 4)
    spark = _sparkline(table.rates[-room:] if room else ())
    return f"{left}  {spark:>{room}}  {right}"


def _sparkline(rates: Sequence[float]) -> str:
    most = max(rates, default=0)
    return "".join(HEIGHTS[min(7, int(rate / most * 8))] if most else HEIGHTS[0] for rate in rates)


def _rows(rows: Sequence[CountRow], width: int, height: int) -> Iterator[str]:
    """A line for each probe: its name, shortened if there is no room, and its figures."""
    room = max(5, width - FIGURES)
    names = [_shortened(_name(row), room) for row in rows]
    wide = max(5, *map(len, names))
    yield f"{'probe':<{wide}}  {'hits/s':>10}  {'hits':>12}  {'errors':>10}  {'missed':>8}"
    most = max(1, height - 6)
    for row, name in list(zip(rows, names, strict=True))[:most]:
        missed = "" if row.missed is None else f"{row.missed:,}"
        errors = sum(row.errors.values())
        yield f"{name:<{wide}}  {row.rate:>10,.0f}  {row.events:>12,}  {errors:>10,}  {missed:>8}".rstrip()
    if len(rows) > most:
        yield f"and {len(rows) - most} more"


def _name(row: CountRow) -> str:
    return escaped(row.probe).replace("\n", "\\n")


def _shortened(name: str, room: int) -> str:
    """Cut the middle out of a name, since the names of one pattern begin or end alike."""
    if len(name) <= room:
        return name
    end = (room - 1) // 2
    return f"{name[: room - 1 - end]}…{name[len(name) - end :]}"


def _errors(rows: Sequence[CountRow]) -> str:
    """The first row's errors by name."""
    return f"errors: {_listed(rows[0].errors)}" if rows and rows[0].errors else ""


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
        drawn = _bar(count / longest * bar)
        yield f"{name:>{wide}}  {count:>{digits},}  {drawn}".rstrip()


def _bar(columns: float) -> str:
    whole, part = divmod(round(columns * 8), 8)
    return "█" * whole + (EIGHTHS[part] if part else "")


def _bucket(bounds: Sequence[float], number: int, what: str) -> str:
    """The range of a bucket: above the bound before it, up to its own."""
    tell = _duration if what == "duration" else _number
    if number == len(bounds):
        return f"> {tell(bounds[-1])}"
    if what == "duration":
        return f"≤ {tell(bounds[number])}"
    low = int(bounds[number - 1]) + 1 if number else int(bounds[0])
    high = int(bounds[number])
    return tell(high) if low >= high else f"{tell(low)} to {tell(high)}"


def _number(value: float) -> str:
    return f"{int(value):,}"


def _duration(seconds: float) -> str:
    unit, name = next(((unit, name) for unit, name in UNITS if seconds >= unit), UNITS[-1])
    return f"{seconds / unit:.4g} {name}"
