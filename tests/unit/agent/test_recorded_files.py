"""The files of a recording, from the pages of a buffer that has stopped."""

import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # type: ignore[import-untyped]
    Trace,
    TrackEvent,
)

from kprobe_exporter.agent.recorded_files import Recorded, write_files
from kprobe_exporter.agent.recorded_parts import recorded_filter, recorded_parts, with_names
from kprobe_exporter.identity.running import Places
from kprobe_exporter.model.hist import HistEvent, HistKey
from kprobe_exporter.model.records import Join, Layout
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan import JoinedSpec
from kprobe_exporter.recording.directory import Directory
from tests.support.fake_pages import HEADERS, PRINT_ID, marker, pages
from tests.support.ring_buffer import event

TID = 2_000_000_001
"""No thread has it: ids are below 4,194,304 (PID_MAX_LIMIT)."""
BEGIN, END, JOINED = 700, 701, 702
COMMON = (
    "format:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n"
    "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n"
)
FORMATS = {
    "syscalls/sys_enter_nap": f"name: sys_enter_nap\nID: {BEGIN}\n{COMMON}"
    "\tfield:int clock;\toffset:8;\tsize:4;\tsigned:1;\n",
    "syscalls/sys_exit_nap": f"name: sys_exit_nap\nID: {END}\n{COMMON}"
    "\tfield:long ret;\toffset:8;\tsize:8;\tsigned:1;\n",
}
FORMATS["synthetic/agent_PAIR_1"] = (
    f"name: agent_PAIR_1\nID: {JOINED}\n{COMMON}\tfield:u64 duration;\toffset:8;\tsize:8;\tsigned:0;\n"
    "\tfield:s32 field0;\toffset:16;\tsize:4;\tsigned:1;\n\n"
    'print fmt: "duration=%llu, field0=%d", REC->duration, REC->field0\n'
)
FORMATS["ftrace/print"] = (
    f"name: print\nID: {PRINT_ID}\n{COMMON}\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;\n"
    "\tfield:char buf[];\toffset:16;\tsize:0;\tsigned:0;\n"
)
ENTER = Layout(1, "nap", "sys_enter_nap", "tracepoint", "sys_enter_nap", (Arg("clock", "int"),))
EXIT = Layout(2, "nap", "sys_exit_nap", "tracepoint", "sys_exit_nap", (Arg("ret", "int"),))
NAP = Layout(3, "nap", "nap", "joined", "nap", (Arg("clock", "int"), Arg("duration", "int")))
NAPS = SimpleNamespace(
    pair=None,
    layout=NAP,
    joined=Join(NAP, (ENTER,), EXIT, "key", ("tid",)),
    layouts={EXIT: "syscalls", ENTER: "syscalls"},
    residual_filter=None,
    part_filters={},
)


MADE = HistEvent((HistKey("clock", "field0", 32, signed=True), HistKey("duration", "duration")), "field0 > 0")


def joined_in_kernel(by: str, key: tuple[str, ...]) -> Any:
    """A probe that the kernel joins."""
    layout = Layout(3, "nap", "agent_PAIR_1", "joined", "nap")
    whole = ProbeSpec("nap", "call", "t", "", None, "", "", None, layout, "synthetic", role="sum")
    last = SimpleNamespace(spec=replace(whole, hist_event=MADE, plan="kernel"), event="agent_PAIR_1")
    spec = JoinedSpec("nap", "call", "t", "", 3, (), cast("Any", by), key, None)
    parts = SimpleNamespace(), SimpleNamespace(), last
    return SimpleNamespace(
        spec=spec, pair=object(), parts=parts, layout=layout, joined=None, layouts={}, part_filters={}
    )


class Files:
    """A tracefs with nothing but the layout of pages."""

    def read(self, path: str) -> bytes:
        if (name := path.removeprefix("events/")) in HEADERS:
            return HEADERS[name].encode()
        raise FileNotFoundError(path)

    def open_pipe(self, path: str) -> int:
        raise FileNotFoundError(path)


class Stopped:
    """An instance that has stopped, with the records of each CPU and their times."""

    def __init__(self, directory: Path, cpus: dict[int, list[tuple[int, bytes]]]) -> None:
        self.files, self.name, self.path = Files(), "slow.a", "instances/slow.a"
        self._pages = {cpu: directory / f"cpu{cpu}" for cpu in cpus}
        for cpu, records in cpus.items():
            self._pages[cpu].write_bytes(b"".join(pages(records)))

    def event_format(self, system: str, event: str) -> str | None:
        return FORMATS.get(f"{system}/{event}")

    def open_raw(self) -> dict[int, int]:
        return {cpu: os.open(file, os.O_RDONLY) for cpu, file in self._pages.items()}


def enter(clock: int = 0, tid: int = TID) -> bytes:
    return event(BEGIN, tid, struct.pack("=i", clock))


def leave(tid: int = TID) -> bytes:
    return event(END, tid, struct.pack("=q", 0))


