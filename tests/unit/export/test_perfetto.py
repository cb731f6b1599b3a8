"""Timelines, read back by Perfetto's own descriptors."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # type: ignore[import-untyped]
    BuiltinClock,
    Trace,
    TrackEvent,
)

from kprobe_exporter.export.perfetto import Clocks, Thread, Timeline

CLOCKS = Clocks(monotonic=1_000, realtime=1_700_000_000_000_000_000, boottime=6_000)


class Read:
    """A timeline under construction, and what Perfetto's descriptors read of it."""

    def __init__(self, places: Mapping[int, str] = MappingProxyType({})) -> None:
        self._data = bytearray()
        self.timeline = Timeline(self._data.extend, CLOCKS, lambda pid: places.get(pid, ""))

    def packets(self) -> list[Any]:
        trace = Trace()
        trace.ParseFromString(bytes(self._data))
        assert trace.SerializeToString() == trace.SerializePartialToString()
        return list(trace.packet)

    def tracks(self) -> dict[int, str]:
        """The names of the tracks: of a thread, a lane or a CPU's losses."""
        found = {}
        for packet in self.packets():
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                thread = f"{track.thread.thread_name} {track.thread.pid}/{track.thread.tid}"
                process = f"process {track.process.process_name}"
                named = thread if track.HasField("thread") else process if track.HasField("process") else ""
                found[track.uuid] = named or track.name
        return found

    def slices(self) -> list[tuple[str, str, int, int]]:
        """Track, name, start and end of each slice, as one that replays the packets by time nests them."""
        names = self.tracks()
        open_: dict[int, list[tuple[str, int]]] = defaultdict(list)
        found = []
        events = [packet for packet in self.packets() if packet.HasField("track_event")]
        for packet in sorted(events, key=lambda packet: packet.timestamp):
            event = packet.track_event
            assert packet.timestamp_clock_id == BuiltinClock.BUILTIN_CLOCK_MONOTONIC
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                open_[event.track_uuid].append((event.name, packet.timestamp))
            elif event.type == TrackEvent.TYPE_SLICE_END:
                name, start = open_[event.track_uuid].pop()
                found.append((names[event.track_uuid], name, start, packet.timestamp))
        assert not any(open_.values())
        return found


def test_the_first_packet_relates_the_clocks() -> None:
    [packet, *_] = Read().packets()
    snapshot = packet.clock_snapshot
    assert {clock.clock_id: clock.timestamp for clock in snapshot.clocks} == {
        BuiltinClock.BUILTIN_CLOCK_MONOTONIC: CLOCKS.monotonic,
        BuiltinClock.BUILTIN_CLOCK_REALTIME: CLOCKS.realtime,
        BuiltinClock.BUILTIN_CLOCK_BOOTTIME: CLOCKS.boottime,
    }
    assert snapshot.primary_trace_clock == BuiltinClock.BUILTIN_CLOCK_BOOTTIME


def test_values_of_an_event() -> None:
    read = Read()
    values = {"ret": -2, "dev": 1 << 63, "path": "/a\udcff", "age": 0.5, "list": [1, 2], "none": None}
    read.timeline.instant(Thread(7, 5, "worker"), "open", 10, values)  # type: ignore[arg-type]
    event = read.packets()[-1].track_event
    assert (event.type, event.name) == (TrackEvent.TYPE_INSTANT, "open")
    shown = {one.name: getattr(one, one.WhichOneof("value")) for one in event.debug_annotations}
    assert shown == {"ret": -2, "dev": 1 << 63, "path": "/a\\udcff", "age": 0.5, "list": "[1, 2]"}


def test_threads_lie_in_their_processes() -> None:
    read = Read()
    for thread in (Thread(7, 5, "worker"), Thread(5, 5, "server"), Thread(9, None, "unknown")):
        read.timeline.instant(thread, "event", 1, {})
    tracks = read.tracks()
    assert sorted(tracks.values()) == [
        "process server",
        "process unknown",
        "server 5/5",
        "unknown 9/9",
        "worker 5/7",
    ]
    parents = {
        tracks[packet.track_descriptor.uuid]: tracks[packet.track_descriptor.parent_uuid]
        for packet in read.packets()
        if packet.track_descriptor.HasField("thread")
    }
    assert parents == {
        "worker 5/7": "process server",
        "server 5/5": "process server",
        "unknown 9/9": "process unknown",
    }


