"""Aggregation in the kernel: the hist triggers that a probe's metrics need. No event is written."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from kprobe_exporter.config.values import Metric, Probe
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.fetch import LONGEST, LONGEST_NAME, FetchArg
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.model.aggregation import RETURN_ERRORS, RETURN_VALUES
from kprobe_exporter.model.hist import HistFeed, HistKey, HistTable, HistUse
from kprobe_exporter.model.values import MAX_ERRNO, ProbeSpec, ReturnType, Unsupported

NO_HIST = "this kernel was built without CONFIG_HIST_TRIGGERS (its events have no hist)"

CPU = HistKey("cpu", "common_cpu", 32)
COMMON = {"cpu": CPU, "tid": HistKey("tid", "common_pid", 32, signed=True)}
"""Keys that hist triggers have for every event (kernel/trace/trace_events_hist.c, parse_field)."""

RENAMED = {"tid": "common_pid", "cpu": "CPU"}
"""The names of the same fields in a filter."""

WIDE_ERRORS = (2**32 - MAX_ERRNO, 2**32 - 1)
"""The error values of a C ``int`` that was read as 64 bits."""

MIN_ROWS, MAX_ROWS = 1 << 7, 1 << 17
"""TRACING_MAP_BITS_MIN and _MAX of kernel/trace/tracing_map.h."""

ROWS = {"cpu": 1 << 10, "log2": MIN_ROWS, "value": 1 << 9}
"""Rows of a table without labels, by kind. Its keys: one per CPU, 65 powers of two, error values."""


HIGH = "b32@32/64"
"""The upper half of 64 bits, as a type of the kernel's (Documentation/trace/kprobetrace.rst)."""

SIZES = frozenset({"size_t", "ssize_t"})
"""Return types whose values are at most MAX_RW_COUNT, below 2^31, so that their sums never overflow."""


def with_upper_halves(args: list[FetchArg], probe: Probe, returns: ReturnType | None) -> list[FetchArg]:
    """Return what the event records with `aggregate: kernel`: also the upper half of each summed argument.

    The kernel's sums have 64 bits, and those of 64-bit values may overflow.
    """
    if probe.aggregate != "kernel":
        return args
    summed = {metric.value for metric in probe.metrics if metric.value is not None}
    if returns is not None and not returns.pointer:
        summed.add("return")
    if returns is not None and returns.name in SIZES:
        summed.discard("return")
    names = {arg.name for arg in args}
    halves = [
        FetchArg(_high(arg.name), arg.expression, HIGH)
        for arg in args
        if arg.name in summed and arg.value_kind == "int" and arg.size == 8 and arg.type != HIGH
    ]
    return [*args, *(half for half in halves if half.name not in names and len(half.body) <= LONGEST)]


def _high(name: str) -> str:
    return f"{name}_high"[:LONGEST_NAME]


def argument_keys(args: list[FetchArg]) -> dict[str, HistKey]:
    """Return the arguments of a probe event that can be keys, and the thread's name if it is recorded."""
    halves = {arg.name for arg in args if arg.type == HIGH}
    keys = {
        arg.name: HistKey(
            arg.name,
            arg.name,
            arg.size * 8,
            arg.signed,
            high=_high(arg.name) if _high(arg.name) in halves else "",
        )
        for arg in args
        if arg.value_kind == "int" and arg.name not in halves
    }
    if any(arg.name == "comm" for arg in args):
        keys["comm"] = HistKey("comm", "comm", 0)
    return keys


def aggregated(
    spec: ProbeSpec,
    probe: Probe,
    only: str | None,
    known: Mapping[str, HistKey],
    names: Mapping[str, str],
    max_series: int,
) -> ProbeSpec | Unsupported:
    """Return the same probe with hist tables in place of events; their conditions contain its filter."""
    try:
        tables = hist_tables(probe, spec.layout.returns, only, known, names, max_series)
    except GrammarError as error:
        return Unsupported(spec.target, error.message)
    return replace(
        spec,
        filter=None,
        plan="kernel",
        because="aggregate: kernel",
        tables=tables,
        tables_count_hits=only is None,
    )


def hist_tables(
    probe: Probe,
    returns: ReturnType | None,
    only: str | None,
    known: Mapping[str, HistKey],
    names: Mapping[str, str],
    max_series: int,
) -> tuple[HistTable, ...]:
    """Return the triggers for a probe's metrics and its return value.

    ``known`` holds the fields of our records that can be keys: plain numbers of the event, and ``comm``.
    ``names`` gives the event's own names for fields. ``only`` is the probe's filter in the event's own
    names; every condition repeats it, because an event's filter does not apply to its hist triggers.
    Raises GrammarError for a field that cannot be a key.
    """
    made = _Tables(only, {**known, **COMMON}, {**names, **RENAMED}, returns, max_series)
    for number, metric in enumerate(probe.metrics):
        made.metric(number, metric)
    if returns is not None and "return" in known:
        made.returned(returns, values=bool(probe.return_buckets))
    return made.all()


