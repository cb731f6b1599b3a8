"""config.files: the files that a path stands for, and the files that are refused."""

import os
import socket
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from kprobe_exporter.config.files import DEFAULT, MAX_BYTES, Unusable, expand, read
from kprobe_exporter.util.file_access import ACCESS

NO_ID = 0xFFFFFFFF
ACL_OF_USER_54321 = (1, 7, NO_ID, 2, 6, 54321, 4, 0, NO_ID, 0x10, 6, NO_ID, 0x20, 0, NO_ID)


def test_a_file_stands_for_itself(tmp_path: Path) -> None:
    file = tmp_path / "any.name"
    file.write_text("x")
    assert expand(file) == [file]


def test_a_directory_stands_for_its_yaml_files_in_order(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "c.txt", ".hidden.yaml", "..data"):
        (tmp_path / name).touch()
    assert [file.name for file in expand(tmp_path)] == ["a.yml", "b.yaml"]


def test_a_directory_without_yaml(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"no \*\.yaml"):
        expand(tmp_path)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("missing.yaml", "cannot be read: No such file or directory"),
        ("a\0b", "cannot be read: "),
        ("x" * 300, "cannot be read: File name too long"),
    ],
)
def test_what_is_not_there(tmp_path: Path, path: str, sentence: str) -> None:
    with pytest.raises(Unusable, match=sentence):
        expand(tmp_path / path)
    with pytest.raises(Unusable, match=sentence):
        read(tmp_path / path)


def test_a_fifo_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f", mode=0o600)
    with pytest.raises(Unusable, match="not a regular file"):
        read(tmp_path / "f")


def test_no_regular_files(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="not a regular file"):
        read(Path("/dev/null"))
    with pytest.raises(Unusable, match="not a regular file"):
        read(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(Unusable, match="cannot be read"):
            read(tmp_path / "s")


def test_size_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(b"#" * MAX_BYTES)
    assert len(read(file)) == MAX_BYTES
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(Unusable, match="larger than 1 MiB"):
        read(file)


@pytest.mark.parametrize("mode", [0o602, 0o622, 0o666, 0o777])
def test_others_may_not_write(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "c.yaml"
    file.touch()
    file.chmod(mode)
    with pytest.raises(Unusable, match="others may write this file: chmod o-w it"):
        read(file)


def test_others_may_not_write_the_directory(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").touch()
    tmp_path.chmod(0o1777)
    with pytest.raises(Unusable, match="others may write this directory"):
        expand(tmp_path)


def test_a_directory_that_is_mounted_read_only_may_have_any_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ConfigMap in a pod is such a directory."""
    (tmp_path / "c.yaml").touch()
    tmp_path.chmod(0o777)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY | os.ST_NOSUID))
    assert expand(tmp_path) == [tmp_path / "c.yaml"]


def _stat(monkeypatch: pytest.MonkeyPatch, mode: int, uid: int, gid: int) -> None:
    """Report this mode and owner for every open file, so that the test needs no second user."""
    result = os.stat_result((0o100000 | mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))
    monkeypatch.setattr(os, "fstat", lambda _: result)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "refused"),
    [
        (0o644, 0, 0, None),
        (0o644, 1000, 1000, None),
        (0o664, 0, 0, None),
        (0o664, 0, 5, "the group 5 may write this file: chmod g-w it"),
        (0o644, 1001, 0, "belongs to user 1001, who is neither root"),
        (0o646, 0, 0, "others may write"),
    ],
)
def test_who_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, uid: int, gid: int, refused: str | None
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("x")
    _stat(monkeypatch, mode, uid, gid)
    if refused is None:
        assert read(file) == b"x"
    else:
        with pytest.raises(Unusable, match=refused):
            read(file)


def test_an_acl_lets_no_other_user_write(tmp_path: Path) -> None:
    """The group's bits of the mode are the ACL's mask, and root's group may write."""
    file = tmp_path / "c.yaml"
    file.write_text("x")
    file.chmod(0o600)
    os.setxattr(file, ACCESS, struct.pack("<I" + "HHI" * 5, 2, *ACL_OF_USER_54321))
    for refused in (read, expand):
        with pytest.raises(Unusable, match=r"an ACL lets user 54321 write this (file|directory): setfacl"):
            refused(file if refused is read else tmp_path)
        os.setxattr(tmp_path, ACCESS, struct.pack("<I" + "HHI" * 5, 2, *ACL_OF_USER_54321))


def test_the_packaged_file_is_as_good_as_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    _stat(monkeypatch, 0o664, 1001, 1001)
    assert b"probes:" in read(DEFAULT)
