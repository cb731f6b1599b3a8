"""The two buffers of a recording: what is written to them, and in which order."""

from dataclasses import replace
from pathlib import Path

import pytest

from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.marker import COPY
from kprobe_exporter.tracefs.recording_buffers import RecordingBuffers
from tests.support.fake_tracefs import FakeTracefs

A, B = "instances/agent.slow.a", "instances/agent.slow.b"


class CopyingTracefs(FakeTracefs):
    """One whose instances can record writes to the trace_marker of the top level, as since Linux 6.15."""

    def exists(self, path: str) -> bool:
        return path.endswith(COPY) or super().exists(path)


def switches(files: FakeTracefs) -> list[tuple[str, str]]:
    """Return what was written since the last call to the switches of recording and copying."""
    found = [(path, text) for path, text in files.writes if path.endswith((COPY, "tracing_on"))]
    files.writes.clear()
    return found


@pytest.mark.parametrize("copies", [True, False])
def test_only_the_buffer_that_records_gets_marks_of_the_top_level(tmp_path: Path, copies: bool) -> None:
    """A write to the top level fails at an instance that asks for it and does not record."""
    files = (CopyingTracefs if copies else FakeTracefs)(tmp_path, set())
    buffers = RecordingBuffers(Instance(files, "agent", None), "slow", 64, marks=True)
    assert [files.instances[name.rpartition("/")[2]].values["options/markers"] for name in (A, B)] == [
        "1",
        "1",
    ]
    on = [(f"{A}/tracing_on", "1"), (f"{B}/tracing_on", "0")]
    assert switches(files) == [*on, *([(f"{A}/{COPY}", "1")] if copies else [])]
    assert buffers.swap().path == A
    copied = [(f"{B}/{COPY}", "1"), (f"{A}/{COPY}", "0")] if copies else []
    assert switches(files) == [(f"{B}/tracing_on", "1"), *copied, (f"{A}/tracing_on", "0")]
    buffers.close()
    ends = [((f"{one}/{COPY}", "0"), (f"{one}/tracing_on", "0")) for one in (A, B)]
    assert switches(files) == [write for each in ends for write in (each if copies else each[1:])]


def test_marks_are_off_unless_they_are_wanted(tmp_path: Path) -> None:
    files = CopyingTracefs(tmp_path, set())
    buffers = RecordingBuffers(Instance(files, "agent", None), "slow", 64)
    assert files.instances["agent.slow.a"].values["options/markers"] == "0"
    buffers.swap()
    assert not any(path.endswith(COPY) and text == "1" for path, text in files.writes)


def test_each_instance_has_an_eprobe_of_its_own(tmp_path: Path) -> None:
    """The kernel records an eprobe in the first instance alone that enables it, which is the agent's."""
    files = FakeTracefs(tmp_path, set())
    owner = Instance(files, "agent", None)
    buffers = RecordingBuffers(owner, "slow", 64)
    layout = Layout(0, "execs", "execs", "eprobe", "")
    spec = ProbeSpec(
        "execs", "tracepoint", "t", "", "dynamic_events", "e", "sched.sched_process_exec", None, layout
    )
    wanted = {"agent/execs": "0", "sched/sched_process_exec": "0"}

    def recorded() -> list[tuple[str, set[str]]]:
        return [(each.name, each.enabled) for each in files.events]

    buffers.follow(wanted, {"agent/execs": spec})
    assert recorded() == [("execs_a", {"agent.slow.a"}), ("execs_b", {"agent.slow.b"})]
    on = [(path, text) for path, text in files.writes if path.endswith("exec/enable")]
    assert on == [(f"{one}/events/sched/sched_process_exec/enable", "1") for one in (A, B)]
    assert buffers.own_events(buffers.swap()) == {"agent/execs": "agent/execs_a"}
    changed = replace(spec, body="sched.sched_process_exec pid=$pid")
    buffers.follow(wanted, {"agent/execs": changed})
    assert recorded()[:2] == [("execs_a", set()), ("execs_b", set())]
    assert recorded()[2:] == [("execs_a_2", {"agent.slow.a"}), ("execs_b_2", {"agent.slow.b"})]
    buffers.follow({}, {})
    assert not any(enabled for _, enabled in recorded())
    buffers.close()
    assert [*owner.retired] == ["execs_a", "execs_b", "execs_a_2", "execs_b_2"]


def test_an_eprobe_that_the_kernel_refuses_is_not_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FakeTracefs(tmp_path, set(), eprobes=False)
    buffers = RecordingBuffers(Instance(files, "agent", None), "slow", 64)
    layout = Layout(0, "execs", "execs", "eprobe", "")
    spec = ProbeSpec("execs", "tracepoint", "a:b", "", "dynamic_events", "e", "a.b", None, layout)
    buffers.follow({"agent/execs": "0"}, {"agent/execs": spec})
    assert buffers.own_events(buffers.swap()) == {}
    assert "the recording 'slow' has no events of a:b: " in caplog.text
