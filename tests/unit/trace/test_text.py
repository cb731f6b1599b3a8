"""trace.text: an entry is one line, whatever names are in it; progress is shown on a terminal alone."""

import os
from collections import deque
from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.trace import text as module
from kprobe_exporter.trace.output import Interrupt, Output
from kprobe_exporter.trace.text import KernelText, on_its_lines, read_entries
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.profile import parse_stats
from tests.support.stderr_terminal import CLEARED, sees, terminal


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    os.close(read)
    os.close(write)


def traced(pipe: tuple[int, int], out: int, stop: Interrupt, monkeypatch: pytest.MonkeyPatch) -> KernelText:
    """Return a trace whose kernel buffer has 1,234 events, and whose pipe has two lines of text."""
    instance = Instance(cast("Tracefs", None), "trace", None)
    stats = parse_stats("entries: 1234\n")
    monkeypatch.setattr(module, "buffer_stats", lambda files, path: stats)
    os.write(pipe[1], b"one\ntwo\n")
    return KernelText(instance, pipe[0], Output(out, stop, terminal=False))


def test_what_is_held_in_the_kernel_and_then_written(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With -d, stderr shows the seconds and the events, then the lines written; stdout has only the lines."""
    read, write = os.pipe()
    stop = Interrupt()
    text = traced(pipe, write, stop, monkeypatch)
    with terminal() as master:
        text.wait(1000, stop.set)  # stop is set at the first check
        assert sees(master, b"\r0 of 1000 s, 1,234 events\x1b[K" + CLEARED)
        text.rest(header=False, whole=True)
        assert sees(master, b"\r2 lines written\x1b[K" + CLEARED)
    assert os.read(read, 100) == b"one\ntwo\n"
    os.close(read)
    os.close(write)


NEXT = b" [000] d..1.    12.345678: "
FORGED = b'/x"\n            sshd-1       [000] d..1.    12.345679: mine: (f+0x0/0x1) name="/etc/shadow'


def entry(comm: bytes, body: bytes) -> bytes:
    return b"%16s-123    " % comm + NEXT + body


NAMES = st.binary(max_size=15).map(lambda name: name.replace(b"\0", b""))
BODIES = st.one_of(
    st.binary(), st.sampled_from([FORGED, b"\n", b"<stack trace>\n => f\n", b"CPU:1 [LOST 1 EVENTS]\n"])
)


@given(comm=NAMES, body=BODIES)
def test_an_event_is_one_line(comm: bytes, body: bytes) -> None:
    shown = on_its_lines(entry(comm, b'mine: (f+0x0/0x1) name="' + body + b'"\n'))
    assert shown.count(b"\n") == 1
    assert shown.endswith(b'"\n')


@given(text=st.binary())
def test_what_is_no_entry_is_one_line(text: bytes) -> None:
    assert on_its_lines(text).count(b"\n") == 1


@given(comm=NAMES)
def test_a_stack_keeps_its_lines(comm: bytes) -> None:
    stack = b"<stack trace>\n => do_sys_openat2\n => do_syscall_64 <fffffe>\n"
    shown = on_its_lines(entry(comm, stack))
    assert shown.endswith(stack)
    assert shown.count(b"\n") == 3


def test_the_kernels_notes_keep_their_lines() -> None:
    notes = b"CPU:3 [LOST 17 EVENTS]\n##### CPU 3 buffer started ####\n"
    whole = notes + entry(b"bash", b"mine: (f+0x0/0x1)\n")
    assert on_its_lines(whole) == whole
    assert on_its_lines(b"[LINE TOO BIG]\n") == b"[LINE TOO BIG]\n"


class KernelPipe:
    """trace_pipe of these entries, as tracing_read_pipe() reads it (kernel/trace/trace.c)."""

    def __init__(self, *unread: bytes) -> None:
        self.unread = deque(unread)
        self.printed = b""

    def read(self, pipe: int, size: int) -> bytes:
        if not self.printed:
            while self.unread and len(self.printed) < min(size, 4095):
                self.printed += self.unread.popleft()
            if not self.printed:
                raise BlockingIOError
        data, self.printed = self.printed[:size], self.printed[size:]
        return data


def test_a_name_forges_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    forged = entry(b"cat", b'mine: (f+0x0/0x1) name="' + FORGED + b'"\n')
    plain = entry(b"bash", b'mine: (f+0x0/0x1) name="/etc/passwd"\n')
    monkeypatch.setattr(os, "read", KernelPipe(forged, plain, forged).read)
    lines = read_entries(3).split(b"\n")
    assert [line[:20] for line in lines] == [
        b"             cat-123",
        b"            bash-123",
        b"             cat-123",
        b"",
    ]
    with pytest.raises(BlockingIOError):
        read_entries(3)


def test_a_flood_is_returned_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    one = entry(b"cat", b"mine: (f+0x0/0x1)\n")
    monkeypatch.setattr(os, "read", KernelPipe(*[one] * 1000).read)
    first = read_entries(3)
    assert module.ENOUGH <= len(first) < module.ENOUGH + len(one)
    assert (
        len(first) + sum(len(read_entries(3)) for _ in range(len(one) * 1000 // module.ENOUGH))
        == len(one) * 1000
    )


def test_the_end_of_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "read", lambda pipe, size: b"")
    assert read_entries(3) == b""
