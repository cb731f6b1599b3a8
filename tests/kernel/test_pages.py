"""The ring buffer gives the same events, in the same order, as the kernel's own text and as raw pages.

With ``tracing_on`` 0, ``trace`` prints the buffer without consuming it. Then the raw pages of the same
buffer are read.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.model.records import CPU, Record
from kprobe_exporter.source.lines import LineParser
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import Installed
from tests.conftest import has
from tests.model import pages
from tests.support.installed_probes import batches, compare, installed
from tests.support.private_tracefs import TRACEFS
from tests.support.system_calls import of_fsync
from tests.vm.kernels import EPROBES

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
{eprobe}"""

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


CHARACTERS = """      letters: +0($arg3):char[2]
      letter: +u0($arg2):char"""
"""Not the third byte of the flags: on arm64 O_CLOEXEC and O_LARGEFILE make it a newline, which the kernel
prints as it is. The kernel takes no array in a program's memory."""


EPROBE = """  - name: event
    attach: tracepoint:syscalls:sys_exit_openat
    fetch: {return: ret}
    returns: long
    metrics: [{counter: events_total, help: h, labels: [comm, return]}]
"""


def tracepoints() -> str:
    """Return TRACEPOINTS, without the fields that this kernel's text does not show as they are (7.2)."""
    if "__print_flags" not in (TRACEFS / "events/syscalls/sys_enter_openat/format").read_text():
        return TRACEPOINTS
    text = TRACEPOINTS.replace("    fetch: {dfd: dfd, flags: flags, mode: mode}\n", "")
    return text.replace("labels: [dfd, flags, mode]", "labels: [tid]")


def kprobes() -> str:
    """Return KPROBES, with arguments of type char and an eprobe if the kernel has these."""
    text = KPROBES.replace("{characters}", CHARACTERS if has("char, string") else "")
    return text.replace("{eprobe}", EPROBE if has(EPROBES) else "")


@pytest.fixture
def instance(files: MountedTracefs) -> Iterator[Instance]:
    with Instance.acquire(files, NAME) as made:
        made.set_up(80_000, record_tgid=False)
        made.write("tracing_on", "0")
        yield made


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


def stacked(instance: Instance, probes: list[Installed], kind: Any) -> list[tuple[Record, tuple[bytes, ...]]]:
    """Return the stacks of the raw pages, each with its record."""
    return [stack for batch in batches(instance, probes, kind) for stack in batch.stacks]


@pytest.mark.needs("kprobe_events")
def test_kprobes_on_all_cpus(instance: Instance, tmp_path: Path, events: int) -> None:
    with installed(instance, tmp_path, kprobes(), own=False) as probes:
        instance.write("tracing_on", "1")
        work(-(-events // KINDS // len(os.sched_getaffinity(0))))
        instance.write("tracing_on", "0")
        found = compare(instance, probes, compiled.PageParser)
    assert min(found.values()) >= events // KINDS


def test_tracepoints_on_all_cpus(instance: Instance, tmp_path: Path, events: int) -> None:
    with installed(instance, tmp_path, tracepoints(), own=True) as probes:
        instance.write("tracing_on", "1")
        work(-(-events // 2 // len(os.sched_getaffinity(0))))
        instance.write("tracing_on", "0")
        found = compare(instance, probes, compiled.PageParser)
    assert found["plain"] + found["entered"] >= events


@pytest.mark.parametrize("kind", [pages.PageParser, compiled.PageParser], ids=["python", "compiled"])
def test_tracepoints(instance: Instance, tmp_path: Path, kind: Any) -> None:
    with installed(instance, tmp_path, tracepoints(), own=True) as probes:
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
    with installed(instance, tmp_path, tracepoints(), own=True) as probes:
        instance.write("tracing_on", "1")
        work(5000)
        instance.write("tracing_on", "0")
        assert "size:65520;" in instance.read("events/header_page").decode()
        assert compare(instance, probes, compiled.PageParser)["plain"] >= 5000


DEEP = f"""
probes:
  - {{name: deep, attach: "kretprobe:ksys_read", returns: long, filter: return == 77, stack: true}}
  - {{name: shallow, attach: "kprobe:{of_fsync()}", stack: true}}
"""


RETURNS, TRAMPOLINE = b"[unknown/kretprobe'd]", b"kretprobe_trampoline"
"""What the text of Linux 5.10 says of an address at which a probed function returns, and its symbol."""


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
        expected = [
            (record[0], record[CPU], tuple(frame.replace(RETURNS, TRAMPOLINE) for frame in frames))
            for record, frames in lines
        ]
        found = [(record[0], record[CPU], frames) for record, frames in stacked(instance, probes, kind)]
    assert len(found) >= 46
    assert sorted(found) == sorted(expected)
