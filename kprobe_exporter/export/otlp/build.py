"""Builds encoded spans and log records from the selected records, directly and without a tracer.

The names of attributes are copied from OpenTelemetry's semantic conventions where these have one.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from kprobe_exporter import __version__
from kprobe_exporter.errors import name_text
from kprobe_exporter.export.otlp.clock import WallClock
from kprobe_exporter.export.otlp.encode import Attribute, log_record, span
from kprobe_exporter.model.records import (
    COMMON_COMM,
    CPU,
    LAYOUT_ID,
    TGID,
    TID,
    TIME,
    VALUES,
    Emission,
    Layout,
    Record,
)
from kprobe_exporter.model.values import Arg, Value, is_error

PROBE, KIND, RETURN_VALUE, ARG = "kprobe.name", "kprobe.kind", "kprobe.return_value", "kprobe.arg."
DURATION = "kprobe.duration"
"""Seconds; of log records only, as a span has its own times."""
FUNCTION, STACKTRACE = "code.function.name", "code.stacktrace"
PROCESS, THREAD, THREAD_NAME, PROCESSOR = "process.pid", "thread.id", "thread.name", "cpu.logical_number"
ERROR = "error.type"

IN_LINES: Mapping[str, str] = {
    PROBE: "probe",
    KIND: "kind",
    FUNCTION: "function",
    PROCESS: "pid",
    THREAD: "tid",
    THREAD_NAME: "comm",
    PROCESSOR: "cpu",
    RETURN_VALUE: "return",
    ERROR: "error",
    STACKTRACE: "stack",
}
"""Names of attributes to those in lines of JSON; others, as the pod's, have the same name there."""

MOST_BYTES, MOST_FRAMES, LONGEST_LINE = 1024, 128, 4096
"""Bytes of a string, frames of a stack, and characters of a log record's body."""

HIT = "kprobe.hit"
"""The event name of all log records."""

SCOPE = InstrumentationScope("kprobe_exporter", __version__)

LAST = (1 << 63) - 1
"""The latest time that is sent, in nanoseconds: kernel text can be forged, and OTLP has 64 bits."""


class Description:
    """Describes the records of one layout. Immutable, so any thread may use it.

    ``name`` is the function's, or that of the place or the pair of events. ``kind`` is the kind of the
    probe's target. Arguments that are addresses are sent only if ``attributes`` names them, and a returned
    pointer only if it names ``return``. ``returned`` extracts the return value from a record, which is
    negative for an error. ``labels`` read further attributes, each by its name; one with the name of an
    argument replaces it. ``errno_name`` returns the name of a positive error number.
    """

    def __init__(
        self,
        layout: Layout,
        kind: str,
        errno_name: Callable[[int], str | None],
        attributes: Collection[str] = (),
        returned: Callable[[Record], Value] | None = None,
        labels: Sequence[tuple[str, Callable[[Record], str | None]]] = (),
    ) -> None:
        self._errno_name = errno_name
        self._returned = returned
        self._named = layout.returns is None or layout.returns.errno
        self._show_returned: Callable[[int | bytes], Attribute] | None = plain
        if layout.returns is not None and layout.returns.pointer:
            self._show_returned = _address if "return" in attributes else None
        self._comm = layout.place(COMMON_COMM)
        self._duration = layout.place("duration") if layout.form == "joined" else None
        self.name = layout.symbol
        self._always: dict[str, Attribute] = {PROBE: layout.probe, KIND: kind}
        if ":" not in layout.symbol:  # a place without a name and a pair of events have no function
            self._always[FUNCTION] = layout.symbol
        self._labels = [(name, ARG + name, read) for name, read in labels]
        elsewhere = {*layout.hidden, "return", *dict(labels)} | ({"duration"} if self._duration else set())
        self._args = [
            (place, arg.name, ARG + arg.name, _shown_as(layout, arg))
            for place, arg in enumerate(layout.args, VALUES)
            if place != self._comm
            and arg.name not in elsewhere
            and (not arg.pointer or arg.name in attributes)
        ]

    def duration(self, record: Record) -> int | None:
        """The nanoseconds that the call took, or that passed in the pair; None for a single event."""
        return None if self._duration is None else record[self._duration]

    def attributes(self, emission: Emission) -> tuple[dict[str, Attribute], str | None]:
        """All attributes of a record, and its error by name or number, None if it has none.

        Unreadable and unknown values are omitted.
        """
        record = emission.record
        found = self._always.copy()
        if record[TGID] is not None:
            found[PROCESS] = record[TGID]
        found[THREAD] = record[TID]
        if self._comm is not None and record[self._comm] is not None:
            found[THREAD_NAME] = plain(record[self._comm])
        found[PROCESSOR] = record[CPU]
        returned = self._returned(record) if self._returned is not None else None
        error = None
        if is_error(returned):
            error = (self._errno_name(-returned) or str(-returned)) if self._named else str(returned)
        show_returned = self._show_returned if error is None else plain
        if returned is not None and show_returned is not None:
            found[RETURN_VALUE] = show_returned(returned)
        if error is not None:
            found[ERROR] = error
        for place, _, name, show in self._args:
            value = record[place]
            if value is not None:
                found[name] = show(value)
        for _, name, read in self._labels:
            if decoded := read(record):
                found[name] = decoded
        if emission.stack:
            found[STACKTRACE] = "\n".join([text(frame) for frame in emission.stack[:MOST_FRAMES]])
        if emission.attributes is not None:
            found.update(emission.attributes)
        return found, error

    def line(self, attributes: Mapping[str, Attribute], record: Record) -> str:
        """One line: ``vfs_read(count=512) = -5 EIO in 0.031 ms, cat[4711] on CPU 3``."""
        shown = [(name, key) for _, name, key, _ in self._args]
        shown += [(name, key) for name, key, _ in self._labels]
        values = [
            f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
            for name, key in shown
            if (value := attributes.get(key)) is not None
        ]
        parts = [f"{self.name}({', '.join(values)})"]
        if RETURN_VALUE in attributes:
            parts.append(f" = {attributes[RETURN_VALUE]}")
        if ERROR in attributes:
            parts.append(f" {attributes[ERROR]}")
        if (took := self.duration(record)) is not None:
            parts.append(f" in {took / 1_000_000:.3f} ms")
        parts.append(f", {attributes.get(THREAD_NAME, '')}[{record[TID]}] on CPU {record[CPU]}")
        return "".join(parts)[:LONGEST_LINE]


