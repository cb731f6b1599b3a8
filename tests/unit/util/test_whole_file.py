"""util.whole_file: a file is replaced, never opened; a failure leaves what was there, and nothing else."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from kprobe_exporter.util.file_access import replaced_whole, write_whole


def test_a_file_is_replaced(tmp_path: Path) -> None:
    file, other = tmp_path / "a", tmp_path / "other"
    other.write_text("kept")
    file.symlink_to(other)
    write_whole(file, b"new")
    assert (file.read_bytes(), other.read_text()) == (b"new", "kept")
    assert not file.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["a", "other"]


def test_what_cannot_be_replaced_stays(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "directory", b"new")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "no" / "file", b"new")
    assert os.listdir(tmp_path) == ["directory"]


def test_the_temporary_name_cannot_be_predicted(tmp_path: Path) -> None:
    """Another user made links of the names that the process id gives, as in /tmp."""
    victim = tmp_path / "victim"
    for number in range(os.getpid() - 5, os.getpid() + 5):
        (tmp_path / f".a.{number}").symlink_to(victim)
    names = set()

    def forget(temporary: Path, _: Path) -> None:
        names.add(temporary.name)
        temporary.unlink()

    for _ in range(2):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Path, "replace", forget)
            write_whole(tmp_path / "a", b"new")
    assert len(names) == 2
    assert not victim.exists()
    write_whole(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_any_error_leaves_the_old_file_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with suppress(RuntimeError), replaced_whole(tmp_path / "a") as file:
        file.write(b"half of it")
        raise RuntimeError
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"
