"""Reads trace_pipe entry by entry, so that a newline in a name does not begin a line on a terminal."""

import os
import re

ENTRY_BYTES = 65536
"""More than the kernel prints of one entry: TRACE_SEQ_BUFFER_SIZE is 8192, and a page before 6.8."""

ENOUGH = 16384
"""Bytes after which `read_entries` returns, so that its caller can look at the time."""

NOTES = rb"(?:(?:CPU:\d+ \[LOST \d+ EVENTS\]|#{2,} CPU \d+ buffer started #{2,})\n)*"
"""The kernel's own lines before an entry. An entry itself begins with the thread's name in 16 columns, the
first of them a blank, so that no name can look like them."""

STACK = rb"(?: => [^\n]*\n)+"

ENTRY = re.compile(
    rb"(?P<notes>" + NOTES + rb")"
    rb"(?P<head>.{16}-\d+ [^:]*: )"
    rb"(?:(?P<stack><stack trace>\n" + STACK + rb")|(?P<body>.*))",
    re.DOTALL,
)
"""An entry of trace_print_context() (kernel/trace/trace_output.c): a kernel stack, which is of several lines,
or an event, whose own name stands in front of all that a program can choose."""


def read_entries(pipe: int) -> bytes:
    """Return the next entries, each on a line of its own; b"" at the end. Raises BlockingIOError.

    A read of one byte makes the kernel print one entry, and the next read returns the rest of that entry
    alone (tracing_read_pipe(), kernel/trace/trace.c).
    """
    data = b""
    while len(data) < ENOUGH:
        try:
            entry = os.read(pipe, 1)
            entry += os.read(pipe, ENTRY_BYTES) if entry else b""
        except BlockingIOError:
            if not data:
                raise
            break
        if not entry:
            break
        data += on_its_lines(entry)
    return data


def on_its_lines(entry: bytes) -> bytes:
    """Escape the newlines of an entry that the kernel did not write itself."""
    found = ENTRY.fullmatch(entry)
    if found is None:
        return _one_line(entry)
    notes, head, stack, body = found["notes"], found["head"], found["stack"], found["body"]
    escaped_head = head.replace(b"\n", b"\\n")
    return notes + escaped_head + (stack if stack is not None else _one_line(body))


def _one_line(text: bytes) -> bytes:
    return text.removesuffix(b"\n").replace(b"\n", b"\\n") + b"\n"
