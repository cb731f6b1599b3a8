"""The stacks of one probe, counted and bounded; and what the table of a hist trigger gained."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from typing import TypeAlias

from kprobe_exporter.aggregate.series import IDLE, SeriesLimits
from kprobe_exporter.model.stacks import (
    NOTHING,
    Frames,
    Place,
    Profile,
    Stack,
    StackLoss,
    StackReading,
    Weight,
)

Names: TypeAlias = Callable[[Iterable[Place]], Mapping[Place, bytes]]
"""Returns the functions that are known at places of programs."""

TRACER = re.compile(
    rb"_*(kprobe|kretprobe|fprobe|fentry|fexit|eprobe|ftrace|function_graph|rethook|arch_(ftrace|rethook|kretprobe))_.*"
    rb"|_*(trace_event|event_trigger|event_hist|traceiter|trace_eprobe|trace_kprobe|perf_trace)s?_.*"
    rb"|opt_pre_handler|optimized_callback|aggr_pre_handler|trampoline_handler|stack_trace_save"
    rb"|(asm_)?(exc|do)_int3|brk_handler|(do_)?call_break_hook|do_debug_exception"
    rb"|do_el1_brk64|el1_(dbg|brk64)|el1h_64_sync(_handler)?|\[FTRACE TRAMPOLINE\]"
)
"""Functions by which the kernel records or counts an event: of kernel/trace/ and kernel/kprobes.c, and the
traps of x86 and arm64 that lead to a kprobe."""

ADDRESS = re.compile(rb"0x[0-9a-f]+")
"""A frame without a name: in front of a stack, the code that ftrace makes for an event."""


@lru_cache(1 << 14)
def cut(stack: Stack) -> Stack:
    """Return the stack without the frames of the tracer, which are its innermost ones."""
    end = 0
    for number, frame in enumerate(stack):
        if TRACER.fullmatch(frame):
            end = number + 1
        elif not ADDRESS.fullmatch(frame):
            break
    while 0 < end < len(stack) and ADDRESS.fullmatch(stack[end]):
        end += 1
    return stack[end:]


INTERRUPT = re.compile(rb"asm_(sysvec_.*|common_interrupt)|el[01][ht]?_(64_|32_)?irq")
"""The outermost function of an interrupt: of arch/x86/include/asm/idtentry.h, and of
arch/arm64/kernel/entry.S, where Linux 5.10 has el0_irq and el1_irq."""


@lru_cache(1 << 14)
def cut_interrupt(stack: Stack) -> Stack:
    """Return the stack of the interrupted code; nothing of the kernel if the CPU was in a program."""
    ends = (number for number, frame in enumerate(stack) if INTERRUPT.fullmatch(frame))
    return stack[next(ends, -1) + 1 :]


MOST_BYTES = 1 << 25
"""Bytes that the stacks of all probes take, roughly."""

STACK_BYTES, FRAME_BYTES, PLACE_BYTES = 300, 16, 110
"""Bytes that a stack takes, and in it a function of the kernel, whose name others share, and of a program."""


@dataclass(eq=False)
class StackRoom:
    """The room that all probes share for their stacks, and the lock that they take to change them."""

    used: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    shared_by: list["StackCounts"] = field(default_factory=list)


class StackCounts:
    """How often each stack of a probe occurred, and the sum of the field by which it is weighed.

    ``user``: they go on in programs. ``interrupted``: the interrupt's frames are cut. ``rooted``: the
    process' name stands behind the program's frames. It keeps ``most`` stacks. One that was not seen for the
    time to live of label sets goes; if that is open, it makes room for a new one after IDLE seconds. If the
    ``room`` of all probes is full, the oldest stack of the probe that takes most of it goes. Hits of stacks
    without room count as lost. Any thread may call its methods; a stack costs about 2 µs.
    """

    def __init__(
        self,
        probe: str,
        weigh: str | None,
        most: int,
        limits: SeriesLimits,
        *,
        user: bool = False,
        interrupted: bool = False,
        rooted: bool = False,
        room: StackRoom | None = None,
    ) -> None:
        self.probe, self.weigh, self.most, self.user = probe, weigh, most, user
        self.rooted, self._cut = rooted, cut_interrupt if interrupted else cut
        self._limits = limits
        self._room = room or StackRoom()
        self._room.shared_by.append(self)
        self._lock = self._room.lock
        self._stacks: dict[Frames, tuple[Weight, float]] = {}  # each with when it was seen, the oldest first
        self._bytes = 0
        self._losses = Counter(dict.fromkeys(StackLoss, 0))
        self._since = time.time_ns()

    def add(self, frames: Stack, weight: Weight, of_program: Frames = ()) -> None:
        """Count hits with this stack: of the kernel, maybe with the tracer's frames, and of a program."""
        stack: Frames = self._cut(frames) + of_program
        with self._lock:
            before, _ = self._stacks.pop(stack, (None, 0.0))
            if before is None and not self._has_room_for(stack):
                self._losses[StackLoss.NO_ROOM] += weight.hits
                return
            self._stacks[stack] = (before or NOTHING).plus(weight), self._limits.clock()

    def lose(self, hits: int, cause: StackLoss) -> None:
        """Count hits whose stack is unknown."""
        with self._lock:
            self._losses[cause] += hits

    def close(self) -> None:
        """Free the room of all stacks. Hits that come later are lost."""
        with self._lock:
            self.most = 0
            self._forget(float("-inf"))
            self._room.shared_by.remove(self)

    @property
    def lost(self) -> int:
        """The hits so far whose stack was not kept or is unknown."""
        return self._losses.total()

    def profile(self, names: Names = lambda _: {}) -> Profile:
        """Return all that was counted and is kept, with the names of programs' functions."""
        with self._lock:
            if self._limits.ttl:
                self._forget(self._limits.ttl)
            counted = [(stack, weight) for stack, (weight, _) in self._stacks.items()]
            losses, until = +self._losses, time.time_ns()
        places = {frame for stack, _ in counted for frame in stack if isinstance(frame, Place)}
        known = names(places) if places else {}
        stacks: dict[Stack, Weight] = {}
        for frames, weight in counted:
            # Two places in one function are one frame, as in what the kernel names.
            stack = tuple([one if isinstance(one, bytes) else known.get(one, one.name) for one in frames])
            stacks[stack] = stacks.get(stack, NOTHING).plus(weight)
        return Profile(self.probe, self.weigh, stacks, losses.total(), self._since, until, losses)

    def _has_room_for(self, stack: Frames) -> bool:
        """Return whether there is room for a new stack, which is taken then."""
        if len(self._stacks) >= self.most and self._limits.ttl != 0:
            self._forget(self._limits.ttl or IDLE)
        size, room = _size(stack), self._room
        while len(self._stacks) < self.most:
            if room.used + size <= MOST_BYTES:
                self._charge(size)
                return True
            largest = max(room.shared_by, key=lambda one: one._bytes)
            if largest is self:
                break
            oldest = next(iter(largest._stacks))
            largest._losses[StackLoss.NO_ROOM] += largest._stacks[oldest][0].hits
            largest._drop(oldest)
        return False

    def _forget(self, age: float) -> None:
        oldest = self._limits.clock() - age
        for stack in list(takewhile(lambda stack: self._stacks[stack][1] < oldest, self._stacks)):
            self._drop(stack)

    def _drop(self, stack: Frames) -> None:
        del self._stacks[stack]
        self._charge(-_size(stack))

    def _charge(self, size: int) -> None:
        self._bytes += size
        self._room.used += size


def _size(stack: Frames) -> int:
    places = sum(isinstance(frame, Place) for frame in stack)
    return STACK_BYTES + FRAME_BYTES * len(stack) + PLACE_BYTES * places


class StackDeltas:
    """The table of a hist trigger, which only grows, as what came since its last reading."""

    def __init__(self, counts: StackCounts) -> None:
        self._counts = counts
        self._last = StackReading(0, {})

    def take(self, reading: StackReading) -> None:
        """Count what came since the last reading. A sum has 64 bits and may overflow."""
        last, self._last = self._last, reading
        for stack, now in reading.rows.items():
            grown = now.minus(last.rows.get(stack, NOTHING))
            if grown.hits > 0:
                self._counts.add(stack, grown._replace(total=grown.total % (1 << 64)))
        if reading.dropped > last.dropped:
            self._counts.lose(reading.dropped - last.dropped, StackLoss.TABLE_FULL)
