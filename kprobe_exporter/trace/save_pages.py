"""``--trace-dat``: copies the pages of the ring buffer into a file that trace-cmd and KernelShark read."""

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from kprobe_exporter.errors import GrammarError, TracefsError, sentence
from kprobe_exporter.export.trace_dat import CPU_STATISTICS, SYSTEM_NAME, TRACE_CLOCK, Recording, write
from kprobe_exporter.identity.threads import living
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.plan.shape import geometry
from kprobe_exporter.symbols.lists import SYMBOLS
from kprobe_exporter.trace.output import writing
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.trace.text import installed
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kernel_files import running_kernel
from kprobe_exporter.tracefs.probes import Installed
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
    page_bytes = _page_bytes(instance.files)
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
        recording = _recording(instance, probes, page_bytes, [*pages])
        with writing(path):
            # A CPU without a number between others would shift all that follow.
            empty = stack.enter_context(TemporaryFile(dir=path.parent))
            with replaced_whole(path, private=True) as file:
                write(file, recording, [pages.get(cpu, empty) for cpu in range(max(pages) + 1)])
    stats = buffer_stats(instance.files, instance.path)
    return stats.overrun + stats.dropped


def _left(session: TraceSession, started: float) -> float:
    return TURN if session.seconds is None else started + session.seconds - time.monotonic()


def _page_bytes(files: Tracefs) -> int:
    """Return the size of a page of the ring buffer. Raises TracefsError."""
    page, event = (files.read(f"events/{name}").decode() for name in ("header_page", "header_event"))
    try:
        return geometry(page, event).page
    except GrammarError as error:
        raise TracefsError(sentence(error.message)) from None


def _copy(
    instance: Instance,
    pipes: Mapping[int, int],
    writes: Mapping[int, Callable[[bytes], object]],
    page_bytes: int,
) -> None:
    """Append the pages that each CPU has now."""
    for cpu, pipe in pipes.items():
        while page := _read_page(instance, pipe, page_bytes):
            writes[cpu](page.ljust(page_bytes, b"\0"))


def _read_page(instance: Instance, pipe: int, page_bytes: int) -> bytes:
    """Return the next page; nothing if there is none, or if the CPU was never online. Raises TracefsError."""
    try:
        return os.read(pipe, page_bytes)
    except BlockingIOError:
        return b""
    except OSError as error:
        if error.errno == errno.ENODEV:
            return b""
        raise TracefsError(instance.cannot_read(error)) from None


def _recording(
    instance: Instance, probes: Sequence[Installed], page_bytes: int, cpus: Sequence[int]
) -> Recording:
    """Read what the kernel tells of itself and of the events."""
    files = instance.files
    formats = {name: _read(files, f"events/ftrace/{name}/format") for name in files.names("events/ftrace")}
    events: dict[str, list[bytes]] = {}
    for probe in probes:
        path = f"events/{probe.system}/{probe.event}/format"
        events.setdefault(probe.system, []).append(instance.read(path))
    names = b"".join(b"%d %s\n" % (tid, name.replace(b"\n", b" ")) for tid, name in living().items())
    statistics = (
        f"CPU: {cpu}\n".encode() + _read(files, f"{instance.path}/per_cpu/cpu{cpu}/stats") for cpu in cpus
    )
    system = os.uname()
    return Recording(
        page_bytes,
        files.read("events/header_page"),
        files.read("events/header_event"),
        [text for text in formats.values() if text],
        events,
        _symbols(files),
        _read(files, "printk_formats"),
        _read(files, "saved_cmdlines") + names,
        [
            (TRACE_CLOCK, instance.read("trace_clock")),
            (SYSTEM_NAME, f"{system.sysname} {system.nodename} {system.release} {system.machine}\0".encode()),
            *((CPU_STATISTICS, text + b"\0") for text in statistics),
        ],
    )


def _symbols(files: Tracefs) -> bytes:
    with suppress(OSError):
        return b"".join(running_kernel(files).blocks(SYMBOLS))
    return b""


def _read(files: Tracefs, path: str) -> bytes:
    """Return a file's content; nothing if it cannot be read, as the ``enable`` of a system."""
    with suppress(OSError):
        return files.read(path)
    return b""
