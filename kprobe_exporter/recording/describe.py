"""Records as values of Python, for JSON and timelines: numbers, strings and lists of numbers."""

import re
from collections.abc import Callable
from typing import Any

from kprobe_exporter.aggregate.recipes import getter
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

NUMBERS = re.compile(rb"\{(-?(?:0x)?[0-9a-fA-F]+(?:,-?(?:0x)?[0-9a-fA-F]+)*)\}")
"""An array of numbers as the kernel prints it."""

OF_NUMBERS = re.compile(r"[usxb][0-9][^\[]*\[[0-9]+\]")
"""The type of such an array; arrays of characters, symbols and strings do not match."""


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


def describer(
    event: str, layout: Layout, kind: str = "", target: str = ""
) -> Callable[[Record], dict[str, Any]]:
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
