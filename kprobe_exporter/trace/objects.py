"""Events as JSON, one object a line: values as in the ring buffer, times in nanoseconds."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from kprobe_exporter.aggregate.recipes import getter, passes
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.records import (
    CALLER,
    COMMON_COMM,
    CPU,
    LAYOUT_ID,
    TGID,
    TID,
    TIME,
    VALUES,
    Batch,
    Layout,
    Record,
)
from kprobe_exporter.model.values import Arg, Value, is_error

NUMBERS = re.compile(rb"\{(-?(?:0x)?[0-9a-fA-F]+(?:,-?(?:0x)?[0-9a-fA-F]+)*)\}")
"""An array of numbers as the kernel prints it."""

OF_NUMBERS = re.compile(r"[usxb][0-9][^\[]*\[[0-9]+\]")
"""The type of such an array; arrays of characters, symbols and strings do not match."""

MOST_WAITING = 4096
"""The largest number of events that wait for their stacks."""

Show: TypeAlias = Callable[[Record], dict[str, Any]]
Frames: TypeAlias = tuple[bytes, ...]


class Objects:
    """Writes a line for each record. With ``stacks``, an event waits for its stack for at most one batch.

    Not thread-safe.
    """

    def __init__(self, write: Callable[[bytes], None], *, stacks: bool) -> None:
        self._write = write
        self._stacks = stacks
        self._shows: dict[int, Show] = {}
        self._passes: dict[int, Callable[[Record], bool]] = {}
        self._waiting: list[Record] = []

    def add(
        self, event: str, layout: Layout, kind: str, target: str, residual_filter: Where | None = None
    ) -> None:
        """Register a layout before its records come. The kernel could not take ``residual_filter``."""
        self._shows[layout.layout_id] = _show(event, layout, kind, target)
        if residual_filter is not None:
            self._passes[layout.layout_id] = passes(layout, residual_filter)

    def consume(self, batch: Batch) -> None:
        """Write the events that are complete."""
        if not self._stacks:
            self._put(batch.records, {})
            return
        frames = {id(record): stack for record, stack in batch.stacks}
        ready = self._waiting
        if len(batch.records) > MOST_WAITING:
            ready, batch.records = ready + batch.records[:-MOST_WAITING], batch.records[-MOST_WAITING:]
        there = [record for record in batch.records if id(record) in frames]
        last = batch.records.index(there[-1]) + 1 if there else 0
        self._waiting = batch.records[last:]
        self._put([*ready, *batch.records[:last]], frames)

    def finish(self) -> None:
        """Write the waiting events: no further stacks will come."""
        self._put(self._waiting, {})
        self._waiting = []

    def _put(self, records: list[Record], frames: Mapping[int, Frames]) -> None:
        lines = []
        for record in records:
            if (let_through := self._passes.get(record[LAYOUT_ID])) and not let_through(record):
                continue
            shown = self._shows[record[LAYOUT_ID]](record)
            if id(record) in frames:
                shown["stack"] = [text(frame) for frame in frames[id(record)]]
            lines.append(json.dumps(shown))
        if lines:
            self._write(("\n".join(lines) + "\n").encode())


def text(value: bytes) -> str:
    """Decode a string; bytes that are not UTF-8 become ``\\xNN``. JSON escapes unprintable characters."""
    return value.decode(errors="backslashreplace")


def json_value(value: Value, arg: Arg) -> object:
    """Return a field for JSON: a number, a string, a list of numbers; None if the kernel could not read it.

    The type in ``arg`` decides, since a string may look like an array.
    """
    if not isinstance(value, bytes):
        return value
    if OF_NUMBERS.fullmatch(arg.type) and (found := NUMBERS.fullmatch(value)):
        return [int(number, 0) for number in found[1].split(b",")]
    return text(value)


def _show(event: str, layout: Layout, kind: str, target: str) -> Show:
    """Return the function that makes an object of a record of this layout."""
    take_return = getter(layout, "return") if layout.place("return") is not None else None
    named = layout.returns is None or layout.returns.errno
    take_comm, comm = getter(layout, COMMON_COMM), layout.place(COMMON_COMM)
    take_duration = getter(layout, "duration") if layout.form == "joined" else None
    known_caller = layout.caller or layout.form in ("return", "joined")
    elsewhere = {*layout.hidden, "return", "duration"}
    others = [arg for at, arg in enumerate(layout.args, VALUES) if at != comm and arg.name not in elsewhere]
    args = [(arg.name, getter(layout, arg.name), arg) for arg in others]

    def show(record: Record) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "time_ns": record[TIME],
            "event": event,
            "kind": kind,
            "target": target,
            "cpu": record[CPU],
            "tid": record[TID],
            "pid": record[TGID],
            "comm": json_value(take_comm(record), Arg("comm", "comm")),
        }
        if known_caller and record[CALLER] is not None:
            shown["caller"] = text(record[CALLER])
        if take_duration is not None:
            shown["duration_ns"] = take_duration(record)
        if take_return is not None:
            returned = shown["return"] = take_return(record)
            if is_error(returned):
                shown["error"] = name_of(-returned) if named else str(returned)
        shown["args"] = {name: json_value(take(record), arg) for name, take, arg in args}
        return shown

    return show
