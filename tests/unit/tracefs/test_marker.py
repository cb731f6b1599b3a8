"""marker: how long an event takes, and that the events of measuring it are thrown away."""

import os
from pathlib import Path

import pytest

from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.marker import ROUNDS, WRITES, marker_seconds
from tests.support.fake_tracefs import FakeTracefs


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A trace_pipe that holds the events of the measurement."""
    pipe = tmp_path / "trace_pipe"
    os.mkfifo(pipe)
    (tmp_path / "trace_marker").touch()
    return pipe


def test_events_are_written_and_thrown_away(tmp_path: Path, pipe: Path) -> None:
    writer = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(writer, b"sh-1 [000] ..... 1.000000: tracing_mark_write: x\n" * 20)
        assert abs(marker_seconds(MountedTracefs(tmp_path), ".")) < 1
        with pytest.raises(BlockingIOError):
            os.read(writer, 1)
    finally:
        os.close(writer)
    assert (tmp_path / "trace_marker").read_bytes() == b"x" * ROUNDS * WRITES


def test_where_there_is_no_marker_it_is_unknown(tmp_path: Path) -> None:
    with Instance.acquire(FakeTracefs(tmp_path, set()), "a") as instance:
        assert instance.marker_seconds() is None


def test_no_descriptor_stays_open_where_dev_null_is_missing(
    tmp_path: Path, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open trace_marker keeps its instance from being removed."""
    monkeypatch.setattr(os, "devnull", str(tmp_path / "missing"))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        marker_seconds(MountedTracefs(tmp_path), ".")
    assert os.listdir("/proc/self/fd") == before