def test_processes_have_their_pods_beside_their_names() -> None:
    read = Read({5: "shop/web-1", 8: "shop/db-0"})
    for thread in (Thread(7, 5, "worker"), Thread(5, 5, "server"), Thread(9, 8, "io"), Thread(3, 3, "host")):
        read.timeline.instant(thread, "event", 1, {})
    named = [name for name in read.tracks().values() if name.startswith("process")]
    assert named == ["process server (shop/web-1)", "process (shop/db-0)", "process host"]


def test_calls_of_a_thread_nest() -> None:
    """A call is known when it ends, so the inner one comes first."""
    read = Read()
    thread = Thread(5, 5, "server")
    read.timeline.call(thread, "inner", 20, 5, {})
    read.timeline.call(thread, "outer", 10, 30, {})
    assert read.slices() == [("server 5/5", "inner", 20, 25), ("server 5/5", "outer", 10, 40)]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), max_size=30))
def test_overlapping_pairs_have_lanes(pairs: list[tuple[int, int]]) -> None:
    """No slice of a lane begins within another one, and each is there with its own times."""
    read = Read()
    for number, (start, duration) in enumerate(sorted(pairs, key=sum)):  # as they end
        read.timeline.pair("io", f"{number}", 100 + start, duration, {})
    expected = [
        (f"{number}", 100 + start, 100 + start + duration)
        for number, (start, duration) in enumerate(sorted(pairs, key=sum))
    ]
    found = read.slices()
    by_lane = defaultdict(list)
    for lane, _, start, end in found:
        by_lane[lane].append((start, end))
    for spans in by_lane.values():
        spans.sort(key=lambda span: (span[1], span[0]))
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert sorted(name for _, name, _, _ in found) == sorted(name for name, _, _ in expected)
    assert sorted((start, end) for _, _, start, end in found) == sorted(one[1:] for one in expected)


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "\udcff", "é" * 400])
def test_a_hostile_name_is_one_name(name: str) -> None:
    read = Read()
    read.timeline.instant(Thread(5, 5, name), name, 1, {name: name})
    event = read.packets()[-1].track_event
    expected = name.encode(errors="backslashreplace").decode()
    assert event.name == expected
    assert [(one.name, one.string_value) for one in event.debug_annotations] == [(expected, expected)]


def test_marks_have_a_track_below_their_thread() -> None:
    """They need not nest with the thread's calls."""
    read = Read()
    thread = Thread(7, 5, "worker")
    read.timeline.call(thread, "write", 10, 10, {})
    read.timeline.mark(thread, "request", 15, 30)
    assert read.slices() == [("worker 5/7", "write", 10, 20), ("marks", "request", 15, 45)]
    tracks = read.tracks()
    [parent] = [
        tracks[packet.track_descriptor.parent_uuid]
        for packet in read.packets()
        if packet.track_descriptor.name == "marks"
    ]
    assert parent == "worker 5/7"


def test_mark_without_an_end_is_a_slice_without_one() -> None:
    read = Read()
    read.timeline.mark(Thread(7, 5, "worker"), "request", 15, None)
    events = [packet.track_event for packet in read.packets() if packet.HasField("track_event")]
    assert [(event.type, event.name) for event in events] == [(TrackEvent.TYPE_SLICE_BEGIN, "request")]


def test_counter_of_a_process() -> None:
    read = Read()
    for tid, value in ((7, 3), (8, -4)):
        read.timeline.counter(Thread(tid, 5, "worker"), "queue", 10 + tid, value)
    packets = read.packets()
    [track] = [one.track_descriptor for one in packets if one.track_descriptor.HasField("counter")]
    assert (track.name, read.tracks()[track.parent_uuid]) == ("queue", "process ")
    events = [one for one in packets if one.HasField("track_event")]
    assert {one.track_event.track_uuid for one in events} == {track.uuid}
    assert {one.track_event.type for one in events} == {TrackEvent.TYPE_COUNTER}
    assert [(one.timestamp, one.track_event.counter_value) for one in events] == [(17, 3), (18, -4)]


def test_losses_are_slices_of_their_cpu() -> None:
    read = Read()
    read.timeline.loss(3, 10, 30)
    read.timeline.loss(3, 50, 60)
    lost = "events lost on CPU 3"
    assert read.slices() == [(lost, "events lost", 10, 30), (lost, "events lost", 50, 60)]
