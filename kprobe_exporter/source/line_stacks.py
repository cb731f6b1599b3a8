"""Gives the stacks in the kernel's text to the events before them."""

import re

from kprobe_exporter.model.records import Batch, Record

FRAME = re.compile(rb"[ \t]*=> ([^\n]*)\n")
"""One line of a stack: ``sym``, with the option sym-offset ``sym+0x1/0x2``, with sym-addr ``sym <address>``
(seq_print_ip_sym() of kernel/trace/trace_output.c)."""

ADDRESS = re.compile(rb"[ \t]*=>[^\n]* <([0-9a-f]{1,16})>\n")
"""One line of a program's stack, without the option sym-userobj ``  <address>`` (seq_print_user_ip())."""

WAITING = 1024
"""The most events that wait for their stack; in practice one per CPU and level of interrupt."""


MAX_FRAMES = 1024
"""The frames of a stack that are kept, as many as the kernel records with pages of 4 KiB
(FTRACE_KSTACK_ENTRIES of kernel/trace/trace.c). A saved text may have any number."""

MAX_FRAME_BYTES = 1024
"""A symbol has at most 512 bytes, and a module's name 56 (KSYM_NAME_LEN, MODULE_NAME_LEN)."""


class _Assembler:
    """Collects the lines of one stack at a time, which follow each other in the text."""

    _line: re.Pattern[bytes]

    def __init__(self) -> None:
        self._owners: list[Record] = []
        self._found: list[bytes] = []
        self._next = -1

    def frame(self, data: bytes, at: int, end: int) -> int:
        """Return where the next line starts if this line is a frame of the stack, else 0."""
        if at != self._next or not (found := self._line.match(data, at, end)):
            return 0
        if self._owners and len(self._found) < MAX_FRAMES:
            self._found.append(found[1][:MAX_FRAME_BYTES])
        self._next = found.end()
        return self._next

    def shift(self, at: int) -> None:
        """Adjust positions: the text that follows starts with what was at this position."""
        self._next -= at

    def _taken(self) -> list[bytes]:
        """Return what was read so far of the stack, and forget it."""
        found, self._found = self._found, []
        return found


class StackAssembler(_Assembler):
    """Gives each of the kernel's stacks to its event: the last one of its CPU and thread that has none yet.

    The kernel writes an event and then its stack (a post trigger, kernel/trace/trace_events_trigger.c).
    Events of other CPUs may come in between. So may those of an interrupt's probes on the same CPU, each with
    its own stack before this one: so the last event that waits is the right one. A stack without such an
    event is dropped; the loss of its event was counted. Not thread-safe.
    """

    _line = FRAME

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[int, int, list[Record]]] = []

    def expect(self, cpu: int, tid: int, records: list[Record]) -> None:
        """Note an event whose stack will follow; ``records`` is empty if the event could not be read."""
        self._waiting.append((cpu, tid, records))
        if len(self._waiting) > WAITING:
            del self._waiting[: WAITING // 2]

    def forget(self, cpu: int) -> None:
        """Expect no stacks of this CPU any more, because the kernel lost what came next."""
        self._waiting = [waiting for waiting in self._waiting if waiting[0] != cpu]

    def begin(self, cpu: int, tid: int, frames_at: int, batch: Batch) -> None:
        """Start a stack whose first frame is at this position of the text."""
        self.hand_over(batch)
        self._owners, self._next = self._take(cpu, tid), frames_at

    def hand_over(self, batch: Batch) -> None:
        """Put the frames that were read so far into a batch."""
        if found := tuple(self._taken()):
            batch.stacks += [(record, found) for record in self._owners]

    def _take(self, cpu: int, tid: int) -> list[Record]:
        for number in range(len(self._waiting) - 1, -1, -1):
            if self._waiting[number][0] == cpu:
                return self._waiting.pop(number)[2] if self._waiting[number][1] == tid else []
        return []


class UserStackAssembler(_Assembler):
    """Gives each program's stack to the event right before it on its CPU; another one's is dropped.

    With the option userstacktrace every event of the instance has one (ftrace_trace_userstack() of
    kernel/trace/trace.c). Not thread-safe.
    """

    _line = ADDRESS

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[int, tuple[int, list[Record]]] = {}
        self._process = 0

    def expect(self, cpu: int, tid: int, records: list[Record]) -> None:
        """Note an event, and which of its records want the stack that may follow."""
        self._before[cpu] = tid, records
        if len(self._before) > WAITING:  # the text may name any number of CPUs
            self._before.clear()

    def forget(self, cpu: int) -> None:
        """Expect no stack of this CPU, because the kernel lost what came next."""
        self._before.pop(cpu, None)

    def begin(self, cpu: int, tid: int, process: int, frames_at: int, batch: Batch) -> None:
        """Start a stack whose first address is at this position of the text."""
        self.hand_over(batch)
        expected, records = self._before.pop(cpu, (0, []))
        self._owners, self._process = records if expected == tid else [], process
        self._next = frames_at

    def hand_over(self, batch: Batch) -> None:
        """Put the addresses that were read so far into a batch."""
        if found := tuple([int(address, 16) for address in self._taken()]):
            batch.user_stacks += [(record, self._process, found) for record in self._owners]