class Builder:
    """Builds the spans and log records to export. The worker threads of the signals may share it.

    ``descriptions`` are by layout_id, and may change meanwhile. ``clock`` converts the records' time to wall
    time.
    """

    def __init__(self, descriptions: Mapping[int, Description], clock: WallClock) -> None:
        self._descriptions = descriptions
        self._clock = clock

    def span(self, emission: Emission) -> bytes:
        """The encoded span of a call. Its parent span, if it has one, may not exist yet."""
        record = emission.record
        described = self._descriptions[record[LAYOUT_ID]]
        attributes, error = described.attributes(emission)
        start = self._time(record[TIME])
        end = min(LAST, start + (described.duration(record) or 0))
        return span(
            emission.trace, emission.span, emission.parent, described.name, start, end, attributes, error
        )

    def log(self, emission: Emission) -> bytes:
        """The encoded log record of an event. That of a call or pair has its duration and its end.

        If a span is open around it, the record belongs to that span.
        """
        record = emission.record
        described = self._descriptions[record[LAYOUT_ID]]
        attributes, error = described.attributes(emission)
        took = described.duration(record)
        if took is not None:
            attributes[DURATION] = took / 1e9
        return log_record(
            min(LAST, self._time(record[TIME]) + (took or 0)),
            self._clock.now(),
            HIT,
            described.line(attributes, record),
            attributes,
            emission.trace,
            emission.parent,
            error=error is not None,
        )

    def line(self, emission: Emission) -> bytes:
        """The event as a JSON object and a line end. Its time is that of its end, in UTC with nanoseconds."""
        record = emission.record
        described = self._descriptions[record[LAYOUT_ID]]
        attributes, _ = described.attributes(emission)
        took = described.duration(record)
        moment = min(LAST, self._time(record[TIME]) + (took or 0))
        seconds, rest = divmod(moment, 1_000_000_000)
        text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
        found: dict[str, object] = {"time": text}
        fields: dict[str, Attribute] = {}
        for name, value in attributes.items():
            if name.startswith(ARG):
                fields[name.removeprefix(ARG)] = value
            else:
                found[IN_LINES.get(name, name)] = value
        if took is not None:
            found["duration"] = took / 1e9
        if fields:
            found["fields"] = fields
        return json.dumps(found).encode() + b"\n"

    def _time(self, moment: int) -> int:
        return max(0, min(self._clock.unix_ns(moment), LAST))


def _shown_as(layout: Layout, arg: Arg) -> Callable[[int | bytes], Attribute]:
    return _address if arg.pointer else _seconds if arg.name in layout.steps else plain


def _seconds(nanoseconds: int | bytes) -> Attribute:
    return int(nanoseconds) / 1e9


def plain(value: int | bytes) -> Attribute:
    """A number, as text if it needs more than 63 bits; a string is converted by ``text``."""
    if isinstance(value, bytes):
        return text(value)
    return value if -1 << 63 <= value < 1 << 63 else str(value)


def text(value: bytes) -> str:
    """Decode bytes to text of at most MOST_BYTES; invalid UTF-8 and unprintable characters are escaped."""
    found = name_text(value[: MOST_BYTES + 4])
    if len(found) * 4 > MOST_BYTES:
        found = found.encode()[:MOST_BYTES].decode(errors="ignore")
    return found


def _address(value: int | bytes) -> Attribute:
    return hex(value % (1 << 64)) if isinstance(value, int) else text(value)