def drawn(tmp_path: Path, cpus: dict[int, list[tuple[int, bytes]]], recorded: Recorded) -> list[Any]:
    """Return the packets of the timeline of these records."""
    directory = Directory(tmp_path / "files", 1 << 30, 10)
    directory.prepare()
    stopped, symbols = cast("Any", Stopped(tmp_path, cpus)), cast("Any", SimpleNamespace(visible=bool))
    base = "slow-20261130T031207.512Z"
    [name] = write_files(directory, base, ("perfetto",), stopped, recorded, symbols, 1, Places())
    read = Trace()
    read.ParseFromString((directory.path / name).read_bytes())
    return list(read.packet)


def slices(packets: list[Any]) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the start and the end of each slice, which one packet after the other makes."""
    events = [packet for packet in packets if packet.HasField("track_event")]
    for begin, end in zip(events[::2], events[1::2], strict=True):
        assert begin.track_event.type == TrackEvent.TYPE_SLICE_BEGIN
        assert end.track_event.type == TrackEvent.TYPE_SLICE_END
        yield begin.track_event.name, begin.timestamp, end.timestamp


@pytest.mark.parametrize("first", [0, 1])
def test_call_whose_halves_are_on_two_cpus(tmp_path: Path, first: int) -> None:
    """The other CPU has much more to read before and after them."""
    busy = [(time, enter(tid=TID + 1)) for time in range(2, 60_000, 2)]
    records = {first: [(10_001, enter(7))], 1 - first: sorted([*busy, (50_001, leave())])}
    recorded = Recorded((), [("nap", cast("Any", NAPS))])
    assert list(slices(drawn(tmp_path, records, recorded))) == [("nap", 10_001, 50_001)]


@pytest.mark.parametrize("wanted", [True, False])
def test_marks_are_drawn_if_wanted(tmp_path: Path, wanted: bool) -> None:
    """They are of two CPUs, and the last one names another process."""
    long = "B|1|" + "n" * 150
    records = {
        0: [(10, marker(TID, f"{long}\n")), (40, marker(TID, "E|1\n"))],
        1: [(20, marker(TID, "B|1|in\n"))],
    }
    records[1].append((30, marker(TID, "E|1\n")))
    packets = drawn(tmp_path, records, Recorded(marks=wanted))
    assert [*slices(packets)] == ([("in", 20, 30), ("n" * 150, 10, 40)] if wanted else [])
    named = [packet.track_descriptor.name for packet in packets if packet.track_descriptor.parent_uuid]
    assert ("marks" in named) == wanted


@pytest.mark.needs("initial_pid_namespace")
def test_refused_marks_are_counted_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = os.getpid()
    records = {0: [(10, marker(own, f"B|{own + 1}|forged\n")), (20, marker(own, f"E|{own}\n"))]}
    assert [*slices(drawn(tmp_path, records, Recorded(marks=True)))] == []
    assert caplog.messages == ["a timeline of slow.a lacks 1 mark with the id of another process"]


@pytest.mark.parametrize(("by", "key"), [("stack", ()), ("key", ("tid",)), ("key", ("request",))])
def test_call_that_the_kernel_joins(tmp_path: Path, by: str, key: tuple[str, ...]) -> None:
    """Its event has the time of the end. Only calls of a thread are on the thread's track."""
    records = {0: [(50_001, event(JOINED, TID, struct.pack("=qi", 40_000, 7)))]}
    packets = drawn(tmp_path, records, Recorded((), [("nap", joined_in_kernel(by, key))]))
    assert list(slices(packets)) == [("nap", 10_001, 50_001)]
    [begin] = [one for one in packets if one.track_event.type == TrackEvent.TYPE_SLICE_BEGIN]
    values = {one.name: one.int_value or one.uint_value for one in begin.track_event.debug_annotations}
    assert values["clock"] == 7
    tracks = {one.track_descriptor.uuid: one.track_descriptor for one in packets}
    on_thread = tracks[begin.track_event.track_uuid].thread.tid == TID
    assert on_thread == (key != ("request",))


def test_format_of_an_event_that_the_kernel_makes_has_the_names_of_the_configuration() -> None:
    probe = joined_in_kernel("stack", ())
    shown = with_names(FORMATS["synthetic/agent_PAIR_1"].encode(), probe).decode()
    assert shown.startswith(f"name: nap\nID: {JOINED}\n")
    assert "field:s32 clock;" in shown
    assert shown.endswith('"duration=%llu, clock=%d", REC->duration, REC->clock\n')


def test_only_the_joined_event_is_recorded_with_its_condition() -> None:
    probe = joined_in_kernel("stack", ())
    [part] = recorded_parts(probe)
    assert part.event == "agent_PAIR_1"
    assert recorded_filter(part.spec) == "field0 > 0"
    by_agent = replace(part.spec, plan="events", filter="clock == 1", sample="common_pid & 1")
    assert recorded_filter(by_agent) == "(clock == 1) && common_pid & 1"