class _Tables:
    """Collects the tables of one probe. Equal triggers become one table."""

    def __init__(
        self,
        only: str | None,
        known: Mapping[str, HistKey],
        names: Mapping[str, str],
        returns: ReturnType | None,
        max_series: int,
    ) -> None:
        self.only, self.known, self.names = only, known, names
        self.returns = returns
        self.max_series = max_series
        self.found: dict[tuple[tuple[HistKey, ...], str | None, str | None], HistTable] = {}
        self.whole: list[str] = []  # the triggers that together count each event once

    def metric(self, number: int, metric: Metric) -> None:
        """Add the tables of one metric."""
        labels = [self._key(label.field) for label in metric.labels]
        where = parse_filter(metric.where).rename(self.names).render() if metric.where else None
        if metric.value is None:
            self._add(number, "add", labels, where)
            return
        value = self._key(metric.value)
        wide = metric.value == "return" and self.returns is not None and self.returns.wide
        if metric.kind == "counter":
            self._add(number, "add", labels, where, _at_least_0(value, wide), summed=value)
            if value.signed:
                self._add(number, "negative", [], where, _below_0(value, wide))
            return
        # ``.log2`` loses the sign and puts 0 and 1 into one row, so values of 0 and below get a row each.
        above = self._add(number, "spread", labels, where, _above_0(value, wide), summed=value, log2=True)
        rest = self._add(number, "spread", labels, where, _at_most_0(value, wide), kept=value)
        if where is None and not self.whole:
            self.whole = [above, rest]

    def returned(self, returns: ReturnType, *, values: bool) -> None:
        """Add the built-in metrics of a return value: errors by number, and for ``values`` a histogram."""
        key = self.known["return"]
        if returns.pointer:
            self._add(RETURN_ERRORS, "errors", [], f"{key.name} >= {2**64 - MAX_ERRNO}", kept=key)
            return
        few = _few(key, returns.wide)
        if values:
            self._add(RETURN_VALUES, "spread", [], _above_0(key, returns.wide), summed=key, log2=True)
            self._add(RETURN_VALUES, "spread", [], few, kept=key)
        if key.signed:
            self._add(RETURN_ERRORS, "errors", [], few, kept=key)

    def all(self) -> tuple[HistTable, ...]:
        """Return all tables. One of them, or two complementary ones, count what passes the probe's filter."""
        if not self.whole:
            self._add(0, None, [])
        return tuple(table._replace(passed=table.trigger in self.whole) for table in self.found.values())

    def _add(
        self,
        metric: int,
        use: HistUse | None,
        labels: list[HistKey],
        *conditions: str | None,
        summed: HistKey | None = None,
        kept: HistKey | None = None,
        log2: bool = False,
    ) -> str:
        """Add a table, or another use of an equal one. Returns its trigger."""
        value = summed._replace(log2=True) if summed and log2 else kept
        keys = tuple(dict.fromkeys([*labels, *([value] if value else [])])) or (CPU,)
        own = [condition for condition in conditions if condition]
        parts = [self.only, *own] if self.only else own
        condition = " && ".join(f"({part})" if len(parts) > 1 else part for part in parts) or None
        summed_name = summed.name if summed else None
        kind = "log2" if log2 else "value" if kept else "cpu"
        rows = _rows(labels, kind, self.max_series)
        places = tuple(map(keys.index, labels))
        feeds = (HistFeed(metric, use, places, keys.index(value) if value else 0),) if use else ()
        same = (keys, summed_name, condition)
        before = self.found.get(same)
        if before is not None:
            self.found[same] = before._replace(feeds=before.feeds + feeds)
            return before.trigger
        high = summed.high if summed else ""
        made = self.found[same] = HistTable(keys, summed_name, condition, rows, feeds, high=high)
        if not own:
            self.whole = [made.trigger]
        return made.trigger

    def _key(self, field: str) -> HistKey:
        try:
            return self.known[field]
        except KeyError:
            raise GrammarError(f"its field '{field}' is no plain number, and cannot be counted by") from None


def _rows(labels: list[HistKey], kind: str, max_series: int) -> int:
    """Return the number of rows of a table. The kernel allocates all at once, and never removes a key.

    A metric's table has four times as many rows as the metric may have label sets: values that come and
    go keep their rows, and decoders map many raw values to one label set. A histogram's table has four
    times that again, since the values of a label set seldom fall into more than four powers of two.
    """
    if not labels:
        return ROWS[kind]
    wanted = max_series * (4 if kind == "cpu" else 16)
    return min(MAX_ROWS, next(1 << bits for bits in count(7) if 1 << bits >= min(wanted, MAX_ROWS)))


def _above_0(key: HistKey, wide: bool) -> str:
    return f"{key.name} > 0" + (f" && {_no_wide_error(key)}" if wide else "")


def _at_most_0(key: HistKey, wide: bool) -> str:
    if not key.signed:
        return f"{key.name} == 0"
    return f"{key.name} <= 0" + (f" || ({_wide_error(key)})" if wide else "")


def _at_least_0(key: HistKey, wide: bool) -> str | None:
    if not key.signed:
        return None
    return f"{key.name} >= 0" + (f" && {_no_wide_error(key)}" if wide else "")


def _below_0(key: HistKey, wide: bool) -> str:
    return f"{key.name} < 0" + (f" || ({_wide_error(key)})" if wide else "")


def _few(key: HistKey, wide: bool) -> str:
    """Match 0 and errors. 8-bit fields need no lower bound: the kernel would cut -4095 to their width."""
    if not key.signed or key.bits < 16:
        return _at_most_0(key, wide)
    few = f"{key.name} <= 0 && {key.name} >= -{MAX_ERRNO}"
    return f"({few}) || ({_wide_error(key)})" if wide else few


def _wide_error(key: HistKey) -> str:
    lowest, highest = WIDE_ERRORS
    return f"{key.name} >= {lowest} && {key.name} <= {highest}"


def _no_wide_error(key: HistKey) -> str:
    lowest, highest = WIDE_ERRORS
    return f"({key.name} < {lowest} || {key.name} > {highest})"
