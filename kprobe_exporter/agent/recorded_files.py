"""Writes the window of a buffer that has stopped into the files of a recording."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

from kprobe_exporter.agent.recorded_parts import has_nested_calls, joined_by_kernel, with_names
from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.aggregate.recipes import record_filters
from kprobe_exporter.config.recordings import Format
from kprobe_exporter.errors import counted
from kprobe_exporter.export.perfetto import Timeline
from kprobe_exporter.export.trace_dat import write
from kprobe_exporter.grammar.event_format import parse_format
from kprobe_exporter.identity.running import Places
from kprobe_exporter.identity.threads import Threads
from kprobe_exporter.model.record_layout import Geometry
from kprobe_exporter.model.records import Batch, Layout
from kprobe_exporter.plan.tracepoint import whole_event
from kprobe_exporter.probing.attach import Attached
from kprobe_exporter.probing.event_source import KernelNames, read_files
from kprobe_exporter.recording.directory import Directory
from kprobe_exporter.recording.marks import SYSTEM, marks_layout
from kprobe_exporter.recording.pages import describe_recording, page_geometry, pages_since, read_pages
from kprobe_exporter.recording.timeline import TimelineEvents, clocks
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.tracefs.definitions import SYNTHETIC
from kprobe_exporter.tracefs.instance import Instance

log = logging.getLogger(__name__)

ENDINGS: Mapping[Format, str] = {"trace.dat": "dat", "perfetto": "pftrace"}


class Recorded(NamedTuple):
    """The content of a buffer: its events as ``SYSTEM/EVENT``, the probes, and tracepoints as they are.

    ``marks``: programs' marks are drawn. ``own`` are events that were recorded in the place of others.
    """

    events: Sequence[str] = ()
    probes: Sequence[tuple[str, Attached]] = ()
    tracepoints: Sequence[str] = ()
    marks: bool = False
    own: Mapping[str, str] = MappingProxyType({})


def write_files(
    directory: Directory,
    base: str,
    formats: Sequence[Format],
    stopped: Instance,
    recorded: Recorded,
    symbols: Symbols,
    since: int,
    places: Places,
) -> Iterator[str]:
    """Write the events since a moment; yield the name of each file once it is complete.

    Raises TracefsError, TooLarge, and OSError if a file cannot be written.
    """
    form = page_geometry(stopped.files)
    with ExitStack() as stack:
        pipes = stopped.open_raw()
        for pipe in pipes.values():
            stack.callback(os.close, pipe)
        pages = {cpu: stack.enter_context(directory.temporary()) for cpu in pipes}
        for cpu, pipe in pipes.items():
            pages[cpu].writelines(pages_since(read_pages(stopped, pipe, form.page), since, form))
            pages[cpu].seek(0)
        for each in formats:
            with directory.written(f"{base}.{ENDINGS[each]}") as file:
                if each == "trace.dat":
                    _write_trace_dat(file, stopped, recorded, form, pages)
                else:
                    _draw(file, stopped, recorded, form, pages, symbols, places)
            yield f"{base}.{ENDINGS[each]}"


def _write_trace_dat(
    file: BinaryIO, stopped: Instance, recorded: Recorded, form: Geometry, pages: Mapping[int, BinaryIO]
) -> None:
    there = (recorded.own.get(each, each).split("/") for each in recorded.events)
    events = [(system, event) for system, event in there if stopped.event_format(system, event) is not None]
    # Without the kernel's symbols: they would be 10 MB of each file, and tell where the kernel lies.
    described = describe_recording(stopped, events, form.page, [*pages], symbols=False)
    names = {_name_line(own): _name_line(event) for event, own in recorded.own.items()}
    joined = {
        _name_line(each.layout.event): each
        for _, each in recorded.probes
        if joined_by_kernel(each) is not None
    }

    def shown(text: bytes) -> bytes:
        first, rest = text[: (end := text.find(b"\n") + 1)], text[end:]
        return with_names(text, joined[first]) if first in joined else names.get(first, first) + rest

    formats = {system: [*map(shown, texts)] for system, texts in described.events.items()}
    write(file, described._replace(events=formats), pages)


def _name_line(event: str) -> bytes:
    """The first line of the format of an event ``SYSTEM/EVENT``."""
    return f"name: {event.rpartition('/')[2]}\n".encode()


def _draw(
    file: BinaryIO,
    stopped: Instance,
    recorded: Recorded,
    form: Geometry,
    pages: Mapping[int, BinaryIO],
    symbols: Symbols,
    places: Places,
) -> None:
    """Write a timeline. Calls and pairs that began before the window are not drawn."""
    threads, pairing = Threads(stopped.files), Pairing()
    events = TimelineEvents(Timeline(file.write, clocks(), places.name), threads.comm)
    layouts: dict[Layout, str] = {}
    for name, attached in recorded.probes:
        if (layout := joined_by_kernel(attached)) is not None:
            events.add_joined(name, layout, nested=has_nested_calls(attached))
            layouts[layout] = SYNTHETIC
            continue
        events.add(name, attached.layout, attached.joined, attached.residual_filter)
        for layout, system in attached.layouts.items():
            own = recorded.own.get(f"{system}/{layout.event}", layout.event)
            layouts[replace(layout, event=own.rpartition("/")[2])] = system
        if attached.joined is not None:
            pairing.add(attached.joined)
    taken = [*layouts, *(attached.layout for _, attached in recorded.probes)]
    numbers = count(1 + max((layout.layout_id for layout in taken), default=0))
    for each in recorded.tracepoints:
        system, _, event = each.partition("/")
        if (text := stopped.event_format(system, event)) is not None:
            layout = whole_event(next(numbers), parse_format(text))
            events.add(event, layout)
            layouts[layout] = system
    if recorded.marks:
        layout = marks_layout(next(numbers))
        events.add_marks(layout)
        layouts[layout] = SYSTEM
    filters = record_filters(attached.part_filters for _, attached in recorded.probes)

    def deliver(batch: Batch) -> None:
        events.consume(pairing.pair(batch))

    for opened in pages.values():
        opened.seek(0)
    descriptors = {cpu: opened.fileno() for cpu, opened in pages.items()}
    read_files(stopped, form, descriptors, layouts, filters, KernelNames(threads, symbols), deliver)
    if refused := events.finish():
        refused_marks = counted(refused, "mark")
        log.warning("a timeline of %s lacks %s with the id of another process", stopped.name, refused_marks)
