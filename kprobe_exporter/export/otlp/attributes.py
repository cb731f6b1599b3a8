"""Describes a record for OpenTelemetry: its attributes, its error, and a line that people read.

The names are copied from OpenTelemetry's semantic conventions where these have one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kprobe_exporter.errors import one_line
from kprobe_exporter.model.values import (
    CPU,
    STACK_POINTER,
    TGID,
    TID,
    VALUES,
    Emission,
    Layout,
    Record,
    Value,
    is_error,
)

Attribute: TypeAlias = str | int | float

PROBE, KIND, RETURN_VALUE, ARG = "kprobe.name", "kprobe.kind", "kprobe.return_value", "kprobe.arg."
DURATION = "kprobe.duration"
"""Seconds; of log records only, as a span has its own times."""
FUNCTION, STACKTRACE = "code.function.name", "code.stacktrace"
PROCESS, THREAD, THREAD_NAME, PROCESSOR = "process.pid", "thread.id", "thread.name", "cpu.logical_number"
ERROR = "error.type"

MOST_BYTES = 1024
"""Bytes of a string."""

MOST_FRAMES = 128
"""Frames of a stack."""

LONGEST_LINE = 4096
"""Characters of a log record's body."""


@dataclass(frozen=True, slots=True)
class Described:
    """The properties of an exported probe that are needed to describe its records.

    ``kind`` is the kind of the probe's target. ``pointers`` are the arguments that are addresses: they are
    sent only if ``attributes`` names them, and a returned pointer only if it names ``return``. ``returned``
    extracts the return value from a record, which is negative for an error.
    """

    layout: Layout
    kind: str
    pointers: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    returned: Callable[[Record], Value] | None = None


class Description:
    """Describes the records of one layout. Immutable, so any thread may use it."""

    def __init__(self, described: Described, errno_name: Callable[[int], str | None]) -> None:
        layout = described.layout
        self._errno_name = errno_name
        self._returned = described.returned
        self._returns_pointer = layout.returns is not None and layout.returns.pointer
        self._shows_pointer = "return" in described.attributes
        self._comm = layout.place("comm")
        self.name = layout.symbol
        self.duration = layout.place("duration") if layout.form == "joined" else None
        self._always: dict[str, Attribute] = {PROBE: layout.probe, KIND: described.kind}
        if ":" not in layout.symbol:  # a place without a name and a pair of events have no function
            self._always[FUNCTION] = layout.symbol
        elsewhere = {STACK_POINTER, "comm", "return"} | ({"duration"} if self.duration else set())
        self._args = [
            (place, arg.name, ARG + arg.name, _address if arg.name in described.pointers else plain)
            for place, arg in enumerate(layout.args, VALUES)
            if arg.name not in elsewhere
            and (arg.name not in described.pointers or arg.name in described.attributes)
        ]

    def returned(self, record: Record) -> Value:
        """The record's return value; None if there is none to show."""
        return self._returned(record) if self._returned is not None else None

    def error(self, returned: Value) -> str | None:
        """The name of the error in a return value, or its number; None if the value is no error."""
        if is_error(returned):
            return self._errno_name(-returned) or str(-returned)
        return None

    def attributes(self, emission: Emission, returned: Value, error: str | None) -> dict[str, Attribute]:
        """All attributes of a record. Unreadable and unknown values are left out."""
        record = emission.record
        found = self._always.copy()
        if record[TGID] is not None:
            found[PROCESS] = record[TGID]
        found[THREAD] = record[TID]
        if self._comm is not None and record[self._comm] is not None:
            found[THREAD_NAME] = plain(record[self._comm])
        found[PROCESSOR] = record[CPU]
        shown = self._shown(returned, error)
        if shown is not None:
            found[RETURN_VALUE] = shown
        if error is not None:
            found[ERROR] = error
        for place, _, name, show in self._args:
            value = record[place]
            if value is not None:
                found[name] = show(value)
        if emission.stack:
            found[STACKTRACE] = "\n".join([text(frame) for frame in emission.stack[:MOST_FRAMES]])
        if emission.attributes is not None:
            found.update(emission.attributes)
        return found

    def line(self, attributes: Mapping[str, Attribute], record: Record) -> str:
        """One line: ``vfs_read(count=512) = -5 EIO in 0.031 ms, cat[4711] on CPU 3``."""
        values = [
            f"{name}={_quoted(value)}"
            for _, name, key, _ in self._args
            if (value := attributes.get(key)) is not None
        ]
        parts = [f"{self.name}({', '.join(values)})"]
        if RETURN_VALUE in attributes:
            parts.append(f" = {attributes[RETURN_VALUE]}")
        if ERROR in attributes:
            parts.append(f" {attributes[ERROR]}")
        if self.duration is not None:
            parts.append(f" in {record[self.duration] / 1_000_000:.3f} ms")
        parts.append(f", {attributes.get(THREAD_NAME, '')}[{record[TID]}] on CPU {record[CPU]}")
        return "".join(parts)[:LONGEST_LINE]

    def _shown(self, returned: Value, error: str | None) -> Attribute | None:
        if returned is None:
            return None
        if not self._returns_pointer or error is not None:
            return plain(returned)
        return _address(returned) if self._shows_pointer else None


def plain(value: int | bytes) -> Attribute:
    """A number, as text if it needs more than 63 bits; a string is converted by ``text``."""
    if isinstance(value, bytes):
        return text(value)
    return value if -1 << 63 <= value < 1 << 63 else str(value)


def text(value: bytes) -> str:
    """Decode bytes to text of at most MOST_BYTES; invalid UTF-8 and unprintable characters are escaped."""
    found = one_line(value[: MOST_BYTES + 4].decode(errors="backslashreplace"))
    if len(found) * 4 > MOST_BYTES:
        found = found.encode()[:MOST_BYTES].decode(errors="ignore")
    return found


def _address(value: int | bytes) -> Attribute:
    return hex(value % (1 << 64)) if isinstance(value, int) else text(value)


def _quoted(value: Attribute) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
