"""The ring buffer gives the same events, in the same order, as the kernel's own text and as raw pages.

With ``tracing_on`` 0, ``trace`` prints the buffer without consuming it. Then the raw pages of the same
buffer are read.
"""

import os
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.identity.threads import Threads
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.values import CPU, TGID, TIME, Batch, Layout, ProbeSpec, Record
from kprobe_exporter.plan import Kernel, plan_probe
from kprobe_exporter.plan.shape import geometry, shape, stacks
from kprobe_exporter.probing.event_source import KernelNames
from kprobe_exporter.source import pages
from kprobe_exporter.source.binary import BinaryPipe
from kprobe_exporter.source.lines import LineParser
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import Installed, install, names_in_use
from tests.conftest import has

compiled: Any = pytest.importorskip("kprobe_exporter.source._pages")

NAME = "kprobe_exporter_pages"
KINDS = 3
"""Events of one open: the kprobe, the kretprobe and the eprobe."""

KPROBES = """
probes:
  - name: entry
    attach: kprobe:do_sys_openat2
    fetch:
      dfd: $arg1:s32
      low: $arg1:b4@4/32
      byte: $arg1:u8
      small: $arg1:s8
      half: $arg1:x16
      how: +0($arg3):x64[3]
      bytes: +0($arg3):u8[4]
      signs: +0($arg3):s32[2]
{characters}
      place: $arg3:symbol
      path: +u0($arg2):ustring
      paths: +u0($arg2):ustring[1]
    metrics: [{counter: entries_total, help: h, labels: [comm]}]
  - name: back
    attach: kretprobe:do_sys_openat2
    returns: int
    metrics: [{counter: backs_total, help: h, labels: [comm, return, caller]}]
  - name: event
    attach: tracepoint:syscalls:sys_exit_openat
    fetch: {return: ret}
    returns: long
    metrics: [{counter: events_total, help: h, labels: [comm, return]}]
"""

TRACEPOINTS = """
probes:
  - name: plain
    attach: tracepoint:syscalls:sys_exit_openat
    fetch: {return: ret}
    returns: long
    metrics: [{counter: plains_total, help: h, labels: [return]}]
  - name: entered
    attach: tracepoint:syscalls:sys_enter_openat
    fetch: {dfd: dfd, flags: flags, mode: mode}
    metrics: [{counter: entered_total, help: h, labels: [dfd, flags, mode]}]
  - name: switch
    attach: tracepoint:sched:sched_switch
    fetch: {from: prev_comm, to: next_comm, state: prev_prio}
    metrics: [{counter: switches_total, help: h, labels: [from, to, state]}]
  - name: exec
    attach: tracepoint:sched:sched_process_exec
    fetch: {file: filename, old: old_pid}
    metrics: [{counter: execs_total, help: h, labels: [file, old]}]
"""


CHARACTERS = """      letters: +0($arg3):char[3]
      letter: +u0($arg2):char"""


def kprobes() -> str:
    """Return KPROBES, with arguments of type char if the kernel has it."""
    return KPROBES.replace("{characters}", CHARACTERS if has("char, string") else "")


@pytest.fixture
def instance(files: MountedTracefs) -> Iterator[Instance]:
    with Instance.acquire(files, NAME) as made:
        made.set_up(80_000, record_tgid=False)
        made.write("tracing_on", "0")
        yield made


@contextmanager
def installed(instance: Instance, tmp_path: Path, text: str, *, own: bool) -> Iterator[list[Installed]]:
    """Install a configuration's probes; ``own`` prefers tracepoints themselves to eprobes on them."""
    path = tmp_path / "probes.yaml"
    path.write_text(text)
    path.chmod(0o600)
    kernel = Kernel(instance.event_format, counts_tracepoints=True)
    layout_ids, taken = count(), names_in_use(instance)
    probes: list[Installed] = []
    try:
        for probe in load([path], DECODERS).probes:
            plan = plan_probe(probe, "ns", DECODERS, kernel, layout_ids)
            ways = [way for way in plan.alternatives if isinstance(way, ProbeSpec)]
            (spec, *_) = [way for way in ways if way.plan == "events" and (way.file is None) == own] or ways
            probes.append(install(instance, replace(spec, filter=None), taken))
            probes[-1].enable()
        yield probes
    finally:
        for one in probes:
            one.remove()


def work(turns: int) -> None:
    """Open files on every CPU at once, with paths that the kernel's text shows unambiguously."""
    children = []
    for cpu in os.sched_getaffinity(0):
        if child := os.fork():
            children.append(child)
            continue
        os.sched_setaffinity(0, {cpu})
        paths = (b"/dev/null", b"/nonexistent", b'/q" x="1', b"/\xff\xfe", b"/" + b"long" * 40)
        for turn in range(turns):
            with suppress(OSError):
                os.close(os.open(paths[turn % len(paths)], os.O_RDONLY | os.O_CLOEXEC))
        os._exit(0)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0


def by_text(instance: Instance, layouts: list[Layout]) -> Iterator[Record]:
    """Yield the records that ``trace`` prints, without consuming them."""
    parser = LineParser(layouts)
    with open(f"/sys/kernel/tracing/{instance.path}/trace", "rb", buffering=0) as trace:
        while data := trace.read(1 << 20):
            batch = parser.feed(data)
            assert batch.unparsed == 0
            yield from batch.records


def by_pages(instance: Instance, probes: list[Installed], kind: Any) -> list[Record]:
    """Return the records of the raw pages, in the order in which they are delivered."""
    return [record for batch in batches(instance, probes, kind) for record in batch.records]


def stacked(instance: Instance, probes: list[Installed], kind: Any) -> list[tuple[Record, tuple[bytes, ...]]]:
    """Return the stacks of the raw pages, each with its record."""
    return [stack for batch in batches(instance, probes, kind) for stack in batch.stacks]


