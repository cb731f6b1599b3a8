"""Where a binary record holds its values, and how a page of them is built: frozen values."""

from typing import Literal, NamedTuple, TypeAlias

from kprobe_exporter.model.values import Layout

FieldKind: TypeAlias = Literal[
    "unsigned", "signed", "char", "symbol", "text", "dynamic", "relative", "array", "texts", "comm"
]
"""A number; one character; a kernel address; a NUL-terminated string in the record; one that
``__data_loc`` (counted from the record's start) or ``__rel_loc`` (from behind the field) leads to; an
array; an array of strings; the thread's name, which is not in the record."""


class Field(NamedTuple):
    """Where a record holds one value: ``offset`` and ``size`` in bytes, counted from the record's start.

    ``element`` is the fetch type that an array's elements print by, ``length`` their number (0 where
    the record tells). ``fault``: a dynamic string of no bytes is one that could not be read.
    """

    kind: FieldKind
    offset: int = 0
    size: int = 0
    element: str = ""
    length: int = 0
    fault: bool = False


class Shape(NamedTuple):
    """The binary records of one layout: ``fields`` in the order of the layout's ``args``.

    ``id`` is the event's common_type; ``tid`` and ``caller`` where those are; ``size`` the bytes that a
    record has at the least.
    """

    id: int
    layout: Layout
    fields: tuple[Field, ...]
    tid: Field
    caller: Field | None
    size: int


class Stacks(NamedTuple):
    """The records of ``ftrace/kernel_stack``: their id, and where the return addresses start."""

    id: int
    offset: int


class Geometry(NamedTuple):
    """How a page of trace_pipe_raw is built: events/header_page. Offsets and sizes in bytes."""

    commit: int
    commit_size: int
    data: int
    page: int
