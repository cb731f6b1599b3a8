"""The view ``rows`` of a tool: a line an event, with decoded columns, as text, JSON or CSV."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from kprobe_exporter.aggregate.attached_layout import attribute_readers, changes_for
from kprobe_exporter.aggregate.recipes import getter
from kprobe_exporter.aggregate.series import decoded
from kprobe_exporter.config.model import Probe
from kprobe_exporter.errors import name_text
from kprobe_exporter.grammar.formula import DURATION
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.records import TIME, Layout, Record
from kprobe_exporter.model.specs import OF_PROCESS, LabelSpec
from kprobe_exporter.plan.metric import export_condition
from kprobe_exporter.tools.columns import Cell, Column, header, line
from kprobe_exporter.trace.capture import collected
from kprobe_exporter.trace.facts import NUMBERS, FactOf, ProcessFacts, facts_of, place_of
from kprobe_exporter.trace.loops import run_until_end, wants_color
from kprobe_exporter.trace.output import Gone
from kprobe_exporter.trace.record_lines import Frames, Lines, Show, TraceClock
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.trace.table import BOLD, RESET
from kprobe_exporter.tracefs.profile import buffer_stats

Form: TypeAlias = Literal["text", "json", "csv"]
CellOf: TypeAlias = Callable[[Record], Cell]
PROCESS_FIELDS = {"pid": "pid", "common_tgid": "pid", "comm": "name", "common_comm": "name"}
"""Fields that a record lacks if its thread ends at once, and the process's facts in their place."""

STACK_INDENT = "        "


class Display(NamedTuple):
    """How a tool shows its results, as its command line says.

    ``width`` is that of the terminal, None elsewhere. ``most`` is the number of rows, None for all.
    """

    form: Form = "text"
    timestamp: bool = False
    stacks: bool = False
    most: int | None = None
    width: int | None = None
    interval: float | None = None

    def cut(self, text: str) -> str:
        """Return a line that is no longer than the terminal is wide."""
        return text if self.width is None else text[: self.width]


def cells(
    layout: Layout, labels: Sequence[LabelSpec], columns: Sequence[Column], fact: FactOf
) -> list[CellOf | None]:
    """Return how each column's value is read from a record of this layout; None for a field that it lacks."""
    place = {label.name: index for index, label in enumerate(labels)}
    texts = dict(attribute_readers(labels, layout))
    changes = changes_for(labels, layout)

    def of(column: Column) -> CellOf | None:
        if column.of_thread is not None:
            return partial(place_of, DECODERS[column.of_thread](None), fact)
        if column.source == DURATION or column.source in layout.steps:
            return getter(layout, column.source) if layout.form == "joined" else None
        if (index := place.get(column.key)) is None or labels[index].field in layout.absent:
            return None
        label = labels[index]
        text, value, change = texts[column.key], getter(layout, label.field), changes.get(index)
        if label.first in OF_PROCESS:
            return partial(_fact, label, fact, column.factor is not None)
        if label.decoders:
            return text

        def cell(record: Record) -> Cell:
            found = value(record)
            if found is None and (known := PROCESS_FIELDS.get(label.field)) is not None:
                found = fact(record, known) or None
            if change is not None:
                found = change(found)
            return found if isinstance(found, int | float | bytes) else text(record)

        return cell

    return [of(column) for column in columns]


def _fact(label: LabelSpec, fact: FactOf, measured: bool, record: Record) -> Cell:
    """Return a fact of a record's process: a number as it is, else the text that the decoders make of it.

    In a column with a unit, the age is a number, too.
    """
    value = fact(record, label.first)
    if isinstance(value, int) and len(label.decoders) == 1 and (measured or label.first in NUMBERS):
        return value
    return decoded(label, value)[0]


