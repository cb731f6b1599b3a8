"""Events as lines: files that are rotated and moved away, a full disk, syslog."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kprobe_exporter.export import lines
from kprobe_exporter.export.lines import Destination, LineWriter

FULL = Path("/dev/full")


def writer(path: Path, max_size: int = 1 << 20, files: int = 3) -> LineWriter:
    return LineWriter(Destination(str(path), max_size, files))


def test_lines_are_appended_and_only_the_group_may_read_them(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    path.write_bytes(b"before\n")
    path.chmod(0o640)
    with closing(writer(path)) as file:
        assert file.export([b"one\n", b"two\n"]) == 2
        assert file.export([b"three\n"]) == 1
    assert path.read_bytes() == b"before\none\ntwo\nthree\n"
    new = tmp_path / "new"
    with closing(writer(new)) as file:
        file.export([b"one\n"])
    assert new.stat().st_mode & 0o137 == 0


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), max_size=20), st.integers(1, 4))
def test_no_line_is_lost_or_torn_by_a_rotation(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], files: int
) -> None:
    """The newest lines are there, whole and in order; each file holds at most its size, or one batch."""
    path = tmp_path_factory.mktemp("lines") / "events"
    written = []
    with closing(writer(path, 100, files)) as file:
        for number, batch in enumerate(batches):
            items = [b"%d %s\n" % (number, b"x" * length) for length in batch]
            assert file.export(items) == len(items)
            written += items
    rotated = [path.with_name(f"events.{number}") for number in range(files, 0, -1)]
    kept = [one.read_bytes() for one in [*rotated, path] if one.exists()]
    assert b"".join(written).endswith(b"".join(kept))
    assert all(len(one) <= 100 or one.count(b"\n") <= 4 for one in kept)
    assert len(list(path.parent.iterdir())) <= files + 1
    if len(kept) <= files:
        assert b"".join(kept) == b"".join(written)


def test_a_file_that_was_moved_away_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with closing(writer(path)) as file:
        file.export([b"one\n"])
        path.rename(tmp_path / "events.1")  # as logrotate does
        file.export([b"two\n"])
        path.unlink()
        file.export([b"three\n"])
    assert (tmp_path / "events.1").read_bytes() == b"one\n"
    assert path.read_bytes() == b"three\n"


def test_a_link_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    victim, path = tmp_path / "victim", tmp_path / "events"
    victim.write_bytes(b"kept\n")
    path.symlink_to(victim)
    with closing(writer(path)) as file:
        assert file.export([b"one\n"]) == 0
        assert file.export([b"two\n"]) == 0
        path.unlink()
        assert file.export([b"three\n"]) == 1
    assert victim.read_bytes() == b"kept\n"
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert f"{path} cannot be written: Too many levels of symbolic links" in caplog.text


def test_a_directory_that_is_gone_loses_events_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gone" / "events"
    with closing(writer(path)) as file:
        assert file.export([b"one\n"]) == 0
        path.parent.mkdir()
        assert file.export([b"two\n"]) == 1
    assert "No such file or directory" in caplog.text


def test_a_full_disk_loses_events(caplog: pytest.LogCaptureFixture) -> None:
    with closing(writer(FULL)) as file:
        assert file.export([b"one\n"]) == 0
    assert "events are lost: /dev/full cannot be written: No space left on device" in caplog.text


@pytest.fixture
def syslog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    path = tmp_path / "log"
    monkeypatch.setattr(lines, "SOCKET", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(path))
        yield server


def test_messages_of_syslog(syslog: socket.socket) -> None:
    with closing(LineWriter(Destination("syslog", 1 << 20, 1))) as file:
        assert file.export([b'{"a": 1}\n', b'{"b": 2}\n']) == 2
    head = f"<134>kprobe_exporter[{os.getpid()}]: ".encode()
    messages = [syslog.recv(9000) for _ in range(2)]
    assert all(one.startswith(head) for one in messages)
    assert [json.loads(one.removeprefix(head)) for one in messages] == [{"a": 1}, {"b": 2}]


def test_syslog_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "SOCKET", str(tmp_path / "away"))
    with closing(LineWriter(Destination("syslog", 1 << 20, 1))) as file:
        assert file.export([b"one\n"]) == 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            server.bind(str(tmp_path / "away"))
            assert file.export([b"two\n"]) == 1


def test_stdout_stays_open(capfd: pytest.CaptureFixture[str]) -> None:
    with closing(LineWriter(Destination("stdout", 1 << 20, 1))) as file:
        assert file.export([b"one\n"]) == 1
    print("still")
    assert capfd.readouterr().out == "one\nstill\n"
