"""``signal``: a signal's number as its name: ``SIGKILL``, ``SIGRTMIN+1``; ``none`` for 0."""

from signal import Signals

from kprobe_exporter.labels._text import number, without_options
from kprobe_exporter.model.values import Value

FIRST, LAST = 34, 64
"""The real-time signals that a C library leaves to programs; the kernel's own begin at 32."""

NAMES = {0: "none", **{signal.value: signal.name for signal in Signals if signal < 32}}
"""For signal 0, kill(2) only checks, and sends nothing."""

NAMES |= {32: "SIG32", 33: "SIG33"}
"""They belong to the C library. Their names differ by library: glibc has SIGCANCEL and SIGSETXID."""

NAMES |= {FIRST: "SIGRTMIN", LAST: "SIGRTMAX"}
NAMES |= {number: f"SIGRTMIN+{number - FIRST}" for number in range(FIRST + 1, 50)}
NAMES |= {number: f"SIGRTMAX-{LAST - number}" for number in range(50, LAST)}
"""Counted from the nearer end, as ``kill -l`` does."""


def decode(value: Value) -> str | None:
    found = number(value)
    return None if found is None else NAMES.get(found)


decoder = without_options("signal", decode)
