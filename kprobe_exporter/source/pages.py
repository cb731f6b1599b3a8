"""Helpers that readers of events share: losses, names in stacks, and the result of reading a CPU without
pages."""

from kprobe_exporter.model.records import Loss
from kprobe_exporter.model.stacks import TRAMPOLINE as NAMED_TRAMPOLINE
from kprobe_exporter.source.values import Names

NEVER_ONLINE = -1
"""The pages of a possible CPU that was not online since the boot. tracefs lists its files, but the kernel
allocates its buffer when it comes online (trace_rb_cpu_prepare(), kernel/trace/ring_buffer.c). Until then a
read fails with ENODEV, and a poll returns at once with POLLERR: seen on 5.10 and 6.12."""

UNKNOWN = (1 << 64) - 1
"""The end of a loss after which no event was read yet; the true end is not later than the reading."""

TRAMPOLINE = (1 << 31) - 1
"""Stands for ftrace's own code in a stack (FTRACE_TRAMPOLINE_MARKER, kernel/trace/trace.h)."""


def frame(names: Names, address: int) -> bytes:
    """Return the kernel's text for a return address of a stack."""
    if address == TRAMPOLINE:
        return NAMED_TRAMPOLINE
    return names.function(address) or b"0x%x" % address


def loss(cpu: int, start: int, end: int) -> Loss:
    """Return a loss between two events. If times fall, one is wrong: the loss reaches from 0 to ``start``."""
    return Loss(cpu, start, end) if start <= end else Loss(cpu, 0, start)
