"""The positions of values in a binary record, and the layout of a ring buffer's page: frozen values."""

from typing import Literal, NamedTuple, TypeAlias

from kprobe_exporter.model.records import Layout

FieldKind: TypeAlias = Literal[
    "unsigned",
    "signed",
    "char",
    "symbol",
    "text",
    "rest",
    "dynamic",
    "relative",
    "array",
    "texts",
    "vector",
    "comm",
    "program",
]
"""``symbol`` is a kernel address, ``text`` a NUL-terminated string in the record. ``rest`` is one that ends
with the record. ``__data_loc`` (an offset from the record's start) leads to a ``dynamic`` string,
``__rel_loc`` (an offset from the field's end) to a ``relative`` one. ``texts`` is an array of strings.
``vector`` is one up to the first null of the pointers at its guard, which are one more than its strings.
``comm``, the thread's name, is not in the record. ``program`` is a ``dynamic`` path, of which the value is
the name that the kernel gives its thread."""


class Field(NamedTuple):
    """The position of one value in a record: ``offset``, from the record's start, and ``size`` are in bytes.

    ``element`` is the fetch type of an array's elements, which says how they print; ``length`` is their
    number, 0 for other kinds. ``fault``: a dynamic string of length 0 was unreadable. ``network``: the number
    is big-endian. ``guards`` are the offsets of the pointers through which the value was read, 8 bytes each.
    ``next`` is the offset of the record's next dynamic string, 0 without one: the kernel stores strings one
    after another, so a string that ends behind the start of the next one was not stored.
    """

    kind: FieldKind
    offset: int = 0
    size: int = 0
    element: str = ""
    length: int = 0
    fault: bool = False
    network: bool = False
    guards: tuple[int, ...] = ()
    next: int = 0


class Shape(NamedTuple):
    """The binary records of one layout: ``fields`` in the order of the layout's ``args``.

    ``id`` is the event's common_type. ``tid`` and ``caller`` say where those values are. ``size`` is the
    minimum length of a record in bytes. ``of_threads``: its records are those of the buffers of events about
    threads, which have CPUs from OF_THREADS on, and not those of the probes' buffers.
    """

    id: int
    layout: Layout
    fields: tuple[Field, ...]
    tid: Field
    caller: Field | None
    size: int
    of_threads: bool = False


class StackLayout(NamedTuple):
    """The records of ``ftrace/kernel_stack`` or ``user_stack``: their event id, and the addresses' offset.

    ``process`` is the offset of the process' id, which only a program's stack has.
    """

    id: int
    offset: int
    process: int = 0


class StackLayouts(NamedTuple):
    """The records of both kinds of stacks, None for those that the kernel does not have."""

    kernel: StackLayout | None = None
    user: StackLayout | None = None


class Geometry(NamedTuple):
    """The layout of a page of trace_pipe_raw (events/header_page): offsets and sizes in bytes."""

    commit: int
    commit_size: int
    data: int
    page: int
