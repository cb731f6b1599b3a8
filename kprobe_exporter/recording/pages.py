"""Reads the pages of a ring buffer, cuts them to a window of time, and describes them for a trace.dat."""

import errno
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from kprobe_exporter.errors import GrammarError, TracefsError, sentence
from kprobe_exporter.export.trace_dat import CPU_STATISTICS, SYSTEM_NAME, TRACE_CLOCK, Recording
from kprobe_exporter.identity.threads import living
from kprobe_exporter.model.record_layout import Geometry
from kprobe_exporter.plan.shape import geometry
from kprobe_exporter.symbols.lists import SYMBOLS
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kernel_files import running_kernel

_LOST = 3 << 30
"""In the length of a page: events before it were lost, and their number follows its events."""

_PADDING, _EXTEND, _STAMP = 29, 30, 31
"""Types of a record (include/linux/ring_buffer.h): no event, more time, the whole time."""

_TIME_BITS, _STAMP_BITS = 27, 59


def page_geometry(files: Tracefs) -> Geometry:
    """Return the layout of a page of the ring buffer. Raises TracefsError."""
    page, event = (files.read(f"events/{name}").decode() for name in ("header_page", "header_event"))
    try:
        return geometry(page, event)
    except GrammarError as error:
        raise TracefsError(sentence(error.message)) from None


def read_pages(instance: Instance, pipe: int, page_bytes: int) -> Iterator[bytes]:
    """Yield the unread pages of a CPU, in full size; none if it was never online. Raises TracefsError."""
    while page := _read_page(instance, pipe, page_bytes):
        yield page.ljust(page_bytes, b"\0")


def _read_page(instance: Instance, pipe: int, page_bytes: int) -> bytes:
    try:
        return os.read(pipe, page_bytes)
    except BlockingIOError:
        return b""
    except OSError as error:
        if error.errno == errno.ENODEV:
            return b""
        raise TracefsError(instance.cannot_read(error)) from None


def pages_since(pages: Iterable[bytes], since: int, form: Geometry) -> Iterator[bytes]:
    """Yield the pages of a CPU without the events before ``since``, in nanoseconds of the buffer's clock.

    A mark of lost events stays only if events may have been lost after ``since``.
    """
    held: bytes | None = None
    for page in pages:
        if held is not None and _begin(page) >= since:
            yield from _cut(held, since, form)
        held = page
    if held is not None:
        yield from _cut(held, since, form)


def _begin(page: bytes) -> int:
    return int.from_bytes(page[:8], sys.byteorder)


def _cut(page: bytes, since: int, form: Geometry) -> Iterator[bytes]:
    """Yield the page without its events before ``since``; nothing if no event is left."""
    time = _begin(page)
    if time >= since:
        yield page
        return
    end = form.data + (int.from_bytes(page[form.commit : form.commit + 4], sys.byteorder) & ~_LOST)
    at = form.data
    while at + 4 <= end:
        (word,) = struct.unpack_from("=I", page, at)
        kind, delta = word & 31, word >> 5
        (more,) = struct.unpack_from("=I", page, at + 4) if at + 8 <= len(page) else (0,)
        if kind == _PADDING and not delta:
            return
        before, size = time, 4 + (more if kind in (0, _PADDING) else 4 if kind > _PADDING else 4 * kind)
        if kind == _STAMP:
            time = time >> _STAMP_BITS << _STAMP_BITS | more << _TIME_BITS | delta
        else:
            time += delta | (more << _TIME_BITS if kind == _EXTEND else 0)
        if time >= since:
            rest = page[at:end]
            head = struct.pack("=Q", before) + page[8 : form.commit]
            length = len(rest).to_bytes(form.commit_size, sys.byteorder)
            yield (head + length).ljust(form.data, b"\0") + rest.ljust(form.page - form.data, b"\0")
            return
        at += size + 3 & ~3


def describe_recording(
    instance: Instance,
    events: Iterable[tuple[str, str]],
    page_bytes: int,
    cpus: Sequence[int],
    *,
    symbols: bool = True,
) -> Recording:
    """Read the kernel's descriptions of itself and of the events, pairs of a system and a name.

    ``symbols``: the addresses of all functions are among them, about 10 MB.
    """
    files = instance.files
    formats = {name: _read(files, f"events/ftrace/{name}/format") for name in files.names("events/ftrace")}
    by_system: dict[str, list[bytes]] = {}
    for system, event in events:
        by_system.setdefault(system, []).append(instance.read(f"events/{system}/{event}/format"))
    names = b"".join(b"%d %s\n" % (tid, name.replace(b"\n", b" ")) for tid, name in living().items())
    statistics = (
        f"CPU: {cpu}\n".encode() + _read(files, f"{instance.path}/per_cpu/cpu{cpu}/stats") for cpu in cpus
    )
    uname = os.uname()
    return Recording(
        page_bytes,
        files.read("events/header_page"),
        files.read("events/header_event"),
        [text for text in formats.values() if text],
        by_system,
        _symbols(files) if symbols else b"",
        _read(files, "printk_formats"),
        _read(files, "saved_cmdlines") + names,
        [
            (TRACE_CLOCK, instance.read("trace_clock")),
            (SYSTEM_NAME, f"{uname.sysname} {uname.nodename} {uname.release} {uname.machine}\0".encode()),
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
