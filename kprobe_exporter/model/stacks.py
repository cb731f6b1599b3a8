"""Counted stacks: the hist trigger that counts them, and what was counted of all. Frozen values."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias


class Place(NamedTuple):
    """A place in a program's code: ``offset`` bytes from the start of the file with this number.

    The number is that of `Programs`, and 0 means no file. ``name`` is shown where the function is unknown:
    the file's name, or its path where others than root may write it, in brackets, as ``[libc.so.6]``; or
    ``[unknown]``.
    """

    file: int
    offset: int
    name: bytes


Addresses: TypeAlias = tuple[int, ...]
"""The stack of a program as the kernel finds it: where it is, and return addresses, innermost first."""

Stack: TypeAlias = tuple[bytes, ...]
"""The names of a stack's functions, innermost first; an address of the kernel that has no name as ``0x…``. A
program's function is written as DTrace does, ``libc.so.6`malloc``."""

Frames: TypeAlias = tuple[bytes | Place, ...]
"""A stack as it is counted: the places in programs are named at a request."""


def of_program(frame: bytes) -> bool:
    """Return whether a frame that has its name is a program's, not the kernel's."""
    return b"`" in frame or (frame.startswith(b"[") and frame != TRAMPOLINE)


TRAMPOLINE = b"[FTRACE TRAMPOLINE]"
"""A frame of ftrace's own code, as the kernel prints it (kernel/trace/trace_output.c)."""

LOST = b"[hits_lost]"
"""In place of the frames of hits whose stack was not kept or not read."""

STACK_KEYS = ("common_stacktrace", "stacktrace")
"""The key of a hist trigger that is the kernel's stack. It is ``stacktrace`` on Linux 6.1."""


class StackTable(NamedTuple):
    """A hist trigger that counts stacks, as a description: nothing is written yet.

    ``value`` is the event's field to sum for each stack, None for the hits alone. ``condition`` is a filter
    in the kernel's syntax. ``size`` is the number of stacks for which the kernel has room.
    """

    value: str | None
    condition: str | None
    size: int

    def trigger(self, key: str) -> str:
        """Return it in the kernel's syntax, with one of STACK_KEYS."""
        vals = f":vals={self.value}" if self.value else ""
        return f"hist:keys={key}{vals}:size={self.size}" + (f" if {self.condition}" if self.condition else "")


class Weight(NamedTuple):
    """How often a stack occurred, and the sum of the field by which it is weighed, 0 without one."""

    hits: int
    total: int

    def plus(self, other: "Weight") -> "Weight":
        return Weight(self.hits + other.hits, self.total + other.total)

    def minus(self, other: "Weight") -> "Weight":
        return Weight(self.hits - other.hits, self.total - other.total)


NOTHING = Weight(0, 0)


class StackTally(NamedTuple):
    """The weight of the records of one layout with the same stack: of the kernel, and then of a process.

    ``addresses`` are empty where the process has no stack, or none is wanted.
    """

    layout_id: int
    kernel: Stack
    process: int
    addresses: Addresses
    weight: Weight


class StackLoss(StrEnum):
    """Why hits are in no stack."""

    OVERRUN = "overrun"
    """The ring buffer was full."""
    ABSENT = "absent"
    """No stack came with the event, or no value to weigh it by."""
    TABLE_FULL = "table_full"
    """The kernel's table of stacks was full."""
    NO_ROOM = "no_room"
    """So many different stacks are kept that there was no room for another one."""
    PROGRAMS = "programs"
    """Too many stacks waited until their places in programs were found."""
    EVICTED = "evicted"
    """It was open, and was dropped because too many were."""


class StackReading(NamedTuple):
    """The table of a `StackTable` as it was read. ``dropped`` counts events whose stack found it full."""

    dropped: int
    rows: Mapping[Stack, Weight]


class Profile(NamedTuple):
    """The stacks of one probe since they are counted. ``lost`` are hits whose stack was not kept or not read.

    ``weigh`` is the field that is summed, None if only hits are counted. ``since`` and ``until`` are Unix
    time in nanoseconds. ``losses`` are the lost hits by their causes, empty where these are not known.
    """

    probe: str
    weigh: str | None
    stacks: Mapping[Stack, Weight]
    lost: int
    since: int
    until: int
    losses: Mapping[StackLoss, int] = MappingProxyType({})

    @property
    def hits(self) -> int:
        """The hits of all stacks together."""
        return sum(weight.hits for weight in self.stacks.values())

    def minus(self, before: "Profile") -> "Profile":
        """Return what came after an earlier profile of the same probe."""
        grown = {
            stack: now.minus(then)
            for stack, now in self.stacks.items()
            if (then := before.stacks.get(stack, NOTHING)).hits < now.hits
        }
        lost = max(0, self.lost - before.lost)
        return Profile(self.probe, self.weigh, grown, lost, before.until, self.until)