def batches(instance: Instance, probes: list[Installed], kind: Any) -> list[Batch]:
    """Read the raw pages to the end; return what they hold."""
    headers = [instance.read(f"events/{name}").decode() for name in ("header_page", "header_event")]
    form = instance.event_format("ftrace", "kernel_stack")
    assert form is not None
    shapes = []
    for probe in probes:
        text = instance.event_format(probe.system, probe.event)
        assert text is not None
        shapes.append(shape(probe.layout, text))
    names = KernelNames(Threads(instance.files.read), Symbols(instance.files))
    form_of_page = geometry(*headers)
    parser = kind(form_of_page, shapes, names, stacks(form))
    found: list[Batch] = []
    pipe = BinaryPipe(instance.open_raw(), parser, found.append, budget=1 << 20, page=form_of_page.page)
    pipe.empty(last=True)
    pipe.close()
    assert sum(batch.unparsed for batch in found) == 0
    return found


def compare(instance: Instance, probes: list[Installed], kind: Any) -> dict[str, int]:
    """Assert that text and pages give the same records; return the number of events of each probe."""
    lines = by_text(instance, [probe.layout for probe in probes])
    expected: defaultdict[int, deque[Record]] = defaultdict(deque)
    for record in lines:
        expected[record[CPU]].append(record)
    names = {probe.layout.layout_id: probe.spec.probe for probe in probes}
    found: dict[str, int] = dict.fromkeys(names.values(), 0)
    before = 0
    for record in by_pages(instance, probes, kind):
        cells = list(record)
        assert cells[TIME] >= before
        before = cells[TIME]
        cells[TIME] = (cells[TIME] + 500) // 1000 * 1000  # ns2usecs() of kernel/trace/trace.h
        cells[TGID] = None
        assert tuple(cells) == expected[record[CPU]].popleft()
        found[names[record[0]]] += 1
    assert not any(expected.values())
    return found


@pytest.mark.needs("kprobe_events")
def test_kprobes_on_all_cpus(instance: Instance, tmp_path: Path, events: int) -> None:
    with installed(instance, tmp_path, kprobes(), own=False) as probes:
        instance.write("tracing_on", "1")
        work(-(-events // KINDS // len(os.sched_getaffinity(0))))
        instance.write("tracing_on", "0")
        found = compare(instance, probes, compiled.PageParser)
    assert min(found.values()) >= events // KINDS


def test_tracepoints_on_all_cpus(instance: Instance, tmp_path: Path, events: int) -> None:
    with installed(instance, tmp_path, TRACEPOINTS, own=True) as probes:
        instance.write("tracing_on", "1")
        work(-(-events // 2 // len(os.sched_getaffinity(0))))
        instance.write("tracing_on", "0")
        found = compare(instance, probes, compiled.PageParser)
    assert found["plain"] + found["entered"] >= events


@pytest.mark.needs("kprobe_events")
def test_without_a_compiler(instance: Instance, tmp_path: Path) -> None:
    with installed(instance, tmp_path, kprobes(), own=False) as probes:
        instance.write("tracing_on", "1")
        work(5000)
        instance.write("tracing_on", "0")
        found = compare(instance, probes, pages.PageParser)
    assert min(found.values()) >= 5000


@pytest.mark.parametrize("kind", [pages.PageParser, compiled.PageParser], ids=["python", "compiled"])
def test_tracepoints(instance: Instance, tmp_path: Path, kind: Any) -> None:
    with installed(instance, tmp_path, TRACEPOINTS, own=True) as probes:
        instance.write("tracing_on", "1")
        work(5000)
        os.system("true")
        instance.write("tracing_on", "0")
        found = compare(instance, probes, kind)
    assert found["plain"] >= 5000
    assert found["entered"] >= 5000
    assert found["switch"] > 0
    assert found["exec"] > 0


@pytest.mark.needs("buffer_subbuf_size_kb")
def test_sub_buffers_of_another_size(instance: Instance, tmp_path: Path) -> None:
    instance.write("buffer_subbuf_size_kb", "64")
    with installed(instance, tmp_path, TRACEPOINTS, own=True) as probes:
        instance.write("tracing_on", "1")
        work(5000)
        instance.write("tracing_on", "0")
        assert "size:65520;" in instance.read("events/header_page").decode()
        assert compare(instance, probes, compiled.PageParser)["plain"] >= 5000


DEEP = """
probes:
  - {name: deep, attach: "kretprobe:ksys_read", returns: long, filter: return == 77, stack: true}
  - {name: shallow, attach: "kprobe:vfs_fsync_range", stack: true}
"""


@pytest.mark.needs("kprobe_events")
@pytest.mark.parametrize("kind", [pages.PageParser, compiled.PageParser], ids=["python", "compiled"])
def test_stacks(instance: Instance, tmp_path: Path, kind: Any) -> None:
    with installed(instance, tmp_path, DEEP, own=False) as probes:
        instance.write("tracing_on", "1")
        for _ in range(23):
            work(1)
            with open("/dev/zero", "rb", buffering=0) as zero:
                zero.read(77)
                with suppress(OSError):
                    os.fsync(zero.fileno())
        instance.write("tracing_on", "0")
        parser, lines = LineParser([probe.layout for probe in probes]), []
        with open(f"/sys/kernel/tracing/{instance.path}/trace", "rb", buffering=0) as trace:
            while data := trace.read(1 << 20):
                lines += parser.feed(data).stacks
        expected = [(record[0], record[CPU], frames) for record, frames in lines]
        found = [(record[0], record[CPU], frames) for record, frames in stacked(instance, probes, kind)]
    assert len(found) >= 46
    assert sorted(found) == sorted(expected)
