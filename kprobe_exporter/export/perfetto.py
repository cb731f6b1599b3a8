"""Encodes a timeline for Perfetto: threads as tracks, calls and pairs as slices, other events as instants.

A trace is a sequence of packets (protos/perfetto/trace/trace_packet.proto of github.com/google/perfetto,
whose field numbers are used here). The first one relates the clocks. A track is described once, before its
first event. Slices of one track must nest, as the calls of a thread do. The events of a pair may be in any
threads, and pairs may overlap. Therefore the probe of a pair has lanes: a slice takes the first lane that has
ended before the slice begins. Marks of a program need not nest with its calls, so they have a track below
that of their thread.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from kprobe_exporter.util.protobuf import field, varint

Value: TypeAlias = "str | int | float | bool | list[int] | None"

# TracePacket
_PACKET, _CLOCKS, _TIMESTAMP, _SEQUENCE, _EVENT, _FLAGS, _CLOCK_ID, _TRACK = 1, 6, 8, 10, 11, 13, 58, 60
# TrackDescriptor, ProcessDescriptor, ThreadDescriptor
_UUID, _NAME, _PROCESS, _THREAD, _PARENT, _COUNTER = 1, 2, 3, 4, 5, 8
_PID, _PROCESS_NAME, _OWNER, _TID, _THREAD_NAME = 1, 6, 1, 2, 5
# TrackEvent
_ANNOTATION, _TYPE, _TRACK_UUID, _EVENT_NAME, _COUNTER_VALUE = 4, 9, 11, 23, 30
_BEGIN, _END, _INSTANT, _COUNTED = 1, 2, 3, 4
# DebugAnnotation
_UNSIGNED, _SIGNED, _DOUBLE, _STRING, _ANNOTATION_NAME = 3, 4, 5, 6, 10

_CLEARED = 1  # SEQ_INCREMENTAL_STATE_CLEARED: no packet depends on one before this sequence
_ONE_SEQUENCE = 1
_REALTIME, _MONOTONIC, _BOOTTIME = 1, 3, 6  # BuiltinClock

_FIXED_64: Final = 1  # the wire type of a double


class Clocks(NamedTuple):
    """One moment on three clocks, in nanoseconds. Events have times of ``monotonic``."""

    monotonic: int
    realtime: int
    boottime: int


class Thread(NamedTuple):
    """The thread of an event; ``process`` is None where the process is unknown."""

    id: int
    process: int | None
    name: str


class Timeline:
    """Encodes events and passes the packets on to ``write``. Not thread-safe.

    ``place`` returns where a process is, such as its pod, which its track has beside its name. It keeps a
    number for each thread, process and lane that it has described, about 100 bytes each.
    """

    def __init__(
        self, write: Callable[[bytes], object], clocks: Clocks, place: Callable[[int], str] = lambda pid: ""
    ) -> None:
        self._write, self._place = write, place
        self._uuids: dict[tuple[object, ...], int] = {}
        self._lanes: dict[str, list[int]] = {}
        each = ((_MONOTONIC, clocks.monotonic), (_REALTIME, clocks.realtime), (_BOOTTIME, clocks.boottime))
        snapshot = b"".join(field(1, _number(1, clock) + _number(2, time)) for clock, time in each)
        self._put(field(_CLOCKS, snapshot + _number(2, _BOOTTIME)) + _number(_FLAGS, _CLEARED))

    def instant(self, thread: Thread, name: str, time: int, values: Mapping[str, Value]) -> None:
        """Add an event without a duration; ``time`` is in nanoseconds of the monotonic clock."""
        self._event(self._thread(thread), _INSTANT, time, name, values)

    def call(self, thread: Thread, name: str, start: int, duration: int, values: Mapping[str, Value]) -> None:
        """Add a call of this thread, which lies within the calls around it."""
        self._slice(self._thread(thread), name, start, duration, values)

    def pair(self, probe: str, name: str, start: int, duration: int, values: Mapping[str, Value]) -> None:
        """Add a pair of events of ``probe``, which may overlap others."""
        ends = self._lanes.setdefault(probe, [])
        lane = next((number for number, end in enumerate(ends) if end <= start), len(ends))
        ends[lane : lane + 1] = [start + duration]
        self._slice(self._lane(probe, lane), name, start, duration, values)

    def mark(self, thread: Thread, name: str, start: int, duration: int | None) -> None:
        """Add a slice that this thread marked; ``duration`` is None for one that has not ended."""
        parent = self._thread(thread)
        uuid = self._described(("marks", parent), _text(_NAME, "marks") + _number(_PARENT, parent))
        if duration is None:
            self._event(uuid, _BEGIN, start, name, {})
        else:
            self._slice(uuid, name, start, duration, {})

    def counter(self, thread: Thread, name: str, time: int, value: int) -> None:
        """Add a value of a counter of this thread's process."""
        self._thread(thread)
        process = thread.id if thread.process is None else thread.process
        parent = self._uuids["process", process]
        descriptor = _text(_NAME, name) + field(_COUNTER, b"") + _number(_PARENT, parent)
        uuid = self._described(("counter", process, name), descriptor)
        signed = _number(_COUNTER_VALUE, value % (1 << 64))
        event = _number(_TYPE, _COUNTED) + _number(_TRACK_UUID, uuid) + signed
        self._put(_time(time) + field(_EVENT, event))

    def loss(self, cpu: int, start: int, end: int) -> None:
        """Mark an interval in which events of this CPU were lost."""
        uuid = self._described(("loss", cpu), _text(_NAME, f"events lost on CPU {cpu}"))
        self._slice(uuid, "events lost", start, max(0, end - start), {})

    def _slice(self, uuid: int, name: str, start: int, duration: int, values: Mapping[str, Value]) -> None:
        self._event(uuid, _BEGIN, start, name, values)
        self._put(_time(start + duration) + field(_EVENT, _number(_TYPE, _END) + _number(_TRACK_UUID, uuid)))

    def _event(self, uuid: int, type_: int, time: int, name: str, values: Mapping[str, Value]) -> None:
        known = b"".join(_annotation(key, value) for key, value in values.items() if value is not None)
        event = _number(_TYPE, type_) + _number(_TRACK_UUID, uuid) + _text(_EVENT_NAME, name) + known
        self._put(_time(time) + field(_EVENT, event))

    def _thread(self, thread: Thread) -> int:
        """Return the track of a thread. A process is named by its first thread, whose id it has."""
        process = thread.id if thread.process is None else thread.process
        key = ("thread", process, thread.id)
        if key in self._uuids:
            return self._uuids[key]
        if ("process", process) not in self._uuids or process == thread.id:
            place = self._place(process)
            known = (thread.name if process == thread.id else "", f"({place})" if place else "")
            name = " ".join(filter(None, known))
            named = _number(_PID, process) + (_text(_PROCESS_NAME, name) if name else b"")
            self._described(("process", process), field(_PROCESS, named), again=True)
        inner = _number(_OWNER, process) + _number(_TID, thread.id) + _text(_THREAD_NAME, thread.name)
        return self._described(key, field(_THREAD, inner) + _number(_PARENT, self._uuids["process", process]))

    def _lane(self, probe: str, lane: int) -> int:
        name = probe if lane == 0 else f"{probe} ({lane + 1})"
        return self._described(("lane", probe, lane), _text(_NAME, name))

    def _described(self, key: tuple[object, ...], descriptor: bytes, *, again: bool = False) -> int:
        """Return the number of a track, and describe it if it is new."""
        if (uuid := self._uuids.get(key)) is None or again:
            uuid = self._uuids.setdefault(key, len(self._uuids) + 1)
            self._put(field(_TRACK, _number(_UUID, uuid) + descriptor))
        return uuid

    def _put(self, packet: bytes) -> None:
        self._write(field(_PACKET, packet + _number(_SEQUENCE, _ONE_SEQUENCE)))


def _time(time: int) -> bytes:
    return _number(_TIMESTAMP, time) + _number(_CLOCK_ID, _MONOTONIC)


def _annotation(name: str, value: Value) -> bytes:
    if isinstance(value, float):
        encoded = varint(_DOUBLE << 3 | _FIXED_64) + struct.pack("<d", value)
    elif isinstance(value, int):
        encoded = _number(_SIGNED, value % (1 << 64)) if value < 0 else _number(_UNSIGNED, value)
    else:
        encoded = _text(_STRING, value if isinstance(value, str) else str(value))
    return field(_ANNOTATION, _text(_ANNOTATION_NAME, name) + encoded)


def _text(number: int, text: str) -> bytes:
    return field(number, text.encode(errors="backslashreplace"))


def _number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)