def row_lines(
    layout: Layout,
    labels: Sequence[LabelSpec],
    columns: Sequence[Column],
    shown: Display,
    clock: TraceClock,
    fact: FactOf = lambda record, name: None,
) -> Show:
    """Return the function that makes the line, and the lines of the stack, of a record of this layout."""
    readers = cells(layout, labels, columns, fact)
    took = getter(layout, DURATION) if layout.form == "joined" else None

    def end(record: Record) -> datetime:
        lasted = took(record) if took is not None else 0
        return clock.time(record[TIME] + (lasted if isinstance(lasted, int) else 0))

    def values(record: Record) -> list[Cell]:
        return [None if read is None else read(record) for read in readers]

    def as_text(record: Record, frames: Frames) -> str:
        texts = [column.text(value) for column, value in zip(columns, values(record), strict=True)]
        before = f"{end(record):%H:%M:%S.%f}"[:12] + " " if shown.timestamp else ""
        stack = [f"{STACK_INDENT}{name_text(frame)}" for frame in frames]
        return "\n".join(map(shown.cut, [before + line(columns, texts), *stack]))

    def as_json(record: Record, frames: Frames) -> str:
        made: dict[str, Any] = {"time": end(record).isoformat()}
        made |= {
            column.key: column.plain(value) for column, value in zip(columns, values(record), strict=True)
        }
        if frames:
            made["stack"] = [name_text(frame) for frame in frames]
        return json.dumps(made)

    def as_csv(record: Record, frames: Frames) -> str:
        row = [column.plain(value) for column, value in zip(columns, values(record), strict=True)]
        stack = [";".join(map(name_text, frames))] if shown.stacks else []
        return csv_line([end(record).isoformat(), *row, *stack])

    return {"text": as_text, "json": as_json, "csv": as_csv}[shown.form]


def csv_line(values: Sequence[object]) -> str:
    """Return one line of CSV (RFC 4180) without its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(["" if value is None else value for value in values])
    return text.getvalue()


def heading(columns: Sequence[Column], shown: Display, *, color: bool) -> str | None:
    """Return the line above the rows; None for JSON, which has none."""
    if shown.form == "json":
        return None
    if shown.form == "csv":
        return csv_line(["TIME", *(column.title for column in columns), *(["STACK"] if shown.stacks else [])])
    text = shown.cut(("TIME         " if shown.timestamp else "") + header(columns))
    return f"{BOLD}{text}{RESET}" if color else text


def show_rows(
    session: TraceSession, probes: Sequence[Probe], columns: Sequence[Column], shown: Display
) -> int:
    """Write a line an event until the session ends; return the number of lost events."""
    out = session.out
    lines = Lines(out.write_raw, stacks=shown.stacks, most=shown.most, finished=out.stop.set)
    wanted = [replace(probe, stack=shown.stacks) for probe in probes]
    clock = TraceClock()
    exports = [probe.export for probe in probes if probe.export is not None]
    sent = [label for one in exports for label in one.labels]
    facts = facts_of(sent) | {column.of_thread for column in columns if column.of_thread}
    if any(label.field in PROCESS_FIELDS for label in sent):
        facts |= {"ppid"}  # a process that is followed is known by its id
    with collected(session, wanted, lines.consume, single=True, facts=ProcessFacts(facts)) as capture:
        for plan, attached in zip(capture.plans, capture.attached, strict=True):
            labels, fact = plan.metrics.attributes, capture.facts.of
            show = row_lines(attached.layout, labels, columns, shown, clock, fact)
            only = export_condition(plan.probe.export, plan.probe.times)
            lines.add(attached.layout, show, attached.residual_filter, only)
            if shown.stacks and attached.joined is not None:
                capture.pairing.tell(attached.joined, lines.joined)
        with suppress(Gone):
            if (first := heading(columns, shown, color=wants_color(out))) is not None:
                out.write_raw(f"{first}\n".encode())
            run_until_end(session, capture, lambda passed: None, interval=None)
            lines.finish()
        stats = buffer_stats(session.instance.files, session.instance.path)
    return stats.overrun + stats.dropped
