"""Events as JSON objects, with values as in the ring buffer and times in nanoseconds, or as text."""

import json
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from kprobe_exporter.aggregate.recipes import getter
from kprobe_exporter.errors import name_text, one_line
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.records import (
    CALLER,
    COMMON_COMM,
    CPU,
    TGID,
    TID,
    TIME,
    VALUES,
    Layout,
    Record,
)
from kprobe_exporter.model.values import Arg, Value, is_error
from kprobe_exporter.trace.record_lines import Frames, Show, TraceClock

NUMBERS = re.compile(rb"\{(-?(?:0x)?[0-9a-fA-F]+(?:,-?(?:0x)?[0-9a-fA-F]+)*)\}")
"""An array of numbers as the kernel prints it."""

OF_NUMBERS = re.compile(r"[usxb][0-9][^\[]*\[[0-9]+\]")
"""The type of such an array; arrays of characters, symbols and strings do not match."""


ShowAs: TypeAlias = Callable[[str, Layout, str, str], Show]
"""Makes the function for the records of a probe: by its name, its layout, and its target's kind and name."""


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


def show_object(event: str, layout: Layout, kind: str, target: str) -> Show:
    """Return the function that makes a JSON object of a record of this layout."""
    described = describer(event, layout, kind, target)

    def show(record: Record, frames: Frames) -> str:
        shown = described(record)
        if frames:
            shown["stack"] = [text(frame) for frame in frames]
        return json.dumps(shown)

    return show


def show_text(event: str, layout: Layout, kind: str, target: str) -> Show:
    """Return the function that makes a line of text of a record of this layout, with its stack below."""
    described, clock = describer(event, layout, kind, target), TraceClock()

    def show(record: Record, frames: Frames) -> str:
        shown = described(record)
        values = [f"{name}={_word(value)}" for name, value in shown["args"].items()]
        values += [f"{name}={shown[name]}" for name in ("return", "error", "caller") if name in shown]
        if "duration_ns" in shown:
            values.append(f"in {shown['duration_ns'] / 1e6:.3f} ms")
        moment = f"{clock.time(record[TIME]):%H:%M:%S.%f}"[:12]
        thread = f"{_word(shown['comm'])}-{shown['tid']}"
        stack = [f"\n        {name_text(frame)}" for frame in frames]
        return one_line(" ".join([moment, f"{event:<20}", f"{thread:<24}", *values])) + "".join(stack)

    return show


def _word(value: object) -> str:
    """Return a value as a word of a line; a text with blanks is quoted."""
    return json.dumps(value) if isinstance(value, str) and (" " in value or not value) else str(value)


def describer(event: str, layout: Layout, kind: str, target: str) -> Callable[[Record], dict[str, Any]]:
    """Return the function that describes a record of this layout."""
    take_return = getter(layout, "return") if layout.place("return") is not None else None
    named = layout.returns is None or layout.returns.errno
    take_comm, comm = getter(layout, COMMON_COMM), layout.place(COMMON_COMM)
    times = ("duration", *layout.steps) if layout.form == "joined" else ()
    take_times = [(f"{name}_ns", getter(layout, name)) for name in times]
    known_caller = layout.caller or layout.form in ("return", "joined")
    elsewhere = {*layout.hidden, "return", *times}
    others = [arg for at, arg in enumerate(layout.args, VALUES) if at != comm and arg.name not in elsewhere]
    args = [(arg.name, getter(layout, arg.name), arg) for arg in others]

    def describe(record: Record) -> dict[str, Any]:
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
        shown |= {name: take(record) for name, take in take_times}
        if take_return is not None:
            returned = shown["return"] = take_return(record)
            if is_error(returned):
                shown["error"] = name_of(-returned) if named else str(returned)
        shown["args"] = {name: json_value(take(record), arg) for name, take, arg in args}
        return shown

    return describe
