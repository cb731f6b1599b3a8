"""Recordings of probes: of functions, and of calls and pairs that the kernel joins."""

import os
import re
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # type: ignore[import-untyped]
    Trace,
    TrackEvent,
)

from tests.kernel.conftest import StartAgent
from tests.support import joined_calls
from tests.support.kernel_ids import kernel_tid
from tests.support.patience import eventually
from tests.support.provoked_calls import getppid
from tests.support.recorder import NAMED, NAPS, Recorder
from tests.support.trace_cmd import report
from tests.vm.kernels import HIST

pytestmark = pytest.mark.skipif(
    shutil.which("trace-cmd") is None and not os.environ.get("CI"),
    reason="no trace-cmd: `make test` installs it",
)


@pytest.mark.needs("kprobe_events")
def test_probes_of_functions(start_agent: StartAgent, tmp_path: Path) -> None:
    """One that the agent only counts is recorded too, and a recorded one can be removed."""
    directory = tmp_path / "files"
    probes = '{name: call, attach: "call:sys_getppid"}, {name: counted, attach: "kprobe:sys_getppid"}'
    one = "{name: slow, probes: [call, counted], formats: [trace.dat, perfetto], every: 1s, window: 10m}"
    text = f"{NAMED}probes: [{NAPS}, {probes}]\nrecord: {{directory: {directory}, recordings: [{one}]}}\n"
    agent = start_agent(text, "--web.enable-lifecycle")
    here = Recorder(agent, directory, tmp_path / "config0.yaml")
    getppid(23)
    assert agent.scrape_until(lambda found: found.value("kprobe_hits_total", probe="counted") >= 23)
    assert here.post("/-/record")[0] == 200
    ours = [line for line in report(here.wait_for_file()) if f"-{kernel_tid()} " in line]
    assert [sum(f" {name}: " in line for line in ours) for name in ("call", "counted")] == [23, 23]
    read = Trace()
    read.ParseFromString(here.wait_for_file("pftrace").read_bytes())
    tracks = {one.track_descriptor.uuid: one.track_descriptor.thread.tid for one in read.packet}
    drawn = Counter(
        (one.track_event.name, one.track_event.type)
        for one in read.packet
        if one.HasField("track_event") and tracks[one.track_event.track_uuid] == kernel_tid()
    )
    assert drawn["call", TrackEvent.TYPE_SLICE_BEGIN] == drawn["counted", TrackEvent.TYPE_INSTANT] == 23
    here.config.write_text(f"{NAMED}probes: [{NAPS}]\nrecord: {{directory: {directory}}}\n")
    assert here.post("/-/reload")[0] == 200


JOINED = (
    '{name: call, attach: "call:hrtimer_nanosleep", aggregate: kernel, returns: int,'
    " filter: duration > 100ms, metrics: [{counter: calls_total, labels: {result: return, comm: comm}}]}",
    '{name: nap, attach: "syscall:clock_nanosleep", aggregate: kernel}',
    "{name: pair, aggregate: kernel, attach: {pair: {from: tracepoint:syscalls:sys_enter_getppid,"
    " to: tracepoint:syscalls:sys_exit_getuid, key: tid}}}",
)


@pytest.mark.needs("kprobe_events")
@pytest.mark.needs(HIST)
def test_calls_and_pairs_that_the_kernel_joins(
    start_agent: StartAgent, tmp_path: Path, other: ThreadPoolExecutor
) -> None:
    """Each has one event, with its duration, the fields of both halves and the probe's filter."""
    directory = tmp_path / "files"
    names, formats = "[call, nap, pair]", "[trace.dat, perfetto]"
    one = f"{{name: slow, probes: {names}, formats: {formats}, every: 1s, window: 10m}}"
    record = f"record: {{directory: {directory}, recordings: [{one}]}}\n"
    agent = start_agent(f"{NAMED}probes: [{', '.join([NAPS, *JOINED])}]\n{record}", "--web.enable-lifecycle")
    here = Recorder(agent, directory, tmp_path / "config0.yaml")
    plans = {one["probe"]: one["plan"] for one in agent.scrape().labels("kprobe_info")}
    assert plans == {"naps": "events", "call": "kernel", "nap": "kernel", "pair": "kernel"}

    def work() -> list[tuple[float, float]]:
        for _ in range(5):
            os.getppid()
            os.getuid()
        return [joined_calls.nap(seconds) for seconds in (0.2, 0.0, 0.3, 0.0)]

    tid, before = other.submit(kernel_tid).result(), time.monotonic_ns()
    naps = other.submit(work).result()
    after = time.monotonic_ns()
    assert here.post("/-/record")[0] == 200

    lines = [line for line in report(here.wait_for_file()) if f"-{tid} " in line]
    calls = [line for line in lines if " call: " in line]
    assert len(calls) == 2
    assert all(" return=0" in line and " comm=" in line for line in calls)
    assert [sum(f" {name}: " in line for line in lines) for name in ("nap", "pair")] == [4, 5]

    read = Trace()
    read.ParseFromString(here.wait_for_file("pftrace").read_bytes())
    tracks = {one.track_descriptor.uuid: one.track_descriptor.thread.tid for one in read.packet}
    slices: dict[str, list[tuple[int, int]]] = {}
    begun: dict[int, tuple[str, int]] = {}
    for packet in (one for one in read.packet if one.HasField("track_event")):
        event = packet.track_event
        if tracks[event.track_uuid] == tid and event.type == TrackEvent.TYPE_SLICE_BEGIN:
            begun[event.track_uuid] = event.name, packet.timestamp
        elif event.type == TrackEvent.TYPE_SLICE_END and event.track_uuid in begun:
            name, start = begun[event.track_uuid]
            slices.setdefault(name, []).append((start, packet.timestamp))
    assert all(before <= start <= end <= after for each in slices.values() for start, end in each)
    for (start, end), (least, most) in zip(slices["call"], (naps[0], naps[2]), strict=True):
        assert least <= (end - start) / 1e9 <= most
    assert [len(slices[name]) for name in ("nap", "pair")] == [4, 5]

    # The kernel empties the buffers when the agent deletes the joined events: the next file begins there.
    begin = time.monotonic()
    here.config.write_text(f"{NAMED}probes: [{NAPS}]\n{record.replace(names, '[naps]')}")
    eventually(lambda: here.post("/-/reload")[0] == 200, 10)
    eventually(lambda: here.post("/-/record")[0] == 200, 10)
    [_, seconds] = re.findall(r"is in slow-.*: ([0-9.]+) s before a request", agent.output())
    assert float(seconds) <= time.monotonic() - begin + 0.1
