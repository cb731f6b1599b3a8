"""Only regular files are opened, and why another cannot be read is a clause for the user."""

import os
from pathlib import Path

import pytest

from kprobe_exporter.util.regular_file import NotRegularError, cannot_be_read, open_regular


def test_a_regular_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"text"
        assert not os.get_inheritable(file.fileno())


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = os.listdir("/proc/self/fd")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(NotRegularError) as refused:
            open_regular(path)
        assert cannot_be_read(refused.value) == "is no regular file"
    assert os.listdir("/proc/self/fd") == before


def test_a_path_that_cannot_be_opened() -> None:
    with pytest.raises(FileNotFoundError) as absent:
        open_regular("absent")
    assert cannot_be_read(absent.value) == "cannot be read: No such file or directory"
    with pytest.raises(ValueError, match="null byte") as with_nul:
        open_regular("nul\0")
    assert cannot_be_read(with_nul.value) == "cannot be read: embedded null byte"
