"""``--trace-dat``: copies the pages of the ring buffer into a file that trace-cmd and KernelShark read."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from kprobe_exporter.export.trace_dat import write
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.recording.pages import describe_recording, page_geometry, read_pages
from kprobe_exporter.trace.output import writing
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.trace.text import installed
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.profile import buffer_stats
from kprobe_exporter.util.file_access import replaced_whole

TURN = 0.1
"""Seconds between two reads at most: poll wakes only when a CPU's buffer is half full."""


def save_pages(
    session: TraceSession, specs: Sequence[ProbeSpec], path: Path, title: str, *, stacks: bool
) -> int:
    """Record until the session ends, write the file, and return the number of lost events.

    A file that is there is replaced once the new one is complete; only the owner may read it, because it
    holds addresses of the kernel. Raises TracefsError, OSError for other files of the kernel, and StartError
    if the file cannot be written.
    """
    instance, out = session.instance, session.out
    page_bytes = page_geometry(instance.files).page
    with ExitStack() as stack:
        probes = stack.enter_context(installed(instance, specs))
        if stacks:
            instance.write("options/stacktrace", "1")
        pipes = instance.open_raw()
        for pipe in pipes.values():
            stack.callback(os.close, pipe)
        with writing(path):
            pages: dict[int, BinaryIO] = {
                cpu: stack.enter_context(TemporaryFile(dir=path.parent)) for cpu in pipes
            }
        for probe in reversed(probes):
            probe.enable()
        out.say(f"Recording {title}. Ctrl-C to end.")
        session.begin()
        started = time.monotonic()
        writes = {cpu: writing(path)(file.write) for cpu, file in pages.items()}
        while not out.stop.is_set() and (left := _left(session, started)) > 0:
            out.stop.wait_for(pipes.values(), min(TURN, left), out.watched)
            _copy(instance, pipes, writes, page_bytes)
            session.look()
        for probe in probes:
            probe.disable()
        _copy(instance, pipes, writes, page_bytes)
        events = [(probe.system, probe.event) for probe in probes]
        recording = describe_recording(instance, events, page_bytes, [*pages])
        with writing(path), replaced_whole(path, private=True) as file:
            write(file, recording, pages)
    stats = buffer_stats(instance.files, instance.path)
    return stats.overrun + stats.dropped


def _left(session: TraceSession, started: float) -> float:
    return TURN if session.seconds is None else started + session.seconds - time.monotonic()


def _copy(
    instance: Instance,
    pipes: Mapping[int, int],
    writes: Mapping[int, Callable[[bytes], object]],
    page_bytes: int,
) -> None:
    """Append the pages that each CPU has now."""
    for cpu, pipe in pipes.items():
        for page in read_pages(instance, pipe, page_bytes):
            writes[cpu](page)
