"""Builds pages of trace_pipe_raw as kernel/trace/ring_buffer.c does, as input for the page parsers."""

import struct
from dataclasses import dataclass, field

from kprobe_exporter.model.record_layout import Geometry

GEOMETRY = Geometry(commit=8, commit_size=8, data=16, page=4096)

MISSED, COUNTED = 1 << 31, 1 << 30


def event(number: int, tid: int, *fields: bytes) -> bytes:
    """An event's payload: the common fields, then the given ones."""
    return struct.pack("=HBBi", number, 0, 0, tid) + b"".join(fields)


def located(offset: int, text: bytes) -> bytes:
    """A ``__data_loc``: the offset of a string in its record, and its length."""
    return struct.pack("=I", len(text) << 16 | offset)


@dataclass
class Page:
    """One page of a little-endian machine."""

    time: int = 0
    geometry: Geometry = GEOMETRY
    body: bytes = b""
    flags: int = 0
    lost: int | None = None
    _now: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._now = self.time

    def add(self, time: int, payload: bytes, *, long: bool = False) -> "Page":
        """Append a record, after a time extend if the time delta does not fit into 27 bits."""
        delta = time - self._now
        if delta >= 1 << 27:
            self.body += struct.pack("=II", 30 | (delta & 0x7FFFFFF) << 5, delta >> 27)
            delta = 0
        self._now = time
        padded = payload + bytes(-len(payload) % 4)
        if long or len(padded) > 28 * 4:
            self.body += struct.pack("=II", delta << 5, len(payload) + 4) + padded
        else:
            self.body += struct.pack("=I", len(padded) // 4 | delta << 5) + padded
        return self

    def stamp(self, time: int) -> "Page":
        """Append an absolute timestamp, of which 59 bits are kept."""
        kept = time & ((1 << 59) - 1)
        self.body += struct.pack("=II", 31 | (kept & 0x7FFFFFF) << 5, kept >> 27)
        self._now = time
        return self

    def discard(self, size: int) -> "Page":
        """Append a record that the writer discarded."""
        self.body += struct.pack("=II", 29 | 1 << 5, size + 4) + bytes(size)
        self._now += 1
        return self

    def room(self, size: int) -> bool:
        return len(self.body) + size <= self.geometry.page - self.geometry.data

    def render(self) -> bytes:
        flags = self.flags
        lost = b""
        if self.lost is not None:
            flags |= MISSED | COUNTED
            lost = struct.pack("=Q", self.lost)
        head = struct.pack("=QQ", self.time, len(self.body) | flags)
        return (head + self.body + lost).ljust(self.geometry.page, b"\0")[: self.geometry.page]
