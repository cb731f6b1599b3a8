"""The recorder on a fake kernel: what it records, when it writes, and what it refuses."""

import re
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from kprobe_exporter.agent import otlp, recorder
from kprobe_exporter.agent.recorded_files import Recorded
from kprobe_exporter.errors import TracefsError
from kprobe_exporter.tracefs.instance import Instance
from tests.support.keeping_sender import KeepingSender
from tests.support.machine import GROUP, OPEN, READ, Machine
from tests.support.patience import eventually

FILTERED = OPEN.replace("do_open'", "do_open', filter: 'common_pid > 0'")
RESULTS = "kprobe_exporter_recordings_total"


class Writing:
    """Stands for the writing of files: it notes what would be written, and may wait or fail."""

    def __init__(self) -> None:
        self.stopped: list[tuple[str, Recorded, float]] = []
        self.error: Exception | None = None
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(
        self, _: object, base: str, formats: object, stopped: Instance, recorded: Recorded, *rest: object
    ) -> Iterator[str]:
        self.stopped.append((stopped.name, recorded, 0.0))
        assert self.go_on.wait(10)
        if self.error is not None:
            raise self.error
        yield f"{base}.dat"


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Writing:
    made = Writing()
    monkeypatch.setattr(recorder, "write_files", made)
    monkeypatch.setattr(recorder, "TURN", 0.01)
    monkeypatch.setattr("kprobe_exporter.tracefs.poller.MAX_AGE", 0.0)
    return made


@pytest.fixture
def machine(tmp_path: Path, writing: Writing) -> Iterator[Machine]:
    made = Machine(tmp_path)
    record(made, "when: [{probe: open}]")
    yield made
    writing.go_on.set()
    made.close()
    assert made.files.events == []
    assert made.files.instances == {}


def record(machine: Machine, rest: str, probes: str = "[open]") -> None:
    one = f"{{name: slow, probes: {probes}, {rest}}}"
    machine.head = f"record: {{directory: {machine.config.parent}/files, recordings: [{one}]}}\n"


def enabled(machine: Machine, end: str) -> list[str]:
    name = f"{GROUP}.slow.{end}"
    return sorted(event.name for event in machine.files.probes if name in event.enabled)


def test_a_recording_records_its_probes_in_both_buffers(machine: Machine) -> None:
    machine.start(OPEN, READ)
    assert (enabled(machine, "a"), enabled(machine, "b")) == (["open"], ["open"])
    assert [machine.files.instances[f"{GROUP}.slow.{end}"].values["tracing_on"] for end in "ab"] == ["1", "0"]


def test_a_probe_that_is_off_is_not_recorded(machine: Machine) -> None:
    machine.start(OPEN)
    assert machine.agent.disable("open", "too much")
    assert enabled(machine, "a") == []
    assert machine.agent.enable("open")
    assert len(enabled(machine, "a")) == 1


def test_a_reload_leaves_a_recording_alone(machine: Machine) -> None:
    machine.start(OPEN)
    writes = len(machine.files.writes)
    assert machine.reload(OPEN, READ) is None
    assert not any(".slow." in f"{write}" for write in machine.files.writes[writes:])


def test_a_reload_changes_and_removes_a_recording(machine: Machine) -> None:
    machine.start(OPEN)
    record(machine, "window: 5s", "[read]")
    assert machine.reload(OPEN, READ) is None
    assert enabled(machine, "a") == ["read"]
    machine.head = ""
    assert machine.reload(OPEN, READ) is None
    assert not any(".slow." in name for name in machine.files.instances)


def test_a_filter_is_that_of_the_probe(machine: Machine) -> None:
    machine.start(FILTERED)
    paths = [f"instances/{GROUP}.slow.{end}/events/{GROUP}/open/filter" for end in "ab"]
    assert [path for path in paths if (path, "common_pid > 0") in machine.files.writes] == paths


