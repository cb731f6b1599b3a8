"""``signal``: a signal's number as its name: ``SIGKILL``, ``SIGRTMIN+1``; ``none`` for 0."""

from kprobe_exporter.labels._text import number
from kprobe_exporter.model.values import Decoder, Value

FIRST, LAST = 34, 64
"""The real-time signals that a C library leaves to programs; the kernel's own begin at 32."""

NAMES = dict(
    enumerate(
        """
        none SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2
        SIGPIPE SIGALRM SIGTERM SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU
        SIGXFSZ SIGVTALRM SIGPROF SIGWINCH SIGIO SIGPWR SIGSYS SIG32 SIG33 """.split()
    )
)
"""include/uapi/asm-generic/signal.h, which all architectures but alpha, mips, parisc and sparc follow.

32 and 33 belong to the C library. Their names differ by library: glibc has SIGCANCEL and SIGSETXID.
"""

NAMES |= {FIRST: "SIGRTMIN", LAST: "SIGRTMAX"}
NAMES |= {number: f"SIGRTMIN+{number - FIRST}" for number in range(FIRST + 1, 50)}
NAMES |= {number: f"SIGRTMAX-{LAST - number}" for number in range(50, LAST)}
"""Counted from the nearer end, as ``kill -l`` does."""


def decoder(options: object) -> Decoder:
    """Make the decoder, which takes no options. With signal 0, kill(2) only checks, and sends nothing."""
    if options is not None:
        raise ValueError("the decoder signal takes no options: write 'decode: signal'")
    return decode


def decode(value: Value) -> str | None:
    found = number(value)
    return None if found is None else NAMES.get(found)
