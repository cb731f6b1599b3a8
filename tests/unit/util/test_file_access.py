"""util.file_access: only regular files are opened, and all who may change one are found."""

import errno
import os
from pathlib import Path

import pytest

from kprobe_exporter.util import file_access
from kprobe_exporter.util.file_access import (
    AclEntry,
    NotRegularError,
    all_may_read,
    cannot_be_read,
    open_regular,
    parse_acl,
    who_may_change,
)
from tests.support.acls import GROUP, GROUP_OBJ, MASK, NO_ID, OWNER, USER, acl, let_another_write

CASES = [
    ([(USER, 6, 1001), (GROUP_OBJ, 4, NO_ID), (MASK, 6, NO_ID)], "an ACL lets user 1001 write"),
    ([(GROUP_OBJ, 4, NO_ID), (GROUP, 6, 50), (MASK, 6, NO_ID)], "an ACL lets the group 50 write"),
    ([(USER, 6, 1001), (GROUP_OBJ, 4, NO_ID), (MASK, 4, NO_ID)], None),  # the mask takes it away
    ([(USER, 4, 1001), (GROUP_OBJ, 4, NO_ID), (MASK, 4, NO_ID)], None),
    ([(USER, 6, 0), (GROUP, 6, 0), (GROUP_OBJ, 6, NO_ID), (MASK, 6, NO_ID)], None),
]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that root owns, for all that this module sees."""
    path = tmp_path / "web.yml"
    path.write_text("x")
    path.chmod(0o640)
    see(monkeypatch, 0o640)
    return path


def see(monkeypatch: pytest.MonkeyPatch, mode: int, uid: int = 0, gid: int = 0) -> None:
    """Report this mode and owner, so that the test needs no second user."""
    result = os.stat_result((0o100000 | mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))
    monkeypatch.setattr(os, "fstat", lambda _: result)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.parametrize(("entries", "sentence"), CASES)
def test_an_acl_that_lets_others_write(
    file: Path, monkeypatch: pytest.MonkeyPatch, entries: list[tuple[int, int, int]], sentence: str | None
) -> None:
    """The mode of such a file shows the mask as its group's bits, and root's group may write anyway."""
    monkeypatch.setattr(os, "getxattr", lambda *_: acl(*entries))
    see(monkeypatch, 0o660)
    with file.open("rb") as opened:
        found = who_may_change(opened.fileno())
    assert found == sentence or (sentence and found and found.startswith(sentence))


def test_the_files_own_group_by_an_acl(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getxattr", lambda *_: acl((GROUP_OBJ, 6, NO_ID), (MASK, 6, NO_ID)))
    see(monkeypatch, 0o660, gid=7)
    with file.open("rb") as opened:
        assert who_may_change(opened.fileno()) == "the group 7 may write this file: setfacl -m g::r it"


def test_a_real_acl(tmp_path: Path) -> None:
    path = tmp_path / "web.yml"
    path.touch(0o600)
    assert who_may_change(path) is None
    let_another_write(path)
    with path.open("rb") as opened:
        for same in (path, opened.fileno()):
            assert (who_may_change(same) or "").startswith("an ACL lets user 54321 write this file")
    os.removexattr(path, file_access.ACCESS)
    path.chmod(0o600)
    assert who_may_change(path) is None


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "sentence"),
    [
        (0o644, 1001, 0, "this file belongs to user 1001, who is neither root"),
        (0o646, 0, 0, "others may write this file: chmod o-w it"),
        (0o664, 0, 5, "the group 5 may write this file: chmod g-w it"),
        (0o664, 0, 0, None),
        (0o600, 1000, 1000, None),
    ],
)
def test_owner_and_mode(
    file: Path, monkeypatch: pytest.MonkeyPatch, mode: int, uid: int, gid: int, sentence: str | None
) -> None:
    see(monkeypatch, mode, uid, gid)
    with file.open("rb") as opened:
        found = who_may_change(opened.fileno())
        assert found == sentence or (sentence and found and found.startswith(sentence))
        assert bool(who_may_change(opened.fileno(), read_only=True)) is (uid == 1001)
        assert all_may_read(opened.fileno()) is bool(mode & 0o004)


@pytest.mark.parametrize("code", [errno.ENODATA, errno.EOPNOTSUPP])
def test_a_file_system_without_acls(file: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "getxattr", refuse)
    with file.open("rb") as opened:
        assert who_may_change(opened.fileno()) is None


@pytest.mark.parametrize("value", [b"", b"\x02\0\0", b"\x01\0\0\0", b"\x02\0\0\0\x01"])
def test_what_is_no_acl(value: bytes) -> None:
    with pytest.raises(ValueError, match="no POSIX ACL"):
        parse_acl(value)
    assert parse_acl(acl())[0] == AclEntry(OWNER, 6, NO_ID)


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
        assert cannot_be_read(refused.value) == "is not a regular file"
    assert os.listdir("/proc/self/fd") == before


def test_a_path_that_cannot_be_opened() -> None:
    with pytest.raises(FileNotFoundError) as absent:
        open_regular("absent")
    assert cannot_be_read(absent.value) == "cannot be read: No such file or directory"
    with pytest.raises(ValueError, match="null byte") as with_nul:
        open_regular("nul\0")
    assert cannot_be_read(with_nul.value) == "cannot be read: embedded null byte"
