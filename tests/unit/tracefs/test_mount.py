"""Finding tracefs in mountinfo."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import NotMounted
from kprobe_exporter.tracefs.mount import DEBUGFS, USUAL, Mount, find, mounted, parse_mountinfo

PROC = "22 27 0:20 / /proc rw,nosuid shared:12 - proc proc rw"


def mountinfo(path: str, root: str = "/", options: str = "rw", more: str = "", own: str = "rw") -> str:
    """Return one line as show_mountinfo() of fs/proc_namespace.c prints it."""
    return f"35 24 0:12 {root} {path} {options},nosuid {more}- tracefs nodev {own}\n"


@pytest.mark.parametrize(
    ("line", "mount"),
    [
        (mountinfo("/sys/kernel/tracing"), Mount(USUAL, "/", False)),
        (mountinfo("/t", more="shared:7 master:2 "), Mount(Path("/t"), "/", False)),
        (mountinfo("/t", options="ro"), Mount(Path("/t"), "/", True)),
        (mountinfo("/t", own="ro"), Mount(Path("/t"), "/", True)),
        (mountinfo("/t", own="rw,mode=755"), Mount(Path("/t"), "/", False)),
        (mountinfo("/t", root="/instances/x"), Mount(Path("/t"), "/instances/x", False)),
        (mountinfo(r"/a\040b\011c\012d\134e"), Mount(Path("/a b\tc\nd\\e"), "/", False)),
        (mountinfo(r"/x\040-\040tracefs"), Mount(Path("/x - tracefs"), "/", False)),
        (mountinfo("/a\x0cb\u2028c\x85d"), Mount(Path("/a\x0cb\u2028c\x85d"), "/", False)),
        ("35 24 0:12 / /t rw - tracefs  rw\n", Mount(Path("/t"), "/", False)),
        ("35 24 0:12 / /t rw - tracefs\n", Mount(Path("/t"), "/", False)),
    ],
)
def test_one_line(line: str, mount: Mount) -> None:
    assert parse_mountinfo(PROC + "\n" + line + PROC + "\n") == [mount]


@pytest.mark.parametrize(
    "line",
    ["", "-", " - ", " - tracefs", "1 2 3 - tracefs nodev rw", PROC, "1 2 3 / /t rw - tracefs2 nodev rw"],
)
def test_other_lines(line: str) -> None:
    assert parse_mountinfo(line) == []


@given(st.text())
def test_any_text(text: str) -> None:
    assert parse_mountinfo(text) == [] or "tracefs" in text


@given(st.text(alphabet=st.characters(exclude_characters="\0/"), min_size=1))
def test_any_path_reads_back(name: str) -> None:
    escaped = "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in name)
    assert parse_mountinfo(mountinfo("/" + escaped)) == [Mount(Path("/" + name), "/", False)]


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        ([mountinfo("/tracefs"), mountinfo(str(DEBUGFS)), mountinfo(str(USUAL))], USUAL),
        ([mountinfo("/tracefs"), mountinfo(str(DEBUGFS))], DEBUGFS),
        ([mountinfo("/b"), mountinfo("/a")], Path("/b")),
        ([mountinfo(str(USUAL), options="ro"), mountinfo("/tracefs")], Path("/tracefs")),
        ([mountinfo(str(USUAL), options="ro")], USUAL),
        ([mountinfo(str(USUAL), root="/instances/a"), mountinfo("/tracefs")], Path("/tracefs")),
    ],
)
def test_the_one_to_use(lines: list[str], path: Path) -> None:
    found = find("".join(lines))
    assert found is not None
    assert found.path == path


@pytest.mark.parametrize("text", ["", PROC, mountinfo(str(USUAL), root="/instances/a")])
def test_none_to_use(text: str) -> None:
    assert find(text) is None


def test_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a chroot in which dpkg removes the package."""
    monkeypatch.setattr("kprobe_exporter.tracefs.mount.MOUNTINFO", tmp_path / "mountinfo")
    with pytest.raises(NotMounted, match=r"mountinfo cannot be read .*: mount /proc with"), mounted():
        pass
