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


@pytest.fixture
def kept(tmp_path: Path) -> tuple[FakeTracefs, RecordingBuffers]:
    """Two buffers with an event that has a filter, and an eprobe."""
    files = FakeTracefs(tmp_path, {"do_open"})
    files.write("kprobe_events", "p:agent/open do_open")
    buffers = RecordingBuffers(Instance(files, "agent", None), "slow", 64)
    layout = Layout(0, "execs", "execs", "eprobe", "")
    spec = ProbeSpec(
        "execs", "tracepoint", "t", "", "dynamic_events", "e", "sched.sched_process_exec", None, layout
    )
    buffers.follow({"agent/open": "common_pid > 0", "agent/execs": "0"}, {"agent/execs": spec})
    assert buffers.repair() == []
    return files, buffers


def enabled(files: FakeTracefs) -> list[tuple[str, set[str]]]:
    return [(each.name, each.enabled) for each in files.events]


BOTH = {"agent.slow.a", "agent.slow.b"}
ALL_ON = [("open", BOTH), ("execs_a", {"agent.slow.a"}), ("execs_b", {"agent.slow.b"})]


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        (f"{A}/tracing_on", "0", f"{A}: tracing_on"),
        (f"{B}/tracing_on", "1", f"{B}: tracing_on"),
        (f"{A}/trace_clock", "local", f"{A}: trace_clock"),
        (f"{A}/buffer_size_kb", "4", f"{A}: buffer_size_kb"),
        (f"{B}/events/agent/open/enable", "0", f"{B}: agent/open"),
        (f"{A}/events/agent/open/filter", "common_pid > 7", f"{A}: agent/open"),
        (f"{A}/events/agent/execs_a/enable", "0", f"{A}: agent/execs"),
    ],
)
def test_change_from_outside_is_undone_once(
    kept: tuple[FakeTracefs, RecordingBuffers], path: str, text: str, line: str
) -> None:
    files, buffers = kept
    before = files.read(path)
    files.write(path, text)
    assert files.read(path) != before
    assert buffers.repair() == [line]
    assert files.read(path) == before
    assert enabled(files) == ALL_ON
    assert buffers.repair() == []


@pytest.mark.parametrize("end", ["a", "b"])
def test_removed_instance_is_made_again(kept: tuple[FakeTracefs, RecordingBuffers], end: str) -> None:
    files, buffers = kept
    path = f"instances/agent.slow.{end}"
    files.rmdir(path)
    assert buffers.repair() == [f"{path} was removed"]
    assert enabled(files) == ALL_ON
    values = files.instances[f"agent.slow.{end}"].values
    assert (values["tracing_on"], values["buffer_size_kb"]) == ("1" if end == "a" else "0", "64")
    assert values["events/agent/open/filter"] == "common_pid > 0"
    assert buffers.repair() == []
    assert buffers.swap().path == A


def test_deleted_eprobe_is_defined_again(kept: tuple[FakeTracefs, RecordingBuffers]) -> None:
    files, buffers = kept
    files.write(f"{A}/events/agent/execs_a/enable", "0")
    files.write("dynamic_events", "-:agent/execs_a")
    assert buffers.repair() == [f"{A}: agent/execs"]
    on = {name: where for name, where in enabled(files) if where}
    assert on == {"open": BOTH, "execs_a": {"agent.slow.a"}, "execs_b_2": {"agent.slow.b"}}
    assert buffers.own_events(buffers.swap()) == {"agent/execs": "agent/execs_a"}


def test_deleted_probe_is_left_to_the_agent(kept: tuple[FakeTracefs, RecordingBuffers]) -> None:
    files, buffers = kept
    for one in (A, B):
        files.write(f"{one}/events/agent/open/enable", "0")
    files.write("kprobe_events", "-:agent/open")
    assert buffers.repair() == []


def test_events_are_examined_in_turn(
    kept: tuple[FakeTracefs, RecordingBuffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, buffers = kept
    monkeypatch.setattr("kprobe_exporter.tracefs.recording_buffers.EVENTS_A_LOOK", 1)
    for name in ("open", "execs_a"):
        files.write(f"{A}/events/agent/{name}/enable", "0")
    assert sorted(buffers.repair() + buffers.repair()) == [f"{A}: agent/execs", f"{A}: agent/open"]


def test_no_repair_without_tracefs(kept: tuple[FakeTracefs, RecordingBuffers]) -> None:
    """It is the agent's own instance that reports this."""
    files, buffers = kept
    files.rmdir(A)
    there, files.exists = files.exists, lambda path: False  # type: ignore[method-assign]
    assert buffers.repair() == []
    files.exists = there  # type: ignore[method-assign]
    assert buffers.repair() == [f"{A} was removed"]


def test_own_change_is_no_interference(tmp_path: Path) -> None:
    files = CopyingTracefs(tmp_path, set())
    buffers = RecordingBuffers(Instance(files, "agent", None), "slow", 64, marks=True)
    buffers.swap()
    assert buffers.repair() == []
