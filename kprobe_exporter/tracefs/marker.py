"""The facts in an event of ``trace_marker``: how long an event takes on this machine, and its thread's id."""

import os
import re
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress

from kprobe_exporter.tracefs.files import Tracefs

ROUNDS, WRITES = 4, 75
"""The fastest round counts. On an emulated CPU all of them take some milliseconds."""

LINE = rb"(?s).{16}-(\d+)\s.*?%s"
"""The trace line of a marker: the thread's name, 16 columns of arbitrary bytes, and then its id."""


COPY = "options/copy_trace_marker"
"""Whether an instance also records what is written to the ``trace_marker`` of the top level (Linux 6.15).

A write to the top level ends with the first such instance that does not record, and fails
(tracing_mark_write(), kernel/trace/trace.c). So the option must be off before recording stops."""


def copy_marks(files: Tracefs, instance: str, *, on: bool) -> bool:
    """Set COPY of an instance; return False if the kernel does not have it. Raises OSError."""
    if not files.exists(f"{instance}/{COPY}"):
        return False
    files.write(f"{instance}/{COPY}", str(int(on)))
    return True


def marking_thread(write: Callable[[str, str], object], read: Callable[[], bytes]) -> int | None:
    """Return this thread's id as the kernel prints it, None if the marker is not found. Raises OSError.

    ``write`` writes to a file of an instance that records nothing yet, and ``read`` returns its trace_pipe.
    """
    nonce = uuid.uuid4().hex
    write("trace_marker", nonce)
    found = re.search(LINE % nonce.encode(), read())
    return int(found[1]) if found else None


def marker_seconds(files: Tracefs, instance: str) -> float:
    """Return what an event of ``trace_marker`` adds to a write(2), and throw away what the ring buffer holds.

    ``instance`` is the path of one that records nothing yet. Raises OSError.
    """
    with ExitStack() as opened:
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        opened.callback(os.close, nowhere)
        opened.callback(_empty, files, instance)
        marker = files.open_marker(f"{instance}/trace_marker")
        opened.callback(os.close, marker)
        rounds = [(_writes(marker), _writes(nowhere)) for _ in range(ROUNDS)]
    return (min(event for event, _ in rounds) - min(call for _, call in rounds)) / WRITES


def _writes(fd: int) -> float:
    began = time.perf_counter()
    for _ in range(WRITES):
        os.write(fd, b"x")
    return time.perf_counter() - began


def _empty(files: Tracefs, instance: str) -> None:
    pipe = files.open_pipe(f"{instance}/trace_pipe")
    try:
        with suppress(BlockingIOError):
            while os.read(pipe, 65536):
                pass
    finally:
        os.close(pipe)
