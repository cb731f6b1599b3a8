"""The positions at which the engine finds the values of a record, and the way from its raw keys to these
values."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from kprobe_exporter.model.aggregation import RECORDED_STACK
from kprobe_exporter.model.record_layout import Field, Shape
from kprobe_exporter.model.records import PREVIOUS, VALUES, Layout
from kprobe_exporter.model.specs import PROCESS
from kprobe_exporter.source.values import ADDRESS, Names, Read, program_name, reader

MAX_GUARDS = 16
"""Pointers through which one value is read (MAX_GUARDS of engine.h)."""

THREAD_FIELDS = frozenset({"tid", "pid", "common_pid", "common_tgid", PROCESS})
"""Fields that are the thread's id in a record, or are looked up by it."""

READ_BY_ENGINE = frozenset({"unsigned", "signed", "text", "dynamic", "relative"})
"""The kinds of fields that the engine reads as they are."""

Resolve: TypeAlias = Callable[[Any], Any]
"""Turns a raw part of a key into what a record would hold."""


class FieldRef(NamedTuple):
    """A ``struct field_ref`` of engine.h, with the names of its enumerators in lower case."""

    kind: str = "missing"
    offset: int = 0
    size: int = 0
    error_form: str = "as_read"
    unreadable_if_empty: bool = False
    network: bool = False
    second: bool = False
    guards: tuple[int, ...] = ()
    next: int = 0


class JoinedShape(NamedTuple):
    """The shapes of both halves of a joined record, and its layout.

    A joined record has its thread and its CPU from the first half, and its caller from the second. Each
    argument comes from the first half that has it. If both halves are of one event, it has all from the
    second, and those of the first as ``previous_NAME``.
    """

    layout: Layout
    first: Shape
    second: Shape

    def half_with(self, name: str) -> tuple[Shape, str, bool] | None:
        """Return the half with a field, its name there, and whether it is the second half.

        Return None if the joined record has it of neither.
        """
        again = self.first is self.second
        if name == "caller" or (again and self.first.layout.place(name) is not None):
            return self.second, name, True
        if name in ("cpu", "common_cpu") or name in THREAD_FIELDS:
            return self.first, name, again
        if self.layout.place(name) is None or name == "duration" or name in self.layout.steps:
            return None
        if again:
            return self.first, name.removeprefix(PREVIOUS), False
        second = self.first.layout.place(name) is None
        return self.second if second else self.first, name, second


def field_ref(field: Field) -> FieldRef:
    """Return where a field is. Raises ValueError."""
    if len(field.guards) > MAX_GUARDS:
        raise ValueError("a field was read through too many pointers")
    return FieldRef(
        field.kind if field.kind in READ_BY_ENGINE else "complex",
        field.offset,
        field.size,
        unreadable_if_empty=field.fault,
        network=field.network and sys.byteorder == "little",
        guards=field.guards,
        next=field.next,
    )


def argument_ref(shape: Shape, name: str) -> FieldRef:
    """Return where an argument is as it was recorded. Its kind is ``missing`` without such an argument."""
    field = _argument(shape, name)
    if field is None:
        return FieldRef()
    ref = field_ref(field)
    kinds = {"comm": "tid", "program": "dynamic", "char": "unsigned", "symbol": "unsigned", "array": "bytes"}
    return ref._replace(kind=kinds.get(field.kind, ref.kind))


def named_ref(shape: Shape | JoinedShape, name: str) -> FieldRef:
    """Return where a record has the field of a name. Its kind is ``missing`` if the record lacks it."""
    if name == RECORDED_STACK:
        return FieldRef("stack")
    if isinstance(shape, JoinedShape):
        return _joined_ref(shape, name)
    if shape.layout.place(name) is not None:
        ref = argument_ref(shape, name)
        return ref._replace(error_form=_error_form(shape.layout)) if name == "return" else ref
    if name == "caller" and shape.caller is not None:
        return FieldRef("unsigned", shape.caller.offset, shape.caller.size)
    of_record = {"cpu": "cpu", "common_cpu": "cpu", **dict.fromkeys(THREAD_FIELDS, "tid")}
    return FieldRef(of_record.get(name, "missing"))


def look_up(shape: Shape | JoinedShape, name: str, names: Names) -> tuple[Read, bool] | None:
    """Return how a record's value is looked up, and whether it is of the second half; None if it is read.

    It is looked up for the half that has it, as a record would hold it.
    """
    if shape.layout.place(name) is None and name == "symbol":
        symbol = shape.layout.symbol.encode()
        return lambda data, start, end, tid: symbol, False
    if isinstance(shape, JoinedShape):
        half = shape.half_with(name)
        found = None if half is None else look_up(half[0], half[1], names)
        return found and half and (found[0], half[2])
    field = _argument(shape, name)
    if field is not None:
        return None if field.kind in READ_BY_ENGINE else (reader(field, names), False)
    of_record: dict[str, Read] = {
        "pid": lambda data, start, end, tid: names.tgid(tid),
        "common_tgid": lambda data, start, end, tid: names.tgid(tid),
        PROCESS: lambda data, start, end, tid: names.tgid(tid) or tid,
    }
    if (caller := shape.caller) is not None:
        of_record["caller"] = lambda data, start, end, tid: names.caller(
            ADDRESS.unpack_from(data, start + caller.offset)[0]
        )
    find = of_record.get(name)
    return find and (find, False)


def _joined_ref(shape: JoinedShape, name: str) -> FieldRef:
    layout = shape.layout
    if layout.place("duration") is not None and name == "duration":
        return FieldRef("elapsed")
    if name in layout.steps:
        return FieldRef("step", 8 * (len(layout.steps) - layout.steps.index(name)))
    found = shape.half_with(name)
    if found is None:
        return FieldRef()
    half, own, second = found
    return named_ref(half, own)._replace(
        second=second,
        error_form=_error_form(layout) if name == "return" else "as_read",
    )


def resolver(shape: Shape | JoinedShape, name: str, names: Names) -> Resolve | None:
    """Return how a raw key becomes what a record would hold, None if both are the same."""
    field = None if isinstance(shape, JoinedShape) else _argument(shape, name)
    if field is None and name == "symbol":
        symbol = shape.layout.symbol.encode()
        return lambda _: symbol
    if isinstance(shape, JoinedShape):
        found = shape.half_with(name)
        return None if found is None else resolver(found[0], found[1], names)
    if field is not None:
        resolvers: dict[str, Resolve] = {
            "comm": names.comm,
            "program": program_name,
            "symbol": names.symbol,
            "char": lambda value: bytes([value]),
        }
        return _array(field, names) if field.kind == "array" else resolvers.get(field.kind)
    if name in ("pid", "common_tgid"):
        return names.tgid
    if name == PROCESS:
        return lambda tid: names.tgid(tid) or tid
    return names.caller if name == "caller" and shape.caller is not None else None


def _array(field: Field, names: Names) -> Resolve:
    """Return how the bytes of an array become the kernel's text."""
    read = reader(field._replace(offset=0, guards=()), names)
    return lambda value: None if value is None else read(value, 0, len(value), 0)


def _argument(shape: Shape, name: str) -> Field | None:
    """Return where the records hold an argument, None if they do not have it."""
    place = shape.layout.place(name)
    return None if place is None else shape.fields[place - VALUES]


def _error_form(layout: Layout) -> str:
    """Return how an error in a return value of this layout is made negative."""
    if layout.returns is None:
        return "as_read"
    return "of_32_bits" if layout.returns.wide else "as_pointer" if layout.returns.pointer else "as_read"