def test_a_condition_writes_once_and_then_refuses(machine: Machine, writing: Writing) -> None:
    machine.start(OPEN)
    machine.fire("do_open", 3)
    eventually(lambda: machine.value(RESULTS, "slow", "written") == 1, 5)
    machine.fire("do_open", 1)
    eventually(lambda: machine.value(RESULTS, "slow", "refused") == 1, 5)
    [(name, recorded, _)] = writing.stopped
    assert name == f"{GROUP}.slow.a"
    assert recorded.events == (f"{GROUP}/open",)
    assert machine.value("kprobe_record_slow_total") == 4


def test_a_signal_and_a_request_write(machine: Machine, writing: Writing) -> None:
    record(machine, "every: 1s")
    machine.start(OPEN)
    machine.stop.ask_recording()
    eventually(lambda: machine.value(RESULTS, "slow", "written") == 1, 5)
    written, text = machine.agent.recorder.record("slow")
    assert (written, text[:34]) == (False, "slow: refused: the last one was 0.")
    assert machine.agent.recorder.record("other") == (False, "there is no such recording")


def test_a_written_recording_is_a_log_record(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = KeepingSender()
    monkeypatch.setattr(otlp, "connect", lambda *_: sender)
    machine.head += "otlp: {endpoint: 'http://localhost:4318'}\n"
    machine.start(OPEN)
    machine.fire("do_open", 1)
    eventually(lambda: bool(sender.items), 5)
    found = LogRecord.FromString(sender.items[0])
    [file] = re.findall(r"slow-[0-9T.]+Z\.dat", found.body.string_value)
    assert found.event_name == "kprobe.recording"
    assert abs(found.time_unix_nano / 1e9 - time.time()) < 60
    attributes = {one.key: one.value.string_value for one in found.attributes}
    assert attributes["kprobe.recording.file"] == file
    assert (attributes["kprobe.recording.name"], attributes["kprobe.recording.condition"]) == ("slow", "open")
    machine.shows((1, "kprobe_exporter_otlp_exported_total", "logs"))


def test_the_calls_of_its_conditions_are_watched(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the trace of the log record."""
    watched: list[Collection[str]] = []
    monkeypatch.setattr(otlp, "connect", lambda *_: KeepingSender())
    monkeypatch.setattr(otlp.OtlpExport, "watch", lambda _, probes: watched.append(probes))
    machine.head += "otlp: {endpoint: 'http://localhost:4318'}\n"
    machine.start(OPEN)
    assert watched == [{"open"}]


def test_what_fails_is_counted_and_logged(
    machine: Machine, writing: Writing, caplog: pytest.LogCaptureFixture
) -> None:
    machine.start(OPEN)
    writing.error = OSError(28, "No space left on device")
    assert machine.agent.recorder.record(None) == (False, "slow: failed: No space left on device")
    assert machine.value(RESULTS, "slow", "failed") == 1
    assert "the recording 'slow' was not written at a request: No space left on device" in caplog.text


def test_a_recording_that_is_written_is_removed_after_that(machine: Machine, writing: Writing) -> None:
    """A disk that hangs holds up neither a reload nor the numbers."""
    machine.start(OPEN)
    writing.go_on.clear()
    machine.fire("do_open", 1)
    eventually(lambda: bool(writing.stopped), 5)
    machine.head = ""
    assert machine.reload(OPEN) is None
    assert f"{GROUP}.slow.a" in machine.files.instances
    machine.shows((1, "kprobe_opens_total"))
    writing.go_on.set()
    eventually(lambda: f"{GROUP}.slow.a" not in machine.files.instances, 5)


def test_a_recording_that_the_kernel_refuses_is_off(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TracefsError("no memory.")

    monkeypatch.setattr(recorder, "RecordingBuffers", refuse)
    machine.start(OPEN)
    assert "the recording 'slow' is off: no memory." in caplog.text
    assert machine.status("open").state == "up"


def test_an_agent_without_recordings_has_no_metrics_of_them(machine: Machine) -> None:
    machine.head = ""
    machine.start(OPEN)
    assert machine.value(RESULTS, "slow", "written") is None
    assert machine.agent.recorder.files() == []
