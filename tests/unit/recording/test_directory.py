"""The directory of recordings keeps its budget, follows no link, and never shows a part of a file."""

import os
from pathlib import Path

import pytest

from kprobe_exporter.recording.directory import Directory, TooLarge


def name(number: int, form: str = "dat") -> str:
    return f"slow-20261130T{number // 3600 % 24:02}{number // 60 % 60:02}{number % 60:02}.000Z.{form}"


def put(directory: Directory, file: str, size: int) -> None:
    with directory.written(file) as opened:
        opened.write(bytes(size))


def test_a_thousand_recordings_keep_the_budget(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "a/b", max_bytes=1000, max_files=7)
    directory.prepare()
    assert directory.path.stat().st_mode & 0o777 == 0o700
    for number in range(1000):
        put(directory, name(number), 100 + number % 90)
        there = [*directory.path.iterdir()]
        assert len(there) <= 7
        assert sum(one.stat().st_size for one in there) <= 1000
        assert (directory.path / name(number)).stat().st_mode & 0o777 == 0o600
    assert [one.name for one in directory.files()][-1] == name(999)


def test_a_file_above_the_budget_is_refused_and_the_others_stay(tmp_path: Path) -> None:
    directory = Directory(tmp_path, max_bytes=1000, max_files=7)
    put(directory, name(1), 900)
    with pytest.raises(TooLarge, match="1001 bytes"):
        put(directory, name(2), 1001)
    assert [one.name for one in tmp_path.iterdir()] == [name(1)]


def test_other_files_neither_count_nor_go(tmp_path: Path) -> None:
    for other in ("notes.dat", "slow-2026.dat", name(1) + "~"):
        (tmp_path / other).write_bytes(bytes(5000))
    (tmp_path / name(2)).symlink_to(tmp_path / "notes.dat")
    directory = Directory(tmp_path, max_bytes=1000, max_files=1)
    put(directory, name(3), 10)
    put(directory, name(4), 10)
    assert [one.name for one in directory.files()] == [name(4)]
    assert len([*tmp_path.iterdir()]) == 5


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "link").symlink_to(other)
    directory = Directory(tmp_path / "link", 1000, 7)
    with pytest.raises(OSError, match="Not a directory"):
        directory.prepare()
    with pytest.raises(OSError, match="Not a directory"):
        put(directory, name(1), 1)
    assert [*other.iterdir()] == []


def test_a_link_in_place_of_a_file_is_replaced_and_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (tmp_path / name(1)).symlink_to(secret)
    directory = Directory(tmp_path, 1000, 7)
    with pytest.raises(OSError, match="symbolic links"):
        directory.read(name(1))
    put(directory, name(1), 3)
    assert secret.read_text() == "mine"
    assert directory.read(name(1)) == bytes(3)


@pytest.mark.parametrize("asked", ["../secret", "secret", "", ".", "/etc/passwd", name(1) + "\0"])
def test_other_names_are_not_served(tmp_path: Path, asked: str) -> None:
    (tmp_path / "secret").write_text("mine")
    with pytest.raises(FileNotFoundError):
        Directory(tmp_path, 1000, 7).read(asked)


def test_a_fifo_is_not_served(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name(1))
    with pytest.raises(FileNotFoundError):
        Directory(tmp_path, 1000, 7).read(name(1))


def test_an_error_leaves_nothing_and_a_crash_is_cleared(tmp_path: Path) -> None:
    directory = Directory(tmp_path, 1000, 7)
    with pytest.raises(ZeroDivisionError), directory.written(name(1)) as file:
        file.write(bytes(1 // 0))
    assert [*tmp_path.iterdir()] == []
    (tmp_path / ".0123456789abcdef.part").write_bytes(b"x")
    directory.prepare()
    assert [*tmp_path.iterdir()] == []


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "gone", 1000, 7)
    with pytest.raises(FileNotFoundError):
        put(directory, name(1), 1)
