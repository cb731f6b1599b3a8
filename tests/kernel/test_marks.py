"""Programs' marks in timelines: the program's own record is the oracle.

A kernel with ``copy_trace_marker`` records those of the top level, others those of the instance.
"""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # type: ignore[import-untyped]
    Trace,
    TrackEvent,
)

from tests.kernel.conftest import StartAgent
from tests.support.kernel_ids import kernel_tid
from tests.support.patience import eventually
from tests.support.trace_cmd import report
from tests.support.trace_process import traces

NAMED = "global: {tracefs_instance: marks_under_test}\n"
NAPS = '{name: naps, attach: "syscall:clock_nanosleep"}'


def mark(files: list[Path], text: str) -> None:
    """Write a mark to those of the files whose instance records; the others refuse it (EBADF)."""
    written = 0
    for file in files:
        descriptor = os.open(file, os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
            written += 1
        except OSError:
            pass
        finally:
            os.close(descriptor)
    assert written == 1


def program(files: list[Path]) -> dict[str, tuple[int, int, int, int]]:
    """Write marks in this thread; return the moments around the begin and the end of each slice."""
    pid = kernel_tid()

    def around(text: str) -> tuple[int, int]:
        before = time.monotonic_ns()
        mark(files, text)
        return before, time.monotonic_ns()

    outer = around(f"B|{pid}|request\x1b[2J")
    inner = around(f"B|{pid}|query|1")
    time.sleep(0.01)
    mark(files, f"C|{pid}|queue|17")
    mark(files, f"B|{pid + 1}|forged")
    mark(files, "no mark")
    inner_end = around(f"E|{pid}")
    outer_end = around("E")
    return {"request\\x1b[2J": (*outer, *outer_end), "query|1": (*inner, *inner_end)}


def check(packets: list[Any], moments: dict[str, tuple[int, int, int, int]]) -> None:
    """Compare the marks of a timeline with the program's record."""
    tracks = {one.track_descriptor.uuid: one.track_descriptor for one in packets}
    [marks] = [track for track in tracks.values() if track.name == "marks"]
    assert tracks[marks.parent_uuid].thread.tid == kernel_tid()
    ours = [
        one for one in packets if one.HasField("track_event") and one.track_event.track_uuid == marks.uuid
    ]
    begins, ends = ours[::2], ours[1::2]
    assert {one.track_event.type for one in begins} == {TrackEvent.TYPE_SLICE_BEGIN}
    assert {one.track_event.type for one in ends} == {TrackEvent.TYPE_SLICE_END}
    drawn = {
        begin.track_event.name: (begin.timestamp, end.timestamp)
        for begin, end in zip(begins, ends, strict=True)
    }
    assert drawn.keys() == moments.keys()
    for name, (before, after, before_end, after_end) in moments.items():
        assert before <= drawn[name][0] <= after, name
        assert before_end <= drawn[name][1] <= after_end, name
    [counter] = [track for track in tracks.values() if track.HasField("counter")]
    assert (counter.name, tracks[counter.parent_uuid].process.pid) == ("queue", kernel_tid())
    [value] = [one for one in packets if one.track_event.track_uuid == counter.uuid]
    assert value.track_event.counter_value == 17


def read(file: Path) -> list[Any]:
    trace = Trace()
    trace.ParseFromString(file.read_bytes())
    return list(trace.packet)


def copies(tracefs: Path) -> bool:
    return (tracefs / "options/copy_trace_marker").exists()


def test_marks_in_the_timeline_of_a_trace(tmp_path: Path, tracefs: Path) -> None:
    file = tmp_path / "out.pftrace"
    with traces(tmp_path) as start:
        trace = start("--perfetto", str(file), "--marks", "syscall:clock_nanosleep")
        trace.wait_until_enabled(
            tracepoints=[f"syscalls/sys_{side}_clock_nanosleep" for side in ("exit", "enter")]
        )
        eventually(lambda: "programs write their marks to" in trace.errors, 20)
        [where] = re.findall(r"note: programs write their marks to (\S+)\.\n", trace.errors)
        assert where.endswith("trace_marker")
        assert where.endswith("tracing/trace_marker") == copies(tracefs)
        moments = program([Path(where)])
        trace.signal(signal.SIGINT)
        assert trace.wait() == 0, trace.errors
        assert "warning: not in the file: 1 mark with the id of another process." in trace.errors
    check(read(file), moments)


def test_marks_in_a_recording(start_agent: StartAgent, tmp_path: Path, tracefs: Path) -> None:
    """Each file has those since the last one; writes to the top level go on while buffers are swapped."""
    directory = tmp_path / "files"
    one = "{name: slow, probes: [naps], formats: [trace.dat, perfetto], marks: true, every: 1s, window: 1m}"
    text = f"{NAMED}probes: [{NAPS}]\nrecord: {{directory: {directory}, recordings: [{one}]}}\n"
    agent = start_agent(text)
    marker = [tracefs / f"instances/marks_under_test.slow.{end}/trace_marker" for end in "ab"]
    if copies(tracefs):
        marker = [tracefs / "trace_marker"]
    for number in (1, 2):
        moments = program(marker)
        agent.signal(signal.SIGUSR1)
        eventually(lambda: len([*directory.glob("*.pftrace")]) == number, 20)  # noqa: B023
        check(read(sorted(directory.glob("*.pftrace"))[-1]), moments)
        shown = "\n".join(report(sorted(directory.glob("*.dat"))[-1]))
        assert f"B|{kernel_tid()}|query|1" in shown
        time.sleep(1)
    assert (
        "a timeline of marks_under_test.slow.a lacks 1 mark with the id of another process" in agent.output()
    )


def test_marks_are_off_unless_they_are_configured(
    start_agent: StartAgent, tmp_path: Path, tracefs: Path
) -> None:
    directory = tmp_path / "files"
    one = "{name: slow, probes: [naps]}"
    text = f"{NAMED}probes: [{NAPS}]\nrecord: {{directory: {directory}, recordings: [{one}]}}\n"
    start_agent(text)
    for end in "ab":
        instance = tracefs / f"instances/marks_under_test.slow.{end}"
        with pytest.raises(OSError, match="Invalid argument"):
            (instance / "trace_marker").write_text("B|1|name")
        copy = instance / "options/copy_trace_marker"
        assert not copy.exists() or copy.read_text() == "0\n"
