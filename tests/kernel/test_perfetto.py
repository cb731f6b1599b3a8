"""`trace --perfetto` draws the calls of a thread: the load's own record is the oracle."""

import signal
import time
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # type: ignore[import-untyped]
    Trace,
    TrackEvent,
)

from tests.kernel.workload import Child
from tests.support.joined_calls import nap
from tests.support.trace_process import traces

NAPS = (0.01, 0.03, 0.02, 0.05)
"""Seconds of the load's sleeps."""


def naps() -> None:
    for seconds in NAPS:
        nap(seconds)


@pytest.mark.needs("initial_pid_namespace")
def test_calls_are_slices_of_their_thread(tmp_path: Path) -> None:
    file = tmp_path / "out.pftrace"
    child = Child(naps)
    pid = child.pid
    with traces(tmp_path) as start:
        trace = start("--perfetto", str(file), "-p", str(pid), "syscall:clock_nanosleep")
        trace.wait_until_enabled(
            tracepoints=[f"syscalls/sys_{side}_clock_nanosleep" for side in ("exit", "enter")]
        )
        begun = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        child.work()
        child.close()
        ended = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        trace.signal(signal.SIGINT)
        assert trace.wait() == 0, trace.errors
    assert file.stat().st_mode & 0o777 == 0o600
    read = Trace()
    read.ParseFromString(file.read_bytes())
    clocks = {clock.clock_id: clock.timestamp for clock in read.packet[0].clock_snapshot.clocks}
    tracks = {packet.track_descriptor.uuid: packet.track_descriptor.thread.tid for packet in read.packet}
    events = [packet for packet in read.packet if packet.HasField("track_event")]
    assert {tracks[packet.track_event.track_uuid] for packet in events} == {pid}
    begins = [one for one in events if one.track_event.type == TrackEvent.TYPE_SLICE_BEGIN]
    ends = [one for one in events if one.track_event.type == TrackEvent.TYPE_SLICE_END]
    assert [one.track_event.name for one in begins] == ["clock_nanosleep"] * len(NAPS)
    for seconds, first, last in zip(NAPS, begins, ends, strict=True):
        assert last.timestamp - first.timestamp >= seconds * 1e9
        shown = {one.name: one.uint_value for one in first.track_event.debug_annotations}
        assert shown["return"] == 0
    boottime = clocks[6] - clocks[3]
    assert begun <= begins[0].timestamp + boottime
    assert ends[-1].timestamp + boottime <= ended


def test_a_file_in_no_directory_is_refused_at_the_start(tmp_path: Path) -> None:
    with traces(tmp_path) as start:
        trace = start("--perfetto", str(tmp_path / "no/out"), "syscall:openat")
        assert trace.wait() == 2
        assert "--perfetto: no file can be made in" in trace.errors
