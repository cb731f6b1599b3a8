"""A failure to write the file of --perfetto or --trace-dat names that file; other failures do not."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, cast
from unittest.mock import Mock

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace  # type: ignore[import-untyped]

from kprobe_exporter.errors import StartError, UsageError
from kprobe_exporter.model.record_layout import Geometry
from kprobe_exporter.trace import save_pages as pages_module
from kprobe_exporter.trace import timeline as timeline_module
from kprobe_exporter.trace.output import Interrupt, Output
from kprobe_exporter.trace.save_pages import save_pages
from kprobe_exporter.trace.timeline import STDOUT, write_timeline

KERNEL_ERROR = OSError(errno.EIO, os.strerror(errno.EIO), "events/x/format")
FULL = r"cannot be written: No space left on device\.$"


def session() -> Any:
    out = Mock(**{"stop.is_set.return_value": False, "watched": ()})
    return Mock(
        out=out, seconds=None, instance=Mock(**{"open_raw.return_value": {0: os.open("/", os.O_RDONLY)}})
    )


def failing(*_: object, **__: object) -> Any:
    raise KERNEL_ERROR


def timeline(path: Path) -> int:
    return write_timeline(session(), (), path)


def pages(path: Path) -> int:
    return save_pages(session(), (), path, "x", stacks=False)


@pytest.fixture(autouse=True)
def failing_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "collected", failing)
    monkeypatch.setattr(pages_module, "installed", failing)
    monkeypatch.setattr(pages_module, "page_geometry", lambda files: Geometry(8, 8, 16, 4096))


class Pipe:
    """A pipe to which a timeline is written in place of a file."""

    def __init__(self, *, terminal: bool = False) -> None:
        self.read, self._write = os.pipe()
        self.stop = Interrupt()
        self.session = session()
        self.session.out = Output(self._write, self.stop, terminal=terminal)

    def timeline(self) -> bytes:
        write_timeline(self.session, (), STDOUT)
        os.close(self._write)
        with open(self.read, "rb") as file:
            return file.read()


def test_timeline_to_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = Mock(marks=None, plans=(), attached=())
    monkeypatch.setattr(timeline_module, "collected", lambda *_, **__: nullcontext(capture))
    monkeypatch.setattr(timeline_module, "run_until_end", lambda *_: None)
    monkeypatch.setattr(timeline_module, "buffer_stats", lambda *_: Mock(overrun=0, dropped=0))
    read = Trace()
    read.ParseFromString(Pipe().timeline())
    assert [one.HasField("clock_snapshot") for one in read.packet] == [True]
    without_reader = Pipe()
    os.close(without_reader.read)
    with pytest.raises(StartError, match="the timeline is cut short: its reader has gone"):
        without_reader.timeline()
    with pytest.raises(UsageError, match="redirect stdout to a file"):
        Pipe(terminal=True).timeline()


@pytest.mark.parametrize("write", [timeline, pages])
def test_kernel_file_that_fails(tmp_path: Path, write: Callable[[Path], int]) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    with pytest.raises(OSError, match="events/x/format") as caught:
        write(path)
    assert caught.value is KERNEL_ERROR
    assert os.listdir(tmp_path) == ["out"]
    assert path.read_text() == "before"


@pytest.mark.parametrize("write", [timeline, pages])
def test_directory_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], int]
) -> None:
    @contextmanager
    def works(*_: object) -> Iterator[tuple[()]]:
        yield ()

    monkeypatch.setattr(pages_module, "installed", works)
    path = tmp_path / "no" / "out"
    with pytest.raises(StartError, match=f"^{path} cannot be written: No such file or directory"):
        write(path)


def test_full_disk_of_a_timeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def replaced_whole(path: Path, *, private: bool) -> Iterator[BinaryIO]:
        with open("/dev/full", "wb", buffering=0) as file:
            yield cast("BinaryIO", file)

    monkeypatch.setattr(timeline_module, "replaced_whole", replaced_whole)
    with pytest.raises(StartError, match=f"^{tmp_path}/out {FULL}"):
        timeline(tmp_path / "out")


def test_full_disk_of_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def works(*_: object) -> Iterator[tuple[()]]:
        yield ()

    def full(**_: object) -> Any:
        return open("/dev/full", "wb", buffering=0)

    def read_pages(instance: object, pipe: int, page_bytes: int) -> Iterator[bytes]:
        yield b"x"

    monkeypatch.setattr(pages_module, "installed", works)
    monkeypatch.setattr(pages_module, "TemporaryFile", full)
    monkeypatch.setattr(pages_module, "read_pages", read_pages)
    with pytest.raises(StartError, match=f"^{tmp_path}/out {FULL}"):
        pages(tmp_path / "out")
