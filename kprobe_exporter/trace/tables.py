"""The views ``top``, ``counts`` and ``hist`` of a tool: what its metrics grew by, each interval."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from kprobe_exporter.config.model import Probe
from kprobe_exporter.tools.columns import Column, fitted, header, line
from kprobe_exporter.tools.tool_model import Unit, View
from kprobe_exporter.trace.capture import NAMESPACE, collected
from kprobe_exporter.trace.count import ProbeCounts
from kprobe_exporter.trace.facts import ProcessFacts, facts_of
from kprobe_exporter.trace.histograms import histogram_lines, histogram_object
from kprobe_exporter.trace.interval_numbers import Interval, Row, is_label, ordered, table
from kprobe_exporter.trace.loops import Screen, read_hits, run_until_end, wants_color
from kprobe_exporter.trace.output import Gone
from kprobe_exporter.trace.rows import Display, csv_line
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.trace.table import BOLD, RESET

MOST_ROWS = 20
"""Rows of ``top`` without -n."""

LOSSES = ("overrun", "commit_overrun", "dropped")
"""Reasons of lost events that do not include each other."""


NUMBERS = ("pid", "tid", "ppid", "uid", "cpu")
"""Columns that show a label, which is a text, and are numbers in JSON, as they are in rows."""


class TableView:
    """Makes the lines of each interval. It remembers whether the header was written."""

    def __init__(
        self, view: View, columns: Sequence[Column], sort: str | None, unit: Unit | None, shown: Display
    ) -> None:
        self._view, self._columns, self._sort, self._unit, self._shown = view, columns, sort, unit, shown
        self._headed = False
        self.redrawn = view == "top" and shown.form == "text" and shown.width is not None

    def lines(
        self, interval: Interval, histograms: Sequence[str], now: datetime, *, color: bool = False
    ) -> list[str]:
        """Return the lines of an interval, of which ``histograms`` are the names of metrics."""
        made: dict[str, Any] = {"time": now.isoformat(), "seconds": round(interval.seconds, 3)}
        if self._view == "hist":
            found = interval.histograms(histograms)
            if self._shown.form != "text":
                return [json.dumps(made | {"histograms": [histogram_object(one) for one in found]})]
            drawn = histogram_lines(found, self._unit)
            return list(map(self._shown.cut, [*self._stamp(now), *drawn]))
        rows = table(interval, self._columns)
        single = not any(is_label(column, _labels(interval)) for column in self._columns)
        rows = ordered(rows, self._columns, self._sort)[: self._most()]
        if self._shown.form == "json":
            objects = [self._object(row) for row in rows]
            return [json.dumps(made | (objects[0] if single else {"rows": objects}))]
        if self._shown.form == "csv":
            titles = [csv_line(["TIME", *(column.title for column in self._columns)])]
            return [
                *(titles if self._first() else []),
                *(csv_line([made["time"], *self._object(row).values()]) for row in rows),
            ]
        return self._text(rows, now, single=single, color=color)

    def _most(self) -> int | None:
        if self._shown.most is not None:
            return self._shown.most
        return MOST_ROWS if self._view == "top" else None

    def _object(self, row: Row) -> dict[str, Any]:
        return {
            column.key: int(value)
            if column.key in NUMBERS and isinstance(value, str) and value.isdecimal()
            else column.plain(value)
            for column, value in zip(self._columns, row, strict=True)
        }

    def _text(self, rows: Sequence[Row], now: datetime, *, single: bool, color: bool) -> list[str]:
        """Return the lines of a table, or one line below those before if it has no key."""
        texts = [[column.text(one) for column, one in zip(self._columns, row, strict=True)] for row in rows]
        columns = self._columns if single else fitted(self._columns, texts)
        stamp = f"{now:%H:%M:%S} " if single and self._shown.timestamp else ""
        head = self._shown.cut((f"{'TIME':<{len(stamp)}}" if stamp else "") + header(columns))
        head = f"{BOLD}{head}{RESET}" if color else head
        lines = [self._shown.cut(stamp + line(columns, each)) for each in texts]
        if single:  # a line an interval, as vmstat does
            return [head, *lines] if self._first() else lines
        return [*([] if self._first() or self.redrawn else [""]), *self._stamp(now), head, *lines]

    def _first(self) -> bool:
        before, self._headed = self._headed, True
        return not before

    def _stamp(self, now: datetime) -> list[str]:
        return [f"{now:%H:%M:%S}"] if self._shown.timestamp else []


def _labels(interval: Interval) -> set[str]:
    return {label for family in interval.numbers.families for label in family.labels}


def show_tables(
    session: TraceSession,
    probes: Sequence[Probe],
    view: TableView,
    shown: Display,
    *,
    each: bool,
    machine: Callable[[], Mapping[str, int]] = dict,
) -> int:
    """Write what the metrics grew by in each interval, or by the end; return the number of lost events.

    ``each``: only some threads are traced, so that every event has to be recorded. On a terminal ``top`` is
    drawn over the previous one. ``machine`` returns numbers of the machine for columns, at
    the end of an interval.
    """
    counts, out = ProbeCounts(narrowed=False), session.out
    wanted = [replace(probe, aggregate="events") for probe in probes] if each else list(probes)
    histograms = [metric.name for probe in probes for metric in probe.metrics if metric.kind == "histogram"]
    screen = Screen(out, over=view.redrawn)
    before: Interval | None = None
    names = facts_of(label for probe in probes for label in probe.labels)
    facts = ProcessFacts(names, counts.processes, counts.cgroups)
    with collected(session, wanted, counts.consume, facts=facts) as capture:
        counts.attach(capture)
        scales = {spec.name: spec.scale for plan in capture.plans for spec in plan.metrics.metrics}

        def show(passed: float, *, last: bool = False) -> None:
            nonlocal before
            read_hits(session, capture, counts)
            numbers, counted = counts.numbers()
            here = Interval(numbers, counted, passed, before, NAMESPACE, scales, counts.shown, machine())
            before = here._replace(before=None)
            screen.draw(view.lines(here, histograms, datetime.now(UTC).astimezone(), color=wants_color(out)))

        with suppress(Gone):
            show(run_until_end(session, capture, show, interval=shown.interval), last=True)
        numbers, _ = counts.numbers()
    return sum(number for reason, number in numbers.lost.items() if reason in LOSSES)
